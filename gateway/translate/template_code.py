"""The code that a chat template is compiled to: Jinja's own, but for how a member of a message and the state of a loop
are found. The sandbox asks ten questions for each, and neither can lead out of it.
"""

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame, optimizeconst

# What a loop says of itself that is no method.
_OF_LOOPS = frozenset(
    ("depth", "depth0", "first", "index", "index0", "last", "length", "nextitem", "previtem", "revindex", "revindex0")
)


def compiled(environment: jinja2.Environment, source: str) -> jinja2.Template:
    """As `environment.from_string`, whose templates render the same. Raises `TemplateSyntaxError`."""
    environment.code_generator_class = _Generator
    return environment.from_string(source)


class _Generator(CodeGenerator):
    # An expression may hold others: each has its own value as soon as it is known, and reads it at once.

    @optimizeconst
    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        if isinstance(node.arg, nodes.Const) and type(node.arg.value) is str:
            self._write_member(node.node, node.arg.value, "getitem", frame)
        else:
            super().visit_Getitem(node, frame)

    @optimizeconst
    def visit_Getattr(self, node: nodes.Getattr, frame: Frame) -> None:
        # The attributes of a dict come before its members.
        if hasattr(dict, node.attr):
            super().visit_Getattr(node, frame)
        else:
            self._write_member(node.node, node.attr, "getattr", frame)

    def _write_member(self, of: nodes.Expr, name: str, otherwise: str, frame: Frame) -> None:
        self.write(f"(owner[{name!r}] if type(owner := ")
        self.visit(of, frame)
        self.write(f") is dict and {name!r} in owner else ")
        if otherwise == "getattr" and name in _OF_LOOPS:
            self.write(f"owner.{name} if type(owner) is LoopContext else ")
        self.write(f"environment.{otherwise}(owner, {name!r}))")
