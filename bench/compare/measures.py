"""The measurements: the same load on every server, its answers checked, and what that took of the server.

A server is asked in its own format, and answers the same tokens: nginx passes Triton's bytes on, the gateway makes
OpenAI's of them.
"""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from bench.compare.servers import Server
from bench.load.check import Outcome
from bench.load.client import Client
from bench.load.report import percentile
from bench.load.run import ClosedLoop, Limit, run
from bench.load.workloads import Expected, Format, Request, Shape, Workload, chat_request, messages
from bench.upstream.running import Upstream
from bench.upstream.script import Model, answer_text

CHAT = Shape(prompt_bytes=3_600, answer_tokens=1, messages=6)
"""A chat of some turns: a body of 4 KB."""

_POLL_SECONDS = 0.05
_SETTLE_SECONDS = 0.3


class WrongAnswer(Exception):
    """A server's answer is not what it must be: its costs are of no interest."""


class TooSlow(Exception):
    """The machine could not keep the pace, so that there is nothing to tell."""


@dataclass(frozen=True, slots=True)
class TokenCost:
    """CPU of a server's processes per token while all streams are open. `joined` is the share of tokens that came to
    the client in one read with the one before."""

    microseconds: float
    tokens: int
    joined: float


@dataclass(frozen=True, slots=True)
class RequestCost:
    """CPU of a server's processes per request of one token, and how many there were a second."""

    microseconds: float
    per_second: float


@dataclass(frozen=True, slots=True)
class Burst:
    """Of streams that begin at once. Times to the first token are in seconds, memory in bytes, for each open stream."""

    ttft_p50: float
    ttft_p99: float
    memory_per_stream: float


@dataclass(frozen=True, slots=True)
class SlowReaders:
    """The 99th percentile of the times between tokens of those who read, in seconds, without and with slow readers
    beside them; and what a slow reader costs, in bytes."""

    itl_without: float
    itl_with: float
    memory_per_reader: float


def request(server: Server, model: Model, shape: Shape, number: int) -> Request:
    """The same chat for every server. Of the answer every token is known."""
    tokens = shape.answer_tokens
    expected = Expected(answer_text(model, tokens), tokens, tokens, "length")
    if server.format is Format.TRITON:
        return Request(
            "", f"/v2/models/{model.name}/generate_stream", _triton_body(shape, number), Format.TRITON, expected
        )
    asked = chat_request("", model.name, shape, number, usage=False)
    if server.format is Format.WHOLE:
        return Request("", asked.path, asked.body, Format.WHOLE)
    return Request("", asked.path, asked.body, server.format, expected)


def _triton_body(shape: Shape, number: int) -> bytes:
    """As the gateway asks Triton."""
    inputs = {
        "id": f"chatcmpl-{number:032}",
        "text_input": "".join(f"<|start|>{one['role']}\n{one['content']}<|end|>\n" for one in messages(shape, number)),
        "stream": True,
        "exclude_input_in_output": True,
        "return_finish_reason": True,
        "return_num_input_tokens": True,
        "return_num_output_tokens": True,
        "send_admission": True,
        "sampling_parameters": orjson.dumps({"max_tokens": shape.answer_tokens}).decode(),
    }
    return orjson.dumps(inputs)


async def token_cost(
    server: Server, upstream: Upstream, model: Model, streams: int, seconds: float, patience: float
) -> TokenCost:
    """CPU per token within so many seconds in which all streams are open. The answers are longer by what opening them
    may take, times `patience`. Raises WrongAnswer, TooSlow."""
    tokens = math.ceil(model.tokens_per_second * (seconds + patience * (1 + 1.5 * streams / 256)))
    shape = Shape(prompt_bytes=200, answer_tokens=tokens)
    asked = [request(server, model, shape, number) for number in range(streams)]
    client = Client(server.url)
    await client.connect(streams)
    asking = [asyncio.ensure_future(client.ask(one)) for one in asked]
    try:
        await _until_open(server, upstream, streams, asking)
        await asyncio.sleep(_SETTLE_SECONDS)
        began, before = server.cpu_time, upstream.stats()
        await asyncio.sleep(seconds)
        cpu, after = server.cpu_time.since(began), upstream.stats()
        outcomes = await asyncio.gather(*asking)
    finally:
        client.close()
    _check(server, outcomes)
    if after.streams != streams:
        raise TooSlow(f"{server.name} had not {streams} streams open for {seconds:g} s")
    sent = after.tokens - before.tokens
    joined = sum(outcome.joined for outcome in outcomes) / sum(outcome.chunks for outcome in outcomes)
    return TokenCost(1e6 * cpu / sent, sent, joined)


