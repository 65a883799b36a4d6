"""What vLLM tells of its batch, brought to the native one. Knows the shape of vLLM's messages, imports nothing of it.

A row belongs to whom it was last given: a request that has finished is often not named as removed, its row is just
given to an added or a moved one.
"""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from logits_processors._native import Batch, Machine


class BatchUpdate(Protocol):
    """vLLM's `BatchUpdate`: rows, in the order in which they are to be looked at."""

    @property
    def removed(self) -> Iterable[int]: ...

    @property
    def added(self) -> Iterable[tuple[int, Any, list[int] | None, list[int]]]:
        """Row, sampling parameters, the prompt's tokens, and the list that the request's tokens will be appended to."""

    @property
    def moved(self) -> Iterable[tuple[int, int, Any]]:
        """From, to, and an enum whose members are named UNIDIRECTIONAL and SWAP."""


def update_rows(batch: Batch, update: BatchUpdate, machine_for: Callable[[Any], Machine | None]) -> None:
    """Removes, adds and moves rows. `machine_for` gets an added request's sampling parameters."""
    for row in update.removed:
        batch.remove(row)
    for row, params, _, output in update.added:
        batch.put(row, machine_for(params), output)
    for source, target, direction in update.moved:
        if direction.name == "SWAP":
            batch.swap(source, target)
        else:
            batch.move(source, target)
