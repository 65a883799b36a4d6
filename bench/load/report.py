"""What a load showed, as distributions: pure."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.load.check import Outcome
from bench.load.run import Run

BUSY_SHARE = 0.85
"""Of a core: a load that uses more of one is slowed down by itself."""
LONG_LAG = 0.25
"""Seconds by which the load may be held up without a word about it."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """Percentiles are values that were seen (nearest rank)."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class Objectives:
    """What makes an answer good, in seconds; None: not asked for. `itl` is the mean time between its tokens."""

    ttft: float | None = None
    itl: float | None = None

    def are_met(self, outcome: Outcome) -> bool:
        if not outcome.is_right:
            return False
        if self.ttft is not None and (outcome.ttft is None or outcome.ttft > self.ttft):
            return False
        return self.itl is None or not outcome.gaps or sum(outcome.gaps) / len(outcome.gaps) <= self.itl


@dataclass(frozen=True, slots=True)
class Part:
    """Of all requests, or of those of one kind; times are in seconds, rates per second. Wrong answers are counted in
    `requests`, `wrong` and `errors` alone. `goodput` is of the requests that met the objectives; `joined` counts the
    events that came in one read with the one before."""

    requests: int
    wrong: int
    errors: dict[str, int]
    ttft: Distribution | None
    itl: Distribution | None
    latency: Distribution | None
    tokens: int
    joined: int
    requests_per_second: float
    tokens_per_second: float
    goodput: float


@dataclass(frozen=True, slots=True)
class Report:
    """`notes` are sentences that a reader must know before believing the numbers."""

    seconds: float
    all: Part
    kinds: dict[str, Part]
    cpu_share: float
    lag: float
    processes: int
    notes: list[str]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def report(run: Run, objectives: Objectives) -> Report:
    kinds = sorted({outcome.kind for outcome in run.outcomes})
    by_kind = {
        kind: _part([outcome for outcome in run.outcomes if outcome.kind == kind], run.seconds, objectives)
        for kind in kinds
    }
    whole = _part(run.outcomes, run.seconds, objectives)
    return Report(run.seconds, whole, by_kind, run.cpu_share, run.lag, run.processes, _notes(run))


def distribution(values: Iterable[float]) -> Distribution | None:
    """None of nothing."""
    ordered = sorted(values)
    if not ordered:
        return None
    return Distribution(
        len(ordered),
        math.fsum(ordered) / len(ordered),
        percentile(ordered, 0.50),
        percentile(ordered, 0.90),
        percentile(ordered, 0.99),
        ordered[-1],
    )


def percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of the values does not exceed (nearest rank)."""
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)]


def _part(outcomes: Sequence[Outcome], seconds: float, objectives: Objectives) -> Part:
    right = [outcome for outcome in outcomes if outcome.is_right]
    good = sum(objectives.are_met(outcome) for outcome in outcomes)
    tokens = sum(outcome.tokens for outcome in right)
    length = max(seconds, 1e-9)
    return Part(
        requests=len(outcomes),
        wrong=len(outcomes) - len(right),
        errors=dict(Counter(outcome.error for outcome in outcomes if outcome.error).most_common()),
        ttft=distribution(outcome.ttft for outcome in right if outcome.ttft is not None),
        itl=distribution(gap for outcome in right for gap in outcome.gaps),
        latency=distribution(outcome.seconds for outcome in right),
        tokens=tokens,
        joined=sum(outcome.joined for outcome in right),
        requests_per_second=len(right) / length,
        tokens_per_second=tokens / length,
        goodput=good / length,
    )


def _notes(run: Run) -> list[str]:
    notes = []
    if run.cpu_share >= BUSY_SHARE:
        notes.append(
            f"The load itself is the bottleneck: its busiest process used {100 * run.cpu_share:.0f} % of a core, so "
            "these times are its own; use more --processes."
        )
    elif run.lag >= LONG_LAG:
        notes.append(
            f"The load itself was held up for {run.lag:.2f} s, by other work on this machine: times of that length are "
            "its own."
        )
    return notes
