"""What the measurements say: medians over rounds with their spread, and the ratios beside their targets. Pure."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from bench.compare.measures import Burst, RequestCost, SlowReaders, TokenCost
from bench.compare.servers import BARE, GATEWAY, NGINX

_Measure = TypeVar("_Measure")

TOKEN_TARGET = 2.0
NATIVE_TOKEN_TARGET = 1.25
REQUEST_TARGET = 1.0
BURST_TARGET = 3.0
STREAM_KB_TARGET = 40.0
SLOWED_TARGET = 1.5
SLOW_READER_KB_TARGET = 1024.0
"""Of one that reads nothing: one read from upstream (256 KiB at most, after which reading pauses), as the bytes that
came, as events, as chunks and in the transport."""
GROWTH_KB_TARGET = 2048.0
MOST_JOINED = 0.1
"""The share of a round's tokens that may come in one read with another."""


@dataclass
class Results:
    """One list entry a round, by the server's name; a round's measures stand at the same place of each list."""

    tokens: dict[str, list[TokenCost]] = field(default_factory=dict)
    requests: dict[str, list[RequestCost]] = field(default_factory=dict)
    bursts: dict[str, list[Burst]] = field(default_factory=dict)
    slow_readers: list[SlowReaders] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)
    """By the part of the comparison that could not be measured to its end."""
    growth_bytes: int | None = None
    growth_requests: int = 0


@dataclass(frozen=True, slots=True)
class Spread:
    """Of one value over the rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        return cls(statistics.median(values), min(values), max(values))


@dataclass(frozen=True, slots=True)
class Judged:
    """A ratio or a size with its target, which it must not exceed, or must reach (`at_least`); None: only shown.
    Without a `value`, `remark` says why there is none."""

    name: str
    value: Spread | None
    unit: str = ""
    target: float | None = None
    remark: str = ""
    at_least: bool = False

    @property
    def is_met(self) -> bool | None:
        if self.target is None:
            return None
        if self.value is None:
            return False
        return self.value.median >= self.target if self.at_least else self.value.median <= self.target


def apart(rounds: Sequence[TokenCost]) -> Sequence[TokenCost]:
    """Those in which the machine kept tokens apart; all, where there are none."""
    return [one for one in rounds if one.joined <= MOST_JOINED] or rounds


def judge(results: Results) -> list[Judged]:
    """What there are measures for."""
    found: list[Judged] = []
    requests = _values(results.requests, lambda cost: cost.microseconds)
    p99 = _values(results.bursts, lambda one: one.ttft_p99)
    _token_ratio(found, "CPU per streamed token, gateway / nginx", results.tokens, GATEWAY, TOKEN_TARGET)
    _token_ratio(found, "the same, where the gateway's sink is native", results.tokens, GATEWAY, NATIVE_TOKEN_TARGET)
    for other in _others(results.tokens):
        _token_ratio(found, f"CPU per streamed token, {other} / nginx", results.tokens, other, None)
    _ratio(found, "CPU per request of 4 KB, gateway / bare FastAPI", requests, GATEWAY, BARE, REQUEST_TARGET)
    for other in _others(requests):
        _ratio(found, f"CPU per request of 4 KB, gateway / {other}", requests, GATEWAY, other)
    _ratio(found, "burst, 99th percentile to the first token, gateway / nginx", p99, GATEWAY, NGINX, BURST_TARGET)
    if GATEWAY in results.bursts:
        # The first burst: later ones find memory that the first one has left.
        first = results.bursts[GATEWAY][0].memory_per_stream / 1024
        found.append(Judged("memory per open stream", Spread.of([first]), "KB", STREAM_KB_TARGET))
    if results.slow_readers:
        slowed = Spread.of([one.itl_with / one.itl_without for one in results.slow_readers])
        first = results.slow_readers[0].memory_per_reader / 1024
        found.append(Judged("between tokens (p99) beside slow readers / without", slowed, "", SLOWED_TARGET))
        found.append(Judged("memory per slow reader", Spread.of([first]), "KB", SLOW_READER_KB_TARGET))
    if results.growth_bytes is not None:
        name = f"memory gained from {results.growth_requests // 10} to {results.growth_requests} requests"
        found.append(Judged(name, Spread.of([results.growth_bytes / 1024]), "KB", GROWTH_KB_TARGET))
    return found


def _values(measures: Mapping[str, Sequence[_Measure]], value: Callable[[_Measure], float]) -> dict[str, list[float]]:
    return {name: [value(one) for one in rounds] for name, rounds in measures.items()}


def _others(values: Mapping[str, object]) -> list[str]:
    return [name for name in values if name not in (GATEWAY, NGINX, BARE)]


def _token_ratio(
    found: list[Judged], name: str, costs: Mapping[str, Sequence[TokenCost]], above: str, target: float | None
) -> None:
    """Of the rounds in which the machine kept tokens apart: two that came in one read cost less than two."""
    if above not in costs or NGINX not in costs:
        return
    pairs = list(zip(costs[above], costs[NGINX], strict=True))
    apart = [a.microseconds / b.microseconds for a, b in pairs if max(a.joined, b.joined) <= MOST_JOINED]
    left_out = len(pairs) - len(apart)
    remark = (
        f"{left_out} of {len(pairs)} rounds left out: the machine was too busy to keep tokens apart" if left_out else ""
    )
    found.append(Judged(name, Spread.of(apart) if apart else None, "", target, remark))


def _ratio(
    found: list[Judged],
    name: str,
    values: Mapping[str, Sequence[float]],
    above: str,
    below: str,
    target: float | None = None,
) -> None:
    """Round by round, where both were measured."""
    if above in values and below in values:
        ratios = [a / b for a, b in zip(values[above], values[below], strict=True)]
        found.append(Judged(name, Spread.of(ratios), "", target))
