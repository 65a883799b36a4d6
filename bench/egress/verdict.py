"""What the measurements say: tables, and the ratios beside their targets. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from bench.compare.tables import Table, microseconds
from bench.compare.verdict import Judged, Spread
from bench.egress.measures import RequestCost, StreamCost

_Measure = TypeVar("_Measure")

BATCHED, PER_REQUEST = "batched", "per request"
GATEWAY_BATCHED, GATEWAY_PER_REQUEST, NGINX = "gateway, batched", "gateway, per request", "nginx"
STOCK, OURS, OURS_BATCHED, VLLM = "stock way", "ours", "ours, batched", "vllm serve"

STREAM_TARGETS = {64: 1 / 10, 256: 1 / 20, 1024: 1 / 50}
VLLM_TARGET = 0.333
GATEWAY_TARGET = 0.8
NGINX_TARGET = 1.0
LATENCY_TARGET = 1.05
"""Not worse; two measures of the same differ by as much."""
REQUEST_TARGET = 3.0


@dataclass
class Results:
    """One list entry a round, by the way's name; a round's measures stand at the same place of each list."""

    paced: dict[int, dict[str, list[StreamCost]]] = field(default_factory=dict)
    """By the number of streams: 20 tokens a second each."""
    fast: dict[int, dict[str, list[StreamCost]]] = field(default_factory=dict)
    """The same, as fast as the engine can."""
    vllm: dict[str, list[StreamCost]] = field(default_factory=dict)
    gateways: dict[str, list[StreamCost]] = field(default_factory=dict)
    requests: dict[str, list[RequestCost]] = field(default_factory=dict)
    tokenising: float | None = None
    """Microseconds of CPU per prompt."""
    problems: dict[str, str] = field(default_factory=dict)
    """By the part that could not be measured to its end."""


def streams(results: Results) -> Table:
    """What a token takes, medians of the rounds."""
    rows = []
    for title, counts in (("20 tokens/s each", results.paced), ("as fast as it can", results.fast)):
        for count, ways in counts.items():
            rows += [_stream_row(f"{count} streams, {title}, {name}", costs) for name, costs in ways.items()]
    rows += [_stream_row(f"vLLM, {name}", costs) for name, costs in results.vllm.items()]
    header = ["", "stub + tritonserver", "engine", "tokens/s", "first token p50, p99", "between tokens p50, p99", "cut"]
    return Table("CPU per token on tritonserver: median (lowest to highest round)", header, rows)


def gateways(results: Results) -> Table:
    rows = [_stream_row(name, costs, engine=False) for name, costs in results.gateways.items()]
    header = ["", "CPU per token", "tokens/s", "first token p50, p99", "between tokens p50, p99", "cut"]
    return Table("The gateway", header, rows)


def requests(results: Results) -> Table:
    """What a request of 4 KB takes that is answered by one token."""
    rows = [
        [
            name,
            microseconds([one.microseconds for one in costs]),
            microseconds([one.engine_microseconds for one in costs]),
            f"{Spread.of([one.per_second for one in costs]).median:.0f}",
        ]
        for name, costs in results.requests.items()
    ]
    if results.tokenising is not None:
        rows.append(["tokenising alone", f"{results.tokenising:.0f} µs", "", ""])
    return Table("4 KB prompts, one token", ["", "server", "engine", "requests/s"], rows)


def judge(results: Results) -> list[Judged]:
    """What there are measures for."""
    found: list[Judged] = []
    for title, counts in (("as fast as it can", results.fast), ("20 tokens/s each", results.paced)):
        for count, ways in counts.items():
            name = f"CPU per token, {count} streams, {title}, {BATCHED} / {PER_REQUEST}"
            _ratio(found, name, ways, _cpu, BATCHED, PER_REQUEST, STREAM_TARGETS.get(count))
    name = f"CPU per token, vLLM, {BATCHED} / {PER_REQUEST}"
    _ratio(found, name, results.vllm, _cpu, BATCHED, PER_REQUEST, VLLM_TARGET)
    for title, ways in [(f"{count} streams", ways) for count, ways in results.paced.items()] + [("vLLM", results.vllm)]:
        for what, value in _LATENCIES.items():
            name = f"{what}, {title}, {BATCHED} / {PER_REQUEST}"
            _ratio(found, name, ways, value, BATCHED, PER_REQUEST, LATENCY_TARGET)
    name = f"CPU per token of the gateway, {BATCHED} / {PER_REQUEST}"
    _ratio(found, name, results.gateways, _cpu, GATEWAY_BATCHED, GATEWAY_PER_REQUEST, GATEWAY_TARGET)
    name = f"CPU per token, gateway, {BATCHED} / nginx, {PER_REQUEST}"
    _ratio(found, name, results.gateways, _cpu, GATEWAY_BATCHED, NGINX, NGINX_TARGET)
    for ours in (OURS, OURS_BATCHED):
        for other, target in ((STOCK, REQUEST_TARGET), (VLLM, None)):
            name = f"requests/s of 4 KB, {ours} / {other}"
            _ratio(found, name, results.requests, lambda one: one.per_second, ours, other, target, at_least=True)
        for other in (STOCK, VLLM):
            name = f"CPU per request of 4 KB, {ours} / {other}"
            _ratio(found, name, results.requests, lambda one: one.microseconds, ours, other)
    return found


def _cpu(cost: StreamCost) -> float:
    return cost.microseconds


_LATENCIES: Mapping[str, Callable[[StreamCost], float]] = {
    "first token p50": lambda cost: cost.ttft_p50,
    "first token p99": lambda cost: cost.ttft_p99,
    "between tokens p50": lambda cost: cost.itl_p50,
    "between tokens p99": lambda cost: cost.itl_p99,
}


def _stream_row(name: str, costs: Sequence[StreamCost], *, engine: bool = True) -> list[str]:
    engines = [one.engine_microseconds for one in costs]
    return [
        name,
        microseconds([one.microseconds for one in costs]),
        *([microseconds(engines) if max(engines) else ""] if engine else []),
        f"{_median([one.tokens_per_second for one in costs]):.0f}",
        _times([one.ttft_p50 for one in costs], [one.ttft_p99 for one in costs]),
        _times([one.itl_p50 for one in costs], [one.itl_p99 for one in costs]),
        f"{100 * _median([one.short for one in costs]):.0f} %",
    ]


def _times(p50: Sequence[float], p99: Sequence[float]) -> str:
    return f"{1000 * _median(p50):.1f}, {1000 * _median(p99):.1f} ms"


def _median(values: Sequence[float]) -> float:
    return Spread.of(values).median


def _ratio(
    found: list[Judged],
    name: str,
    ways: Mapping[str, Sequence[_Measure]],
    value: Callable[[_Measure], float],
    above: str,
    below: str,
    target: float | None = None,
    *,
    at_least: bool = False,
) -> None:
    """Round by round, where both were measured."""
    if above in ways and below in ways:
        ratios = [value(a) / value(b) for a, b in zip(ways[above], ways[below], strict=True)]
        found.append(Judged(name, Spread.of(ratios), "", target, at_least=at_least))