async def request_cost(server: Server, model: Model, count: int, concurrency: int) -> RequestCost:
    """CPU per request of a chat of 4 KB that is answered by one token. Raises WrongAnswer."""
    pool = Workload("", [request(server, model, CHAT, number) for number in range(64)])
    client = Client(server.url)
    try:
        _check(server, (await run(client, pool, ClosedLoop(concurrency), Limit(2 * concurrency))).outcomes)
        began = server.cpu_time
        done = await run(client, pool, ClosedLoop(concurrency), Limit(count))
        cpu = server.cpu_time.since(began)
    finally:
        client.close()
    _check(server, done.outcomes)
    return RequestCost(1e6 * cpu / count, count / done.seconds)


async def burst(server: Server, upstream: Upstream, model: Model, streams: int, patience: float) -> Burst:
    """So many chats of 4 KB at once, on connections that are open already. Raises WrongAnswer, TooSlow."""
    tokens = math.ceil(model.tokens_per_second * patience * (1 + 3 * streams / 1024))
    shape = Shape(CHAT.prompt_bytes, tokens, CHAT.messages)
    asked = [request(server, model, shape, number) for number in range(streams)]
    client = Client(server.url)
    memory = server.memory_bytes
    await client.connect(streams)
    asking = [asyncio.ensure_future(client.ask(one)) for one in asked]
    try:
        await _until_open(server, upstream, streams, asking)
        await asyncio.sleep(_SETTLE_SECONDS)
        memory = server.memory_bytes - memory
        outcomes = await asyncio.gather(*asking)
    finally:
        client.close()
    _check(server, outcomes)
    times = sorted(outcome.ttft for outcome in outcomes if outcome.ttft is not None)
    return Burst(percentile(times, 0.5), percentile(times, 0.99), memory / streams)


async def slow_readers(
    server: Server, model: Model, flood: Model, streams: int, slow: int, seconds: float
) -> SlowReaders:
    """Streams that are read, first alone, then beside some of a `flood` that nobody reads. Raises
    WrongAnswer."""
    without = await _itl(server, model, streams - slow, seconds)
    memory = server.memory_bytes
    asked = request(server, flood, Shape(200, flood.most_tokens), 0)
    readers = [await _Silent.ask(server.url, asked) for _ in range(slow)]
    try:
        with_them = await _itl(server, model, streams - slow, seconds)
        # What the streams beside them took is given back by now, or is still there: it counts.
        memory = server.memory_bytes - memory
        for reader in readers:
            if not reader.has_answer:
                raise WrongAnswer(f"{server.name} gave a slow reader no answer")
    finally:
        for reader in readers:
            reader.close()
    return SlowReaders(without, with_them, memory / slow)


async def memory_growth(server: Server, model: Model, count: int, concurrency: int) -> int:
    """Bytes gained from a tenth of the requests to all of them. Raises WrongAnswer."""
    await request_cost(server, model, count // 10, concurrency)
    before = server.memory_bytes
    await request_cost(server, model, count - count // 10, concurrency)
    return server.memory_bytes - before


async def _itl(server: Server, model: Model, streams: int, seconds: float) -> float:
    shape = Shape(prompt_bytes=200, answer_tokens=math.ceil(model.tokens_per_second * seconds))
    client = Client(server.url)
    try:
        outcomes = await asyncio.gather(
            *(client.ask(request(server, model, shape, number)) for number in range(streams))
        )
    finally:
        client.close()
    _check(server, outcomes)
    return percentile(sorted(gap for outcome in outcomes for gap in outcome.gaps), 0.99)


class _Silent(asyncio.Protocol):
    """A client that asks and then reads no more than the answer's beginning."""

    def __init__(self) -> None:
        self.has_answer = False
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def ask(cls, url: str, asked: Request) -> "_Silent":
        host, _, port = url.removeprefix("http://").partition(":")
        _, reader = await asyncio.get_running_loop().create_connection(cls, host, int(port))
        head = f"POST {asked.path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        assert reader._transport is not None
        reader._transport.write(f"{head}Content-Length: {len(asked.body)}\r\n\r\n".encode() + asked.body)
        return reader

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self.has_answer = self.has_answer or data.startswith(b"HTTP/1.1 200")
        assert self._transport is not None
        self._transport.pause_reading()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


async def _until_open(
    server: Server, upstream: Upstream, streams: int, asking: Sequence[asyncio.Future[Outcome]]
) -> None:
    """Until all streams are open upstream."""
    while (await asyncio.to_thread(upstream.stats)).streams < streams:
        if any(one.done() for one in asking):
            wrong = next((one.result().error for one in asking if one.done() and one.result().error), "")
            for one in asking:
                one.cancel()
            if wrong:
                raise WrongAnswer(f"{server.name}: {wrong}")
            raise TooSlow(f"the first streams ended before all {streams} were open")
        await asyncio.sleep(_POLL_SECONDS)


def _check(server: Server, outcomes: Sequence[Outcome]) -> None:
    wrong = [outcome for outcome in outcomes if not outcome.is_right]
    if wrong:
        raise WrongAnswer(f"{server.name}: {len(wrong)} of {len(outcomes)} answers are wrong: {wrong[0].error}")
