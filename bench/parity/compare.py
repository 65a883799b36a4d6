"""What differs between two answers. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

# How far two log probabilities of the same token may be apart.
TOLERANCE = 1e-3


class _Absent:
    def __repr__(self) -> str:
        return "absent"


ABSENT = _Absent()


@dataclass(frozen=True)
class Difference:
    """What server A and server B say at `place`, a path such as `choices[0].logprobs.content[2].bytes`."""

    place: str
    a: Any
    b: Any

    @property
    def mirrored(self) -> "Difference":
        return Difference(self.place, self.b, self.a)


def differences(a: Any, b: Any, place: str = "") -> Iterator[Difference]:
    """Every leaf of two JSON trees that differs; a list whose length differs is one leaf."""
    if isinstance(a, dict) and isinstance(b, dict):
        for name in sorted(a.keys() | b.keys()):
            inner = f"{place}.{name}" if place else name
            yield from differences(a.get(name, ABSENT), b.get(name, ABSENT), inner)
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for index, (left, right) in enumerate(zip(a, b, strict=True)):
            yield from differences(left, right, f"{place}[{index}]")
    elif not _same(a, b):
        yield Difference(place, a, b)


def _same(a: Any, b: Any) -> bool:
    if {type(a), type(b)} in ({float}, {float, int}):
        return bool(abs(a - b) <= TOLERANCE)
    return type(a) is type(b) and bool(a == b)
