"""The rounds: each measurement of each way in turns, so that what the machine does meanwhile meets all of them."""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from bench.compare.servers import Server
from bench.egress import measures
from bench.egress.client import WrongAnswer
from bench.egress.measures import Cpu, RequestCost, StreamCost, TooSlow, cpu_of
from bench.egress.servers import Serving, running_gateways, running_triton, running_vllm, tokenising_microseconds
from bench.egress.verdict import (
    BATCHED,
    GATEWAY_BATCHED,
    GATEWAY_PER_REQUEST,
    NGINX,
    OURS,
    OURS_BATCHED,
    PER_REQUEST,
    STOCK,
    VLLM,
    Results,
)

_Measure = TypeVar("_Measure")
_Way = tuple[str, Callable[[float], Coroutine[Any, Any, _Measure]]]
"""Its name, and its measure with more or less patience."""

PARTS = ("streams", "gateway", "vllm", "requests")

_PATIENCE = (1.5, 3.0, 6.0)
_PACE_MILLISECONDS = 50.0
"""Between two tokens of a stream: 20 a second, as people are served."""
_GATEWAY_MILLISECONDS = 100.0
"""So that the per-request path keeps up with 256 streams on two cores."""
_FAST_TOKENS = {BATCHED: 2000, PER_REQUEST: 64}
"""Of each stream, where the engine gives them as fast as it can: some seconds either way."""
_CONCURRENCY = 16


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured; the command's flags by their names."""

    rounds: int = 3
    parts: Sequence[str] = PARTS
    streams: Sequence[int] = (64, 256, 1024)
    seconds: float = 3.0
    gateway_streams: int = 256
    vllm_streams: int = 48
    vllm_tokens: int = 900
    requests: int = 600


def measure(sizes: Sizes, folder: Path, say: Callable[[str], None]) -> Results:
    """All rounds; `say` is told how far they are. A part in which something goes wrong is not measured again: the
    results tell what it was."""
    results = Results()
    if "streams" in sizes.parts or "gateway" in sizes.parts:
        with ExitStack() as stack:
            say("starting tritonserver with the synthetic engine")
            triton = stack.enter_context(running_triton("synthetic", folder / "synthetic", {}))
            (folder / "gateways").mkdir()
            gateways = stack.enter_context(running_gateways(triton.url, folder / "gateways"))
            _synthetic_rounds(results, sizes, triton, gateways, say)
    if "vllm" in sizes.parts or "requests" in sizes.parts:
        with ExitStack() as stack:
            say("starting tritonserver with vLLM")
            ours = stack.enter_context(running_triton("triton", folder / "ours", {}))
            others = []
            if "requests" in sizes.parts:
                say("starting the stock way and vLLM's own server")
                others = [
                    stack.enter_context(running_triton("stock", folder / "stock", {})),
                    stack.enter_context(running_vllm(folder / "vllm", {})),
                ]
            _vllm_rounds(results, sizes, ours, others, say)
    return results


def _synthetic_rounds(
    results: Results, sizes: Sizes, triton: Serving, gateways: Mapping[str, Server], say: Callable[[str], None]
) -> None:
    cpu = cpu_of(triton)
    _warm_up(triton.url, cpu, measures.synthetic(8, 20, 1))
    for name, server in gateways.items():
        uvloop.run(measures.whole_cost(server.url, cpu, measures.synthetic(8, 20, 1, chat=name != NGINX)))
    for number in range(sizes.rounds):
        for streams in sizes.streams if "streams" in sizes.parts else ():
            say(f"round {number + 1} of {sizes.rounds}, {streams} streams")
            for kept, ways in (
                (results.paced, _paced_ways(triton.url, cpu, streams, sizes.seconds)),
                (results.fast, _fast_ways(triton.url, cpu, streams)),
            ):
                _in_turn(number, ways, kept.setdefault(streams, {}), results.problems, f"{streams} streams")
        if "gateway" in sizes.parts:
            say(f"round {number + 1} of {sizes.rounds}, gateway")
            _in_turn(number, _gateway_ways(gateways, sizes), results.gateways, results.problems, "gateway")


def _paced_ways(url: str, cpu: Cpu, streams: int, seconds: float) -> list[_Way[StreamCost]]:
    def way(name: str) -> _Way[StreamCost]:
        async def measured(patience: float) -> StreamCost:
            tokens = measures.window_tokens(seconds, _PACE_MILLISECONDS, streams, patience)
            asked = measures.synthetic(streams, tokens, _PACE_MILLISECONDS)
            return await measures.window_cost(url, cpu, asked, seconds, batched=name == BATCHED)

        return name, measured

    return [way(BATCHED), way(PER_REQUEST)]


