"""The filter `tojson` of chat templates, for values of any size: it writes them in pieces, between which other threads
get the interpreter. Pure.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jinja2

Dumps = Callable[[Any], str]

_AT_ONCE = 1000
_CHARACTERS = 64 * 1024


def write_in_pieces(environment: jinja2.Environment) -> None:
    """Have its templates do so. Again for the same environment: nothing more."""
    tojson = environment.filters["tojson"]
    if tojson.__module__ != __name__:
        environment.filters["tojson"] = in_pieces(tojson)


def in_pieces(tojson: Callable[..., str]) -> Callable[..., str]:
    """A filter that writes what `tojson` does, which is `json.dumps` with other defaults."""

    def written(value: Any, *options: Any, **named: Any) -> str:
        if _is_small(value):
            return tojson(value, *options, **named)

        def dumps(value: Any) -> str:
            return tojson(value, *options, **named)

        between = dumps([0, 0])[2:-2]
        if "\n" in between:
            # It is written by Python code then.
            return dumps(value)
        sorts = dumps({"b": 0, "a": 0}).index("a") < dumps({"b": 0, "a": 0}).index("b")
        return "".join(_written(value, dumps, between, sorts=sorts))

    return written


def _is_small(value: Any) -> bool:
    left, pending = _AT_ONCE, [value]
    while pending:
        one = pending.pop()
        if isinstance(one, str):
            left -= len(one) * _AT_ONCE // _CHARACTERS
        elif isinstance(one, dict | list | tuple):
            left -= len(one)
            if left >= 0:
                pending.extend(one.values() if isinstance(one, dict) else one)
                pending.extend(one if isinstance(one, dict) else ())
        if left < 0:
            return False
    return True


def _written(value: Any, dumps: Dumps, between: str, *, sorts: bool) -> Iterator[str]:
    if _is_small(value):
        yield dumps(value)
    elif isinstance(value, str):
        yield '"'
        for begin in range(0, len(value), _CHARACTERS):
            yield dumps(value[begin : begin + _CHARACTERS])[1:-1]
        yield '"'
    elif isinstance(value, dict):
        members = iter(sorted(value.items()) if sorts else value.items())
        yield "{"
        separator = ""
        while some := dict(itertools.islice(members, _AT_ONCE)):
            yield separator
            separator = between
            yield from _members(some, dumps, between, sorts=sorts)
        yield "}"
    else:
        yield "["
        for begin in range(0, len(value), _AT_ONCE):
            yield between if begin else ""
            some = value[begin : begin + _AT_ONCE]
            if _is_small(some):
                yield dumps(some)[1:-1]
                continue
            for number, one in enumerate(some):
                yield between if number else ""
                yield from _written(one, dumps, between, sorts=sorts)
        yield "]"


def _members(some: dict[Any, Any], dumps: Dumps, between: str, *, sorts: bool) -> Iterator[str]:
    if _is_small(some):
        yield dumps(some)[1:-1]
        return
    for number, (name, one) in enumerate(some.items()):
        yield between if number else ""
        # The name and what stands behind it.
        yield dumps({name: None})[1 : -len("null}")]
        yield from _written(one, dumps, between, sorts=sorts)
