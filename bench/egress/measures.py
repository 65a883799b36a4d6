"""The measurements: the same streams with and without batched egress, their answers checked, and what they took of the
servers' CPU."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import orjson

from bench.compare.usage import CpuTime
from bench.egress.client import Connection, Streamed, Subscriber, WrongAnswer, read_chat, read_responses, read_rows
from bench.egress.servers import Serving
from bench.load.report import percentile
from bench.load.stream import Answer
from bench.load.workloads import CHAT_PATH, COMPLETIONS_PATH, Shape, messages
from bench.synthetic.script import TOKENS, Script
from devtools.models import TINY

GENERATE_PATH = f"/v2/models/{TINY}/generate_stream"
PROMPT = Shape(prompt_bytes=4_000, answer_tokens=1)
"""Of a request that is nearly all prompt."""

_PROMPTS = 64
_SETTLE_SECONDS = 0.5
_POLL_SECONDS = 0.1
_QUIET_SECONDS = 8.0


class TooSlow(Exception):
    """Streams ended before all that was to be measured."""


@dataclass(frozen=True, slots=True)
class StreamCost:
    """CPU in microseconds per token: of the server's processes but the engine's, and of the engine's. Times in
    seconds. `short` is the share of streams that Triton ended without their last tokens."""

    microseconds: float
    engine_microseconds: float
    tokens_per_second: float
    ttft_p50: float
    ttft_p99: float
    itl_p50: float
    itl_p99: float
    short: float


@dataclass(frozen=True, slots=True)
class RequestCost:
    """CPU in microseconds per request, as `StreamCost`'s."""

    microseconds: float
    engine_microseconds: float
    per_second: float


@dataclass(frozen=True, slots=True)
class Asked:
    """One stream to be measured. `text` is what its answer must be, where that is known."""

    path: str
    inputs: dict[str, Any]
    tokens: int
    text: str | None


Cpu = Callable[[], tuple[CpuTime, CpuTime]]
"""Of the server's processes: those but the engine's, and the engine's."""


def cpu_of(serving: Serving) -> Cpu:
    return lambda: (serving.cpu_time(), serving.cpu_time(engine=True))


def synthetic(streams: int, tokens: int, step_milliseconds: float, *, chat: bool = False) -> list[Asked]:
    """Streams with the synthetic engine, one token each in each of its steps."""
    scripts = [Script(first=n * 37 % TOKENS, step_milliseconds=step_milliseconds) for n in range(streams)]
    return [
        _asked_chat(one.prompt(), tokens, one.text(tokens)) if chat else asked(one.prompt(), tokens, one.text(tokens))
        for one in scripts
    ]


def random_model(streams: int, tokens: int) -> list[Asked]:
    """Streams with vLLM and the tiny random model, whose text nobody knows."""
    return [asked(f"Prompt {number}", tokens, None, ignore_eos=True, temperature=1.0) for number in range(streams)]


def asked(prompt: str, tokens: int, text: str | None, **sampling: Any) -> Asked:
    """As the gateway asks Triton."""
    inputs = {
        "text_input": prompt,
        "stream": True,
        "exclude_input_in_output": True,
        "return_finish_reason": True,
        "return_num_input_tokens": True,
        "return_num_output_tokens": True,
        "send_admission": True,
        "sampling_parameters": orjson.dumps({"max_tokens": tokens} | sampling).decode(),
    }
    return Asked(GENERATE_PATH, inputs, tokens, text)


def _asked_chat(prompt: str, tokens: int, text: str) -> Asked:
    body = {"model": TINY, "messages": [{"role": "user", "content": prompt}], "max_tokens": tokens, "stream": True}
    return Asked(CHAT_PATH, body, tokens, text)


