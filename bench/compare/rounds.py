"""The rounds: every measurement on every server in turns, so that what the machine does meanwhile meets all of them."""

from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from bench.compare import measures
from bench.compare.measures import Burst, RequestCost, TokenCost, TooSlow, WrongAnswer
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
    """All rounds; `say` is told how far they are. A part in which something goes wrong is not measured again: the
    results tell what it was."""
    rounds = _Rounds(stage, sizes)
    every, last = range(sizes.rounds), sizes.rounds - 1
    parts: dict[str, tuple[range, Callable[[int], None]]] = {
        "burst": (every[:_MOST_BURSTS], rounds.burst),
        "token": (every, rounds.token),
        "request": (every, rounds.request),
        "slow": (every[:_MOST_SLOW], rounds.slow_readers),
        "growth": (every[last:], rounds.growth),
    }
    results = rounds.results
    rounds.warm_up()
    for number in every:
        for part, (turns, measure_one) in parts.items():
            if part not in sizes.parts or number not in turns or part in results.problems:
                continue
            say(f"round {number + 1} of {sizes.rounds}, {part}")
            try:
                measure_one(number)
            except (WrongAnswer, TooSlow) as problem:
                results.problems[part] = str(problem)
    return results


class _Rounds:
    """One round of each part, by its number; every measure has an event loop of its own."""

    def __init__(self, stage: Stage, sizes: Sizes) -> None:
        self.results = Results()
        self._stage = stage
        self._sizes = sizes
        self._streaming = [stage.nginx, stage.gateway, *stage.others]
        self._answering = [stage.bare, *self._streaming]

    def warm_up(self) -> None:
        """A server's first requests load what is loaded once."""
        for server in self._answering:
            uvloop.run(measures.request_cost(server, self._stage.bench, 100, 4))

    def burst(self, number: int) -> None:
        stage, streams = self._stage, self._sizes.burst

        def one(server: Server) -> Burst:
            return _run(lambda patience: measures.burst(server, stage.upstream, stage.slow, streams, patience))

        # The others serve one model, whose tokens are too many for so many streams.
        _in_turn(number, [stage.nginx, stage.gateway], self.results.bursts, one)

    def token(self, number: int) -> None:
        stage, streams, seconds = self._stage, self._sizes.streams, self._sizes.seconds

        def one(server: Server) -> TokenCost:
            return _run(
                lambda patience: measures.token_cost(server, stage.upstream, stage.bench, streams, seconds, patience)
            )

        _in_turn(number, self._streaming, self.results.tokens, one)

    def request(self, number: int) -> None:
        def one(server: Server) -> RequestCost:
            return uvloop.run(measures.request_cost(server, self._stage.bench, self._sizes.requests, _CONCURRENCY))

        _in_turn(number, self._answering, self.results.requests, one)

    def slow_readers(self, number: int) -> None:
        stage, sizes = self._stage, self._sizes
        measured = measures.slow_readers(
            stage.gateway, stage.bench, stage.flood, sizes.streams, sizes.slow_readers, sizes.seconds
        )
        self.results.slow_readers.append(uvloop.run(measured))

    def growth(self, number: int) -> None:
        stage, count = self._stage, self._sizes.growth_requests
        gained = uvloop.run(measures.memory_growth(stage.gateway, stage.bench, count, _CONCURRENCY))
        self.results.growth_bytes, self.results.growth_requests = gained, count


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
