"""The rounds: every measurement on every server in turns, so that what the machine does meanwhile meets all of them."""

from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from bench.compare import measures
from bench.compare.measures import TooSlow
from bench.compare.servers import Server, running_bare, running_gateway, running_nginx, running_other
from bench.compare.verdict import Results
from bench.upstream.running import Upstream, running_upstream
from bench.upstream.script import Model

_Measure = TypeVar("_Measure")

PARTS = ("burst", "token", "request", "slow", "growth")
USUAL_PARTS = ("burst", "token", "request", "slow")
_MOST_BURSTS = 3
_MOST_SLOW = 2
_CONCURRENCY = 16
_PATIENCE = (1.0, 2.0, 4.0)
_SLOW_TOKENS_PER_SECOND = 2.0
"""Of a burst's streams: they are open for some seconds and cost next to nothing."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured; the command's flags by their names."""

    rounds: int = 5
    parts: Sequence[str] = USUAL_PARTS
    streams: int = 256
    tokens_per_second: float = 20.0
    seconds: float = 3.0
    requests: int = 1500
    burst: int = 1024
    slow_readers: int = 8
    growth_requests: int = 100_000


@dataclass(frozen=True, slots=True)
class Stage:
    """All that runs while it is measured. `flood` is a model whose answers of 8 MB come all at once."""

    upstream: Upstream
    bench: Model
    slow: Model
    flood: Model
    nginx: Server
    gateway: Server
    bare: Server
    others: list[Server]


def start(
    stack: ExitStack, sizes: Sizes, folder: Path, tokenizer: Path, upstream_port: int = 0, others: Sequence[str] = ()
) -> Stage:
    """Starts all servers, which end with `stack`. `others` as of `servers.running_other`. Raises DevError."""

    def place(name: str) -> Path:
        (folder / name).mkdir()
        return folder / name

    bench = Model("bench", 2048, 5, sizes.tokens_per_second)
    slow = Model("slow", 64, 5, _SLOW_TOKENS_PER_SECOND)
    flood = Model("flood", 2048, 4096)
    served = [bench, slow, flood]
    upstream = stack.enter_context(running_upstream(served, port=upstream_port))
    return Stage(
        upstream,
        bench,
        slow,
        flood,
        stack.enter_context(running_nginx(upstream.url, place("nginx"))),
        stack.enter_context(running_gateway(upstream.url, served, tokenizer, place("gateway"))),
        stack.enter_context(running_bare(place("bare"))),
        [stack.enter_context(running_other(given, upstream.url, folder)) for given in others],
    )


def measure(stage: Stage, sizes: Sizes, say: Callable[[str], None]) -> Results:
    """All rounds; `say` is told how far they are. Raises `WrongAnswer`, `TooSlow`."""
    results, one = Results(), _Measures(stage, sizes)
    pair = [stage.nginx, stage.gateway]
    answering = [stage.bare, stage.gateway, stage.nginx, *stage.others]
    # A server's first requests load what is loaded once.
    for server in answering:
        uvloop.run(measures.request_cost(server, stage.bench, 100, 4))
    for number in range(sizes.rounds):
        about = f"round {number + 1} of {sizes.rounds}"
        if "burst" in sizes.parts and number < _MOST_BURSTS:
            say(f"{about}, bursts")
            _in_turn(number, pair, results.bursts, one.burst)
        if "token" in sizes.parts:
            say(f"{about}, tokens")
            _in_turn(number, [*pair, *stage.others], results.tokens, one.token)
        if "request" in sizes.parts:
            say(f"{about}, requests")
            _in_turn(number, answering, results.requests, one.request)
        if "slow" in sizes.parts and number < _MOST_SLOW:
            say(f"{about}, slow readers")
            results.slow_readers.append(one.slow_readers())
    if "growth" in sizes.parts:
        say(f"{sizes.growth_requests} requests")
        results.growth_bytes, results.growth_requests = one.growth(), sizes.growth_requests
    return results


class _Measures:
    """One measure each, in an event loop of its own."""

    def __init__(self, stage: Stage, sizes: Sizes) -> None:
        self._stage = stage
        self._sizes = sizes

    def burst(self, server: Server) -> measures.Burst:
        stage, streams = self._stage, self._sizes.burst
        return _run(lambda patience: measures.burst(server, stage.upstream, stage.slow, streams, patience))

    def token(self, server: Server) -> measures.TokenCost:
        stage, streams, seconds = self._stage, self._sizes.streams, self._sizes.seconds
        return _run(
            lambda patience: measures.token_cost(server, stage.upstream, stage.bench, streams, seconds, patience)
        )

    def request(self, server: Server) -> measures.RequestCost:
        return uvloop.run(measures.request_cost(server, self._stage.bench, self._sizes.requests, _CONCURRENCY))

    def slow_readers(self) -> measures.SlowReaders:
        stage, sizes = self._stage, self._sizes
        return uvloop.run(
            measures.slow_readers(
                stage.gateway, stage.bench, stage.flood, sizes.streams, sizes.slow_readers, sizes.seconds
            )
        )

    def growth(self) -> int:
        stage, count = self._stage, self._sizes.growth_requests
        return uvloop.run(measures.memory_growth(stage.gateway, stage.bench, count, _CONCURRENCY))


def _in_turn(
    number: int,
    servers: Sequence[Server],
    results: dict[str, list[_Measure]],
    measure_one: Callable[[Server], _Measure],
) -> None:
    """One measure of each, in an order that turns round from one round to the next."""
    ordered = servers if number % 2 == 0 else servers[::-1]
    found = {server.name: measure_one(server) for server in ordered}
    for server in servers:
        results.setdefault(server.name, []).append(found[server.name])


def _run(measure_one: Callable[[float], Coroutine[Any, Any, _Measure]]) -> _Measure:
    """A pause of the machine spoils a measure: it is made again, with more patience."""
    for patience in _PATIENCE:
        try:
            return uvloop.run(measure_one(patience))
        except TooSlow:
            continue
    return uvloop.run(measure_one(2 * _PATIENCE[-1]))
