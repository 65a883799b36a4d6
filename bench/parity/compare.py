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
    """`place` is a path such as `choices[0].logprobs.content[2].bytes`."""

    place: str
    gateway: Any
    vllm: Any


def differences(gateway: Any, vllm: Any, place: str = "") -> Iterator[Difference]:
    """Every leaf of two JSON trees that differs; a list whose length differs is one leaf."""
    if isinstance(gateway, dict) and isinstance(vllm, dict):
        for name in sorted(gateway.keys() | vllm.keys()):
            inner = f"{place}.{name}" if place else name
            yield from differences(gateway.get(name, ABSENT), vllm.get(name, ABSENT), inner)
    elif isinstance(gateway, list) and isinstance(vllm, list) and len(gateway) == len(vllm):
        for index, (ours, theirs) in enumerate(zip(gateway, vllm, strict=True)):
            yield from differences(ours, theirs, f"{place}[{index}]")
    elif not _same(gateway, vllm):
        yield Difference(place, gateway, vllm)


def _same(ours: Any, theirs: Any) -> bool:
    if {type(ours), type(theirs)} in ({float}, {float, int}):
        return bool(abs(ours - theirs) <= TOLERANCE)
    return type(ours) is type(theirs) and bool(ours == theirs)
