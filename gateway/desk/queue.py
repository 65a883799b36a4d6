"""Who may be open at once for one model, and who waits: a bounded queue, fair to the keys. Pure: no I/O, no clock.

Counted in generations, since each choice of a request is one to the engine. Of the requests that wait, those of the
better priority (the smaller number, as vLLM counts) are first; among equals the key with the fewest open generations,
then the one whose last turn is longest ago; of one key in the order of arrival. So a key that floods the queue gets its
share and no more, whatever its requests are like. A request that is at its turn and needs more room than there is holds
the others back until it fits: otherwise small ones would pass it for ever.

A full queue refuses the request that is worst off: the newest of the key that has most of them waiting in the worst
priority (what a packet scheduler calls dropping from the longest queue). That may be one that waits already.
"""

from collections import deque
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar


@dataclass(slots=True, eq=False)
class Ticket:
    """A request that wants in. `key`: the name of its key, "" without keys; `priority`: smaller is earlier. Each is
    equal to itself alone, so it may be a dict's key."""

    key: str
    generations: int
    priority: int = 0


_Ticket = TypeVar("_Ticket", bound=Ticket)


class Change(NamedTuple, Generic[_Ticket]):
    """What an event did to the tickets: who is admitted now, in order, and who may wait no longer."""

    admitted: list[_Ticket]
    refused: list[_Ticket]


class FairQueue(Generic[_Ticket]):
    """One model's. `capacity`: generations that may be open at once; `max_waiting`: requests that may wait (0: none).

    `open` and `waiting` are how many there are of each now.
    """

    def __init__(self, capacity: int, max_waiting: int) -> None:
        self._capacity = capacity
        self._max_waiting = max_waiting
        self.open = 0
        self.waiting = 0
        self._open_of: dict[str, int] = {}
        self._turn_of: dict[str, int] = {}
        self._turns = 0
        # By priority and key; none is empty.
        self._lanes: dict[tuple[int, str], deque[_Ticket]] = {}

    def offer(self, ticket: _Ticket) -> Change[_Ticket]:
        """A request arrives; it waits unless the change names it. One with more generations than `capacity` would never
        fit: the caller refuses it before."""
        assert 0 < ticket.generations <= self._capacity
        if not self.waiting and self._fits(ticket):
            self._admit(ticket)
            return Change([ticket], [])
        refused = []
        if self.waiting >= self._max_waiting:
            refused = [self._worst_off(ticket)]
            if refused == [ticket]:
                return Change([], refused)
            self._take_out(refused[0])
        self._lanes.setdefault((ticket.priority, ticket.key), deque()).append(ticket)
        self.waiting += 1
        # The newcomer may be first, and the refused one may have held others back.
        return Change(self._admit_waiting(), refused)

    def leave(self, ticket: _Ticket) -> Change[_Ticket]:
        """An admitted request is over."""
        self.open -= ticket.generations
        left = self._open_of.pop(ticket.key) - ticket.generations
        if left:
            self._open_of[ticket.key] = left
        return Change(self._admit_waiting(), [])

    def withdraw(self, ticket: _Ticket) -> Change[_Ticket]:
        """A waiting request gives up; it may have held others back."""
        self._take_out(ticket)
        return Change(self._admit_waiting(), [])

    def open_of(self, key: str) -> int:
        """The open generations of one key."""
        return self._open_of.get(key, 0)

    def _fits(self, ticket: Ticket) -> bool:
        return self.open + ticket.generations <= self._capacity

    def _admit(self, ticket: Ticket) -> None:
        self.open += ticket.generations
        self._open_of[ticket.key] = self.open_of(ticket.key) + ticket.generations
        self._turns += 1
        self._turn_of[ticket.key] = self._turns

    def _admit_waiting(self) -> list[_Ticket]:
        admitted: list[_Ticket] = []
        while self._lanes:
            ticket = self._lanes[min(self._lanes, key=self._order)][0]
            if not self._fits(ticket):
                return admitted
            self._take_out(ticket)
            self._admit(ticket)
            admitted.append(ticket)
        # Turns are compared among those that wait; so names of keys do not pile up.
        self._turn_of.clear()
        return admitted

    def _order(self, place: tuple[int, str]) -> tuple[int, int, int]:
        priority, key = place
        return priority, self.open_of(key), self._turn_of.get(key, 0)

    def _take_out(self, ticket: _Ticket) -> None:
        place = (ticket.priority, ticket.key)
        lane = self._lanes[place]
        lane.remove(ticket)
        self.waiting -= 1
        if not lane:
            del self._lanes[place]

    def _longest(self) -> tuple[int, str]:
        """The place of the worst priority; among equals the one where most wait."""
        return max(self._lanes, key=lambda place: (place[0], len(self._lanes[place])))

    def _worst_off(self, newcomer: _Ticket) -> _Ticket:
        """Whom a full queue refuses: the newcomer, or one that waits."""
        if not self._lanes:
            return newcomer
        longest = self._longest()
        own = len(self._lanes.get((newcomer.priority, newcomer.key), ())) + 1
        # Not at a tie: two keys would push each other out for ever.
        is_worse = (longest[0], len(self._lanes[longest])) > (newcomer.priority, own)
        return self._lanes[longest][-1] if is_worse else newcomer