async def window_cost(
    url: str, cpu: Cpu, asked: Sequence[Asked], seconds: float, *, batched: bool = False
) -> StreamCost:
    """Per token within so many seconds in which all streams are open. Raises WrongAnswer, TooSlow."""
    async with _open(url, asked, batched=batched) as streams:
        await asyncio.sleep(_SETTLE_SECONDS)
        begin, before = time.perf_counter(), cpu()
        await asyncio.sleep(seconds)
        end, after = time.perf_counter(), cpu()
        if any(connection.is_over for connection in streams.connections):
            raise TooSlow(f"the first streams ended within {seconds:g} s")
        ended = await streams.read()
    within = [
        (at, tokens) for one in ended for at, tokens in zip(one.times, one.tokens, strict=True) if begin <= at < end
    ]
    return _cost(ended, before, after, sum(tokens for _, tokens in within), end - begin)


async def whole_cost(url: str, cpu: Cpu, asked: Sequence[Asked], *, batched: bool = False) -> StreamCost:
    """Per token over all of the streams' life, their beginning and end included. Raises WrongAnswer."""
    before = cpu()
    async with _open(url, asked, batched=batched) as streams:
        ended = await streams.read()
        after = cpu()
    first, last = min(one.times[0] for one in ended), max(one.times[-1] for one in ended)
    return _cost(ended, before, after, sum(sum(one.tokens) for one in ended), last - first)


def _cost(
    ended: Sequence[Streamed],
    before: tuple[CpuTime, CpuTime],
    after: tuple[CpuTime, CpuTime],
    tokens: int,
    seconds: float,
) -> StreamCost:
    ttft = sorted(one.ttft for one in ended)
    gaps = sorted(gap for one in ended for gap in one.gaps)
    used = [1e6 * now.since(then) / tokens for then, now in zip(before, after, strict=True)]
    return StreamCost(
        used[0],
        used[1],
        tokens / seconds,
        percentile(ttft, 0.5),
        percentile(ttft, 0.99),
        percentile(gaps, 0.5),
        percentile(gaps, 0.99),
        sum(one.finish_reason is None for one in ended) / len(ended),
    )


class _Streams:
    """Streams that are all accepted."""

    def __init__(
        self,
        asked: Sequence[Asked],
        connections: Sequence[Connection],
        began: Sequence[float],
        numbers: Sequence[int],
        subscriber: Subscriber | None,
    ) -> None:
        self.connections = connections
        self._asked = asked
        self._began = began
        self._numbers = numbers
        self._subscriber = subscriber

    async def read(self) -> list[Streamed]:
        """All, at their ends. Raises WrongAnswer."""
        if self._subscriber is None:
            answers = await self._responses()
        else:
            answers = await asyncio.gather(*(connection.until_ended() for connection in self.connections))
        if self._subscriber is not None:
            rows = self._subscriber.rows()
            ended = [
                read_rows(rows.get(number, ()), answer, began)
                for number, answer, began in zip(self._numbers, answers, self._began, strict=True)
            ]
        else:
            ended = [
                (read_chat if one.path == CHAT_PATH else read_responses)(answer, began)
                for one, answer, began in zip(self._asked, answers, self._began, strict=True)
            ]
        for one, wanted in zip(ended, self._asked, strict=True):
            self._check(one, wanted)
        return ended

    async def _responses(self) -> list[Answer]:
        """An overloaded tritonserver may also never end a stream: one waits no longer when nothing comes any more."""
        connections = self.connections
        while any(not connection.is_over for connection in connections):
            if time.perf_counter() - max(connection.times[-1] for connection in connections) > _QUIET_SECONDS:
                break
            await asyncio.sleep(_POLL_SECONDS)
        answers = [
            await connection.until_ended() if connection.is_over else connection.so_far() for connection in connections
        ]
        if None in answers:
            raise WrongAnswer("a stream did not begin")
        return [answer for answer in answers if answer is not None]

    def _check(self, one: Streamed, wanted: Asked) -> None:
        """An overloaded tritonserver ends streams whose last responses it has not sent, with nothing to tell it but
        the lacking finish reason. By batched egress that is as wrong as everything else; without, it is counted."""
        tokens, text = sum(one.tokens), wanted.text
        if one.finish_reason is None and self._subscriber is None and tokens < wanted.tokens:
            if text is not None:
                text = text[: len(one.text)]
        elif tokens != wanted.tokens or one.finish_reason != "length":
            raise WrongAnswer(f"{tokens} tokens of {wanted.tokens}, finish reason {one.finish_reason}")
        if text is not None and one.text != text:
            raise WrongAnswer("an answer's text is not what it must be")


