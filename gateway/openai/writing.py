"""JSON text of values of any size, written in pieces, between which other threads get the interpreter: a writer holds
it for as long as its call takes. Pure.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import orjson

from gateway.openai import json_text

_T = TypeVar("_T")

Dumps = Callable[[Any], str]

_AT_ONCE = 1000
"""Members or elements."""
_CHARACTERS = 64 * 1024
_NUMBERS = 2048
_COUNTED = str, dict, list, tuple


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


def written(value: Any, dumps: Dumps | None = None, between: str = ",", *, sorts: bool = False) -> list[str]:
    """The pieces of any value. `dumps` writes a small one, with `between` between elements and, if it `sorts`, members
    by their names; None: as `json_text.dumps` does."""
    writer = _Writer(dumps or _dumps, between, _weights(value), sorts=sorts)
    writer.write(value)
    return writer.pieces


def text(value: Any) -> bytes:
    """Any value, as `json_text.dumps` writes it."""
    return b"".join(piece.encode() for piece in written(value))


def join(texts: Iterable[str]) -> str:
    parts = ["".join(some) for some in _batches(texts)]
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


class _Writer:
    """Puts the pieces of a value of these `weights` into `pieces`."""

    def __init__(self, dumps: Dumps, between: str, weights: Mapping[int, int], *, sorts: bool) -> None:
        self.pieces: list[str] = []
        self._dumps = dumps
        self._between = between
        self._weights = weights
        self._sorts = sorts

    def write(self, value: Any) -> None:
        if self._weight(value) <= _AT_ONCE:
            self.pieces.append(self._dumps(value))
        elif isinstance(value, str):
            parts = (value[begin : begin + _CHARACTERS] for begin in range(0, len(value), _CHARACTERS))
            self.pieces += ('"', *(self._dumps(part)[1:-1] for part in parts), '"')
        elif isinstance(value, dict):
            separator = "{"
            for some in self._runs(value):
                self.pieces.append(separator)
                separator = self._between
                if len(some) > 1:
                    self.pieces.append(self._dumps(dict(some))[1:-1])
                    continue
                ((name, one),) = some
                # The name and what stands behind it.
                self.pieces.append(self._dumps({name: None})[1 : -len("null}")])
                self.write(one)
            self.pieces.append("}")
        else:
            separator = "["
            for some in self._runs(value):
                self.pieces.append(separator)
                separator = self._between
                if len(some) > 1:
                    self.pieces.append(self._dumps(some)[1:-1])
                else:
                    self.write(some[0])
            self.pieces.append("]")

    def _runs(self, value: Any) -> Iterator[list[Any]]:
        """Its members or elements, as many at a time as one call is to write."""
        items = value
        if isinstance(value, dict):
            items = sorted(value.items()) if self._sorts else value.items()
        if self._weight(value) == len(value):
            yield from _batches(items)
            return
        some: list[Any] = []
        left = _AT_ONCE
        for one in items:
            own = 1 + (sum(map(self._weight, one)) if items is not value else self._weight(one))
            if own > left and some:
                yield some
                some, left = [], _AT_ONCE
            some.append(one)
            left -= own
        yield some

    def _weight(self, value: Any) -> int:
        return _weight(value, self._weights)


def _weights(value: Any) -> dict[int, int]:
    """How much is in each list and object, by its `id`: members, elements and texts, at all levels below it. From the
    innermost out, since to look from each level to the innermost would take hundreds of times as long."""
    weights: dict[int, int] = {}
    found: list[tuple[Any, list[Any]]] = []
    pending: list[Any] = [value] if isinstance(value, dict | list | tuple) else []
    while pending:
        one = pending.pop()
        if isinstance(one, str) or id(one) in weights:
            continue
        weights[id(one)] = 0
        elements = itertools.chain(one, one.values()) if isinstance(one, dict) else one
        within = [inner for inner in elements if isinstance(inner, _COUNTED)]
        found.append((one, within))
        pending += within
    while found:
        one, within = found.pop()
        weights[id(one)] = len(one) + sum(_weight(inner, weights) for inner in within)
    return weights


def _weight(value: Any, weights: Mapping[int, int]) -> int:
    if isinstance(value, str):
        return len(value) * _AT_ONCE // _CHARACTERS
    return weights.get(id(value), 0)


def _batches(items: Iterable[_T]) -> Iterator[list[_T]]:
    items = iter(items)
    while some := list(itertools.islice(items, _AT_ONCE)):
        yield some
