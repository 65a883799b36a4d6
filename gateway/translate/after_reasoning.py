"""One grammar for thinking and answer: free text up to the closing mark, then what the request's constraint allows.

For engines whose grammar begins with the first token, whatever the model does first (Triton's stock backend). Where the
prompt has not opened the thinking, the model may think or not. Pure.
"""

import re
from typing import Any

from gateway.openai.json_text import dumps
from gateway.output.reasoning import ReasoningMarks
from gateway.translate.structured import Constraint

_ANY_OBJECT = {"type": "object"}


def after_reasoning(constraint: Constraint, marks: ReasoningMarks, opened: bool, backend: str) -> Constraint | None:
    """`constraint` as `schema_check.check` returned it for the grammar backend; `opened`: the prompt ends inside the
    thinking. `None` where that backend cannot express it, or where the marks are special tokens, which are no text to
    a grammar."""
    if marks.has_special_tokens:
        return None
    value = _ANY_OBJECT if constraint.kind == "json_object" else constraint.engine_value()[constraint.kind]
    if backend == "guidance":
        answer = _lark(constraint.kind, value)
        return Constraint("grammar", _lark_after(answer, marks, opened), constraint.place) if answer else None
    if backend == "xgrammar" and constraint.kind in ("json", "json_object"):
        return Constraint("structural_tag", _tag_after(value, marks, opened), constraint.place)
    return None


def _lark(kind: str, value: Any) -> str | None:
    if kind in ("json", "json_object"):
        return f"%json {dumps(value).decode()}"
    if kind == "choice":
        return " | ".join(dumps(text).decode() for text in value)
    return None


def _lark_after(answer: str, marks: ReasoningMarks, opened: bool) -> str:
    opening = "" if opened else rf"/\s*{_literal(marks.opening)}/ "
    return (
        rf"start: {'' if opened else '('}{opening}thinking /\s*/{'' if opened else ')?'} answer" + "\n"
        rf"thinking[lazy]: /(?s:.*){_literal(marks.closing)}/" + "\n"
        f"answer: {answer}\n"
    )


def _literal(text: str) -> str:
    """The text inside a Lark regular expression."""
    return re.escape(text).replace("/", r"\/")


def _tag_after(schema: Any, marks: ReasoningMarks, opened: bool) -> str:
    answer = {"type": "json_schema", "json_schema": schema}
    openings = [""] if opened else [marks.opening, "\n" + marks.opening]
    forms: list[Any] = [] if opened else [answer]
    for opening in openings:
        # White space behind the mark as the templates write it.
        for space in ("", "\n", "\n\n"):
            tag = {"type": "tag", "begin": opening, "content": {"type": "any_text"}, "end": marks.closing + space}
            forms.append({"type": "sequence", "elements": [tag, answer]})
    return dumps({"type": "structural_tag", "format": {"type": "or", "elements": forms}}).decode()
