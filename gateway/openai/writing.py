"""JSON text of values of any size, written in pieces, between which other threads get the interpreter: a writer holds
it for as long as its call takes. Pure.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import orjson

from gateway.openai import json_text

Dumps = Callable[[Any], str]

_AT_ONCE = 1000
"""Members or elements."""
_CHARACTERS = 64 * 1024
_NUMBERS = 2048


def string(text: str) -> bytes:
    return b"".join(escaped(text[begin : begin + _CHARACTERS] for begin in range(0, len(text), _CHARACTERS)))


def array(values: Sequence[int] | Sequence[str]) -> bytes:
    """A list of numbers or of short texts."""
    parts: list[bytes] = []
    for begin in range(0, len(values), _NUMBERS):
        parts += (b",", orjson.dumps(list(values[begin : begin + _NUMBERS]))[1:-1])
    return b"".join((b"[", *parts[1:], b"]"))


def escaped(parts: Iterable[str]) -> Iterator[bytes]:
    """The pieces of a string that these are the parts of."""
    yield b'"'
    for part in parts:
        yield orjson.dumps(part)[1:-1]
    yield b'"'


def written(value: Any, dumps: Dumps | None = None, between: str = ",", *, sorts: bool = False) -> Iterator[str]:
    """The pieces of any value. `dumps` writes a small one, with `between` between elements and, if it `sorts`, members
    by their names; None: as `json_text.dumps` does."""
    return _written(value, dumps or _dumps, between, sorts=sorts)


def text(value: Any) -> bytes:
    """Any value, as `json_text.dumps` writes it."""
    return b"".join(piece.encode() for piece in written(value))


def join(texts: Iterable[str]) -> str:
    parts = []
    texts = iter(texts)
    while some := list(itertools.islice(texts, _AT_ONCE)):
        parts.append("".join(some))
    return parts[0] if len(parts) == 1 else "".join(parts)


def is_small(value: Any) -> bool:
    """Whether one call for all of it will do."""
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


def _dumps(value: Any) -> str:
    return json_text.dumps(value).decode()


def _written(value: Any, dumps: Dumps, between: str, *, sorts: bool) -> Iterator[str]:
    if is_small(value):
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
            if is_small(some):
                yield dumps(some)[1:-1]
                continue
            for number, one in enumerate(some):
                yield between if number else ""
                yield from _written(one, dumps, between, sorts=sorts)
        yield "]"


def _members(some: dict[Any, Any], dumps: Dumps, between: str, *, sorts: bool) -> Iterator[str]:
    if is_small(some):
        yield dumps(some)[1:-1]
        return
    for number, (name, one) in enumerate(some.items()):
        yield between if number else ""
        # The name and what stands behind it.
        yield dumps({name: None})[1 : -len("null}")]
        yield from _written(one, dumps, between, sorts=sorts)