@asynccontextmanager
async def _open(url: str, asked: Sequence[Asked], *, batched: bool) -> AsyncIterator[_Streams]:
    """All at once, on connections that are open already."""
    async with AsyncExitStack() as stack:
        connections = await asyncio.gather(*(Connection.to(url) for _ in asked))
        for connection in connections:
            stack.callback(connection.close)
        subscriber = await stack.enter_async_context(Subscriber(url, TINY)) if batched else None
        began, numbers = [], []
        for connection, one in zip(connections, asked, strict=True):
            number, more = subscriber.inputs() if subscriber is not None else (0, {})
            began.append(time.perf_counter())
            numbers.append(number)
            connection.send(one.path, one.inputs | more)
        await asyncio.gather(*(connection.until_begun() for connection in connections))
        yield _Streams(asked, connections, began, numbers, subscriber)


def prompts() -> list[str]:
    """Different from their first words on."""
    return ["".join(one["content"] for one in messages(PROMPT, number)) for number in range(_PROMPTS)]


def prompt_requests(*, completions: bool) -> list[Asked]:
    """Nearly all prompt, with one token to answer: as Triton is asked, or vLLM's own server."""
    if not completions:
        return [asked(prompt, 1, None, ignore_eos=True) for prompt in prompts()]
    common = {"model": TINY, "max_tokens": 1, "ignore_eos": True, "stream": True}
    return [Asked(COMPLETIONS_PATH, common | {"prompt": prompt}, 1, None) for prompt in prompts()]


async def request_cost(
    url: str, cpu: Cpu, pool: Sequence[Asked], count: int, concurrency: int, *, batched: bool = False
) -> RequestCost:
    """So many requests, of which so many are always in flight. An answer by batched egress is over when the row with
    its end has come. Raises WrongAnswer."""
    async with AsyncExitStack() as stack:
        subscriber = await stack.enter_async_context(Subscriber(url, TINY)) if batched else None
        idle: list[Connection] = []
        ending: set[asyncio.Task[None]] = set()

        def close() -> None:
            for connection in idle:
                connection.close()

        stack.callback(close)
        left = iter(range(count))

        async def take_back(connection: Connection) -> None:
            answer = await connection.until_ended()
            _check_end(answer.events[-1 - (answer.events[-1][0] == b"[DONE]")][0])
            idle.append(connection)

        async def work() -> None:
            for number in left:
                one = pool[number % len(pool)]
                connection = idle.pop() if idle else await Connection.to(url)
                if subscriber is None:
                    connection.send(one.path, one.inputs)
                    await take_back(connection)
                else:
                    stream, more = subscriber.inputs()
                    finished = subscriber.until_finished(stream)
                    connection.send(one.path, one.inputs | more)
                    task = asyncio.create_task(take_back(connection))
                    ending.add(task)
                    await finished

        began, before = time.perf_counter(), cpu()
        await asyncio.gather(*(work() for _ in range(concurrency)))
        seconds = time.perf_counter() - began
        await asyncio.gather(*ending)
        after = cpu()
    used = [1e6 * now.since(then) / count for then, now in zip(before, after, strict=True)]
    return RequestCost(used[0], used[1], count / seconds)


def _check_end(payload: bytes) -> None:
    event = orjson.loads(payload)
    reason = event["choices"][0]["finish_reason"] if "choices" in event else event.get("finish_reason")
    if reason != "length":
        raise WrongAnswer(f"the answer ends with {payload[:300]!r}")


def window_tokens(seconds: float, step_milliseconds: float, streams: int, patience: float) -> int:
    """How long answers must be that a window of so many seconds lies within them."""
    opening = patience * (1 + streams / 256)
    return math.ceil((seconds + _SETTLE_SECONDS + opening) * 1000 / step_milliseconds)
