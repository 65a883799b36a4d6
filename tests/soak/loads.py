"""What the soak's clients do, over and over: one function for one action of one client, with its weight in `LOADS`.

An action asks, judges what it gets (`Stage.judge…`) and returns; what must never be goes into `stage.wrong`. To add a
load of one's own: a function here, or in a module that this one imports, and a row in `LOADS`.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable

import aiohttp

from tests.soak.stage import TOKEN_MS, Stage

Load = Callable[[Stage, random.Random], Awaitable[None]]

_PROMPTS = [f"Tell me about the number {number}." for number in range(8)]
_LENGTHS = (1, 7, 30, 60)
# An engine that was killed; a queue that is full.
_PASSING = (503, 429)


def _question(rng: random.Random) -> tuple[str, int]:
    return rng.choice(_PROMPTS), rng.choice(_LENGTHS)


def _body(stage: Stage, prompt: str, count: int, *, stream: bool) -> dict[str, object]:
    body: dict[str, object] = {"model": stage.model, "prompt": prompt, "max_tokens": count, "ignore_eos": True}
    return body | {"stream": True, "stream_options": {"include_usage": True}} if stream else body


async def whole(stage: Stage, rng: random.Random) -> None:
    """A whole answer."""
    prompt, count = _question(rng)
    async with stage.asks("/v1/completions", _body(stage, prompt, count, stream=False)) as answer:
        if answer.status != 200:
            stage.judge_refusal("whole", answer.status, await answer.read(), *_PASSING)
            return
        text = (await answer.json())["choices"][0]["text"]
        stage.judge("whole", text, stage.expected[prompt, count])


async def streamed(stage: Stage, rng: random.Random) -> None:
    """A stream, read as it comes."""
    prompt, count = _question(rng)
    async with stage.asks("/v1/completions", _body(stage, prompt, count, stream=True)) as answer:
        data = await answer.read()
        if answer.status != 200:
            stage.judge_refusal("streamed", answer.status, data, *_PASSING)
        else:
            stage.judge_stream("streamed", data, stage.expected[prompt, count], count)


async def chat_with_choices(stage: Stage, rng: random.Random) -> None:
    """Several choices of a chat, each of which ends."""
    body = {"model": stage.model, "messages": [{"role": "user", "content": rng.choice(_PROMPTS)}], "n": 3}
    async with stage.asks("/v1/chat/completions", body | {"max_tokens": 5}) as answer:
        if answer.status != 200:
            stage.judge_refusal("chat", answer.status, await answer.read(), *_PASSING)
            return
        choices = (await answer.json())["choices"]
        stage.judge("chat", str([choice["index"] for choice in choices]), "[0, 1, 2]")


async def slow_reader(stage: Stage, rng: random.Random) -> None:
    """A stream whose client reads a little now and then, and then all the rest."""
    prompt, count = rng.choice(_PROMPTS), _LENGTHS[-1]
    async with stage.asks("/v1/completions", _body(stage, prompt, count, stream=True)) as answer:
        if answer.status != 200:
            stage.judge_refusal("slow", answer.status, await answer.read(), *_PASSING)
            return
        data = b""
        for _ in range(rng.randrange(1, 5)):
            await asyncio.sleep(rng.uniform(0.1, 0.5))
            data += await answer.content.read(100)
        data += await answer.content.read()
        stage.judge_stream("slow", data, stage.expected[prompt, count], count)


async def goes_away(stage: Stage, rng: random.Random) -> None:
    """A client that closes its connection at any moment."""
    prompt, count = rng.choice(_PROMPTS), _LENGTHS[-1]
    patience = rng.uniform(0, count * TOKEN_MS / 1000)
    try:
        async with asyncio.timeout(patience):
            async with stage.asks("/v1/completions", _body(stage, prompt, count, stream=rng.random() < 0.6)) as answer:
                await answer.read()
    except TimeoutError:
        stage.outcomes["went away"] += 1


async def engine_error(stage: Stage, rng: random.Random) -> None:
    """The engine refuses, fails in the middle, or is gone in the middle: always an explicit error."""
    fault = rng.choice(("error-first", "error-later", "drop-later"))
    stream = rng.random() < 0.6
    async with stage.asks("/v1/completions", _body(stage, fault, 30, stream=stream)) as answer:
        data = await answer.read()
        if answer.status != 200:
            stage.judge_refusal(fault, answer.status, data, 500, *_PASSING)
        elif b'"error"' in data and data.endswith(b"data: [DONE]\n\n"):
            stage.outcomes["engine error in a stream"] += 1
        else:
            stage.wrong.append(f"{fault}: no error: {data[-200:]!r}")


async def wrong_key(stage: Stage, rng: random.Random) -> None:
    async with stage.asks("/v1/completions", {"model": stage.model}, "gw-00000000-" + "A" * 43) as answer:
        stage.judge_refusal("wrong key", answer.status, await answer.read(), 401)


async def limited_key(stage: Stage, rng: random.Random) -> None:
    """A key with few requests a minute: an answer, or 429 and when to come again."""
    prompt, count = rng.choice(_PROMPTS), _LENGTHS[0]
    async with stage.asks("/v1/completions", _body(stage, prompt, count, stream=False), "limited") as answer:
        data = await answer.read()
        if answer.status == 200:
            stage.outcomes["within the limit"] += 1
        else:
            stage.judge_refusal("limited", answer.status, data, *_PASSING)
            if answer.status == 429 and not answer.headers.get("retry-after", "").isdigit():
                stage.wrong.append("a 429 without Retry-After")


async def mistake(stage: Stage, rng: random.Random) -> None:
    body = rng.choice(({"model": "none", "prompt": "a"}, {"model": stage.model, "prompt": "a", "temperature": -1}))
    async with stage.asks("/v1/completions", body) as answer:
        stage.judge_refusal("mistake", answer.status, await answer.read(), 400, 404)


LOADS: dict[Load, int] = {
    streamed: 30,
    whole: 20,
    chat_with_choices: 8,
    slow_reader: 8,
    goes_away: 15,
    engine_error: 8,
    wrong_key: 3,
    limited_key: 4,
    mistake: 4,
}


async def prepare(stage: Stage) -> None:
    """Learn the right answers."""
    for prompt in _PROMPTS:
        for count in _LENGTHS:
            await stage.learn(prompt, count)


async def client(stage: Stage, rng: random.Random, end: float) -> None:
    """One client after the other, until the loop's time is `end`."""
    loop = asyncio.get_running_loop()
    while loop.time() < end:
        (load,) = rng.choices(list(LOADS), list(LOADS.values()))
        try:
            await load(stage, rng)
        except aiohttp.ClientError as error:
            stage.wrong.append(f"{getattr(load, '__name__', load)}: {error!r}")