def _fast_ways(url: str, cpu: Cpu, streams: int) -> list[_Way[StreamCost]]:
    def way(name: str) -> _Way[StreamCost]:
        async def measured(patience: float) -> StreamCost:
            asked = measures.synthetic(streams, _FAST_TOKENS[name], 0)
            return await measures.whole_cost(url, cpu, asked, batched=name == BATCHED)

        return name, measured

    return [way(BATCHED), way(PER_REQUEST)]


def _gateway_ways(gateways: Mapping[str, Server], sizes: Sizes) -> list[_Way[StreamCost]]:
    streams, seconds = sizes.gateway_streams, sizes.seconds

    def way(name: str, server: Server) -> _Way[StreamCost]:
        async def measured(patience: float) -> StreamCost:
            tokens = measures.window_tokens(seconds, _GATEWAY_MILLISECONDS, streams, 2 * patience)
            asked = measures.synthetic(streams, tokens, _GATEWAY_MILLISECONDS, chat=name != NGINX)
            return await measures.window_cost(server.url, lambda: (server.cpu_time, server.cpu_time), asked, seconds)

        return name, measured

    names = {"gateway, batched": GATEWAY_BATCHED, "gateway, per request": GATEWAY_PER_REQUEST, "nginx": NGINX}
    return [way(names[name], server) for name, server in gateways.items()]


def _vllm_rounds(
    results: Results, sizes: Sizes, ours: Serving, others: Sequence[Serving], say: Callable[[str], None]
) -> None:
    cpu = cpu_of(ours)
    _warm_up(ours.url, cpu, measures.random_model(8, 20))
    triton, own = measures.prompt_requests(completions=False), measures.prompt_requests(completions=True)

    def streaming(name: str) -> _Way[StreamCost]:
        async def measured(patience: float) -> StreamCost:
            asked = measures.random_model(sizes.vllm_streams, sizes.vllm_tokens)
            return await measures.whole_cost(ours.url, cpu, asked, batched=name == BATCHED)

        return name, measured

    def requesting(name: str, serving: Serving, *, batched: bool = False) -> _Way[RequestCost]:
        pool = own if name == VLLM else triton

        async def measured(patience: float) -> RequestCost:
            return await measures.request_cost(
                serving.url, cpu_of(serving), pool, sizes.requests, _CONCURRENCY, batched=batched
            )

        return name, measured

    ways: list[_Way[RequestCost]] = []
    if "requests" in sizes.parts:
        stock, vllm = others
        ways = [
            requesting(STOCK, stock),
            requesting(OURS, ours),
            requesting(OURS_BATCHED, ours, batched=True),
            requesting(VLLM, vllm),
        ]
        # The prompts come into the prefix caches, so that the engines have little to do with them from then on.
        for name, one in ways:
            say(f"warming up, {name}")
            uvloop.run(one(1))
        results.tokenising = tokenising_microseconds(measures.prompts())
    for number in range(sizes.rounds):
        if "vllm" in sizes.parts:
            say(f"round {number + 1} of {sizes.rounds}, vLLM")
            _in_turn(number, [streaming(BATCHED), streaming(PER_REQUEST)], results.vllm, results.problems, "vllm")
        if ways:
            say(f"round {number + 1} of {sizes.rounds}, requests")
            _in_turn(number, ways, results.requests, results.problems, "requests")


def _warm_up(url: str, cpu: Cpu, asked: Sequence[measures.Asked]) -> None:
    for batched in (True, False):
        uvloop.run(measures.whole_cost(url, cpu, asked, batched=batched))


def _in_turn(
    number: int,
    ways: Sequence[_Way[_Measure]],
    results: dict[str, list[_Measure]],
    problems: dict[str, str],
    part: str,
) -> None:
    """One measure of each, in an order that turns round from one round to the next."""
    if part in problems:
        return
    try:
        found = {name: _run(one) for name, one in (ways if number % 2 == 0 else ways[::-1])}
    except (WrongAnswer, TooSlow) as problem:
        problems[part] = str(problem)
        return
    for name, _ in ways:
        results.setdefault(name, []).append(found[name])


def _run(measure_one: Callable[[float], Coroutine[Any, Any, _Measure]]) -> _Measure:
    """A pause of the machine spoils a measure: it is made again, with more patience."""
    for patience in _PATIENCE[:-1]:
        try:
            return uvloop.run(measure_one(patience))
        except TooSlow:
            continue
    return uvloop.run(measure_one(_PATIENCE[-1]))
