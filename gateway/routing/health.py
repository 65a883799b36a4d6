"""Whether one model on one instance may be given requests now, and how large a share. Pure: events and times in,
states out.

Two sources say how it is. A probe (`gateway.triton.control`) says whether Triton has the model ready, which it still
says while the engine behind it hangs; so the requests themselves are the other one: tokens that come, and those that
do not. The way back is slow on purpose: after a back-off, one request alone (half-open), and when its first token has
come, a share that grows.

    down ──good probe──▶ half-open ──first token──▶ ramping ──RAMP_S──▶ ready
     ▲                      │  ▲                       │                  │
     │                      ▼  └──back-off is over,────┼──────────────────┤
     └──bad probe, from   ejected  and a good probe    │ stalled, or FAILURES in a row
        anywhere            ▲──────────────────────────┴──────────────────┘
"""

from dataclasses import dataclass
from enum import StrEnum

# The back-off after the first ejection in a row, and the longest, in seconds.
BACK_OFF_S = 5.0
MAX_BACK_OFF_S = 60.0
# How long a target that comes back takes to get its full share.
RAMP_S = 10.0
_SMALLEST_SHARE = 0.1
# Connections that break before any answer, in a row: one alone may be the request's own fault.
FAILURES = 3


class State(StrEnum):
    DOWN = "down"
    READY = "ready"
    RAMPING = "ramping"
    HALF_OPEN = "half-open"
    EJECTED = "ejected"


# Found by their names at each question they would cost more than the question.
_OPEN = (State.READY, State.RAMPING, State.HALF_OPEN)


@dataclass(slots=True)
class Health:
    """`reason` says in a sentence, without a full stop, why it is not ready; empty where it is. `trial`: while it is
    half-open, its one request is under way. Times are seconds of any clock that does not go back."""

    state: State = State.DOWN
    reason: str = ""
    trial: bool = False
    _since: float = 0.0
    _back_off: float = 0.0
    _until: float = 0.0
    _failures: int = 0
    _was_up: bool = False

    @property
    def is_open(self) -> bool:
        """Whether it takes requests at all, be it one at a time."""
        return self.state in _OPEN

    @property
    def takes(self) -> bool:
        """Whether it takes one more now."""
        return self.is_open and not self.trial

    def share(self, now: float) -> float:
        """Its part of what it would get if it had never been away: above 0, at most 1."""
        if self.state is State.RAMPING:
            return min(1.0, max(_SMALLEST_SHARE, (now - self._since) / RAMP_S))
        return 1.0

    def probed(self, problem: str, now: float) -> None:
        """What a probe found; `problem` is empty where all is well."""
        if problem:
            self._go_down(problem)
        elif self.state is State.DOWN and not self._was_up:
            self._become(State.READY, now)
            self._was_up = True
        elif self.state in (State.DOWN, State.EJECTED) and now >= self._until:
            self._become(State.HALF_OPEN, now)

    def unreachable(self, problem: str, now: float) -> None:
        """No connection: nothing goes there until a probe finds it again."""
        if self.state in (State.HALF_OPEN, State.RAMPING):
            self._back_off_from(now)
        self._go_down(problem)

    def failed(self, problem: str, now: float, *, is_last: bool) -> None:
        """A request got no answer though the instance took it. `is_last`: nothing else could take its place, and a
        request that may fail is better than none."""
        self._failures += 1
        self.trial = False
        if self.is_open and not is_last and (self.state is State.HALF_OPEN or self._failures >= FAILURES):
            self._eject(problem, now)

    def stalled(self, problem: str, now: float) -> None:
        """Requests are in flight and no token comes."""
        if self.is_open:
            self._eject(problem, now)

    def progressed(self, now: float) -> None:
        """Tokens came."""
        self._failures = 0
        if self.state is State.HALF_OPEN:
            self._become(State.RAMPING, now)

    def tick(self, now: float) -> None:
        """Call it now and then."""
        if self.state is State.RAMPING and now - self._since >= RAMP_S:
            self._become(State.READY, now)
            self._back_off = 0.0

    def _become(self, state: State, now: float) -> None:
        self.state, self.reason, self.trial, self._since = state, "", False, now

    def _go_down(self, reason: str) -> None:
        self.state, self.reason, self.trial = State.DOWN, reason, False

    def _eject(self, reason: str, now: float) -> None:
        self._back_off_from(now)
        self.state, self.reason, self.trial, self._failures = State.EJECTED, reason, False, 0

    def _back_off_from(self, now: float) -> None:
        self._back_off = min(MAX_BACK_OFF_S, max(BACK_OFF_S, self._back_off * 2))
        self._until = now + self._back_off
