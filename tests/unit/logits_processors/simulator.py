"""vLLM's persistent batch, as far as a logits processor sees it: which requests have which rows, and what it is told.

What was seen of vLLM 0.32, and is done here: a request that has finished or was preempted leaves a hole; an added
request fills the lowest hole, and that row is then not named as removed; what holes are left are filled by moving the
last rows, and those are not named either; rows may be swapped afterwards. A row whose prompt is not finished is in the
batch, and its token is thrown away. A preempted request comes back with its output, in the same list or in a new one.
With asynchronous scheduling the last token of a list is -1 until just before the masks are applied.
"""

import random
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any


class Direction(Enum):
    UNIDIRECTIONAL = auto()
    SWAP = auto()


@dataclass
class Request:
    """One request. `params` is what the processor is given of it."""

    params: Any
    prefill_steps: int
    """Steps until its prompt has been computed, so that a token counts."""
    output: list[int] = field(default_factory=list)


@dataclass
class Update:
    removed: list[int] = field(default_factory=list)
    added: list[tuple[int, Any, list[int] | None, list[int]]] = field(default_factory=list)
    moved: list[tuple[int, int, Direction]] = field(default_factory=list)


class PersistentBatch:
    def __init__(self, choose: random.Random, capacity: int) -> None:
        self.rows: list[Request] = []
        self.waiting: list[Request] = []
        self._choose = choose
        self._capacity = capacity

    def change(self, leaving: list[Request], arriving: list[Request]) -> Update | None:
        """Takes requests out and puts others in, as one step of the engine does; what the processor is told of it."""
        update = Update()
        holes = sorted(row for row, request in enumerate(self.rows) if any(request is one for one in leaving))
        for request in arriving[: self._capacity - len(self.rows) + len(holes)]:
            row = holes.pop(0) if holes else len(self.rows)
            self.rows[row : row + 1] = [request]
            update.added.append((row, request.params, [1, 2, 3], request.output))
        last = len(self.rows) - 1
        while holes:
            while last in holes:
                holes.remove(last)
                update.removed.append(last)
                del self.rows[last]
                last -= 1
            if not holes:
                break
            hole = holes.pop(0)
            self.rows[hole] = self.rows.pop(last)
            update.moved.append((last, hole, Direction.UNIDIRECTIONAL))
            last -= 1
        if len(self.rows) > 1 and self._choose.random() < 0.2:
            one, other = self._choose.sample(range(len(self.rows)), 2)
            self.rows[one], self.rows[other] = self.rows[other], self.rows[one]
            update.moved.append((one, other, Direction.SWAP))
        return update if update.added or update.removed or update.moved else None
