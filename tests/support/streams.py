"""Many streams whose right text is known, for tests that break something meanwhile: what became of each."""

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import orjson

from bench.load.check import Outcome
from bench.load.client import Client
from bench.load.workloads import CHAT_PATH, Expected, Format, Request
from bench.synthetic.script import TOKENS, Script
from devtools.models import TINY
from tests.support.gateway import Gateway
from tests.support.waiting import wait_for

_EXPLICIT = ("the stream ends in an error: ", "status ")


def chat(script: Script, tokens: int) -> Request:
    """A streamed chat with the synthetic engine. Its answer is right if it is the script's, to the last byte."""
    body = {
        "model": TINY,
        "messages": [{"role": "user", "content": script.prompt("Hello ")}],
        "max_tokens": tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    expected = Expected(text=script.text(tokens), tokens=tokens, finish_reason="length")
    return Request("chat", CHAT_PATH, orjson.dumps(body), Format.CHAT, expected)


def chats(count: int, tokens: int, begin: int = 0) -> list[Request]:
    """So many answers that are nowhere alike; a third of them of characters of several bytes, a third with tokens that
    have no text of their own."""
    kinds = (Script(), Script(multibyte=True), Script(silent=3))
    return [
        chat(replace(kinds[number % 3], first=(begin + number) * 61 % TOKENS), tokens) for number in range(count)
    ]


@asynccontextmanager
async def asking(url: str, requests: Sequence[Request]) -> AsyncIterator["asyncio.Future[list[Outcome]]"]:
    """All of them at once, as a future of what becomes of them, in their order."""
    client = Client(url)
    outcomes: asyncio.Future[list[Outcome]] = asyncio.gather(*map(client.ask, requests))
    try:
        yield outcomes
    finally:
        outcomes.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await outcomes
        client.close()


async def until(condition: Callable[[], object], what: str) -> None:
    """`wait_for` beside what else the test's event loop does."""
    await asyncio.to_thread(wait_for, condition, what)


async def ask(url: str, *requests: Request) -> list[Outcome]:
    async with asking(url, requests) as outcomes:
        return await outcomes


async def until_batched(gateway: Gateway) -> None:
    """The gateway's first requests may go without; from now on all are batched."""
    for number in range(100):
        problems = wrong(await ask(gateway.url, chat(Script(first=number), 3)))
        assert not problems, problems
        if gateway.metric("gateway_generations_total", path="batched"):
            return
    raise AssertionError("the gateway does not use batched egress")


async def until_answered(gateway: Gateway) -> None:
    """Until a request gets its right answer, whatever those before it got."""
    give_up_at = time.monotonic() + 90
    while problems := wrong(await ask(gateway.url, chat(Script(first=1), 3))):
        assert time.monotonic() < give_up_at, problems


def cancelled(log: Path) -> list[tuple[int, int]]:
    """Of each request that its client has cancelled, in the log of tritonserver: the requests that were open after it
    in the backend and in the engine."""
    line = r"cancelled by its client .*open: (\d+) in the backend, (\d+) in the engine"
    found = re.findall(line, log.read_text(errors="replace"))
    return [(int(backend), int(engine)) for backend, engine in found]


def wrong(outcomes: Sequence[Outcome]) -> list[str]:
    """What is not right, of each that is not."""
    return [outcome.error for outcome in outcomes if not outcome.is_right]


def silently_wrong(outcomes: Sequence[Outcome]) -> list[str]:
    """The same without those that were told so in their stream, or by their status."""
    return [error for error in wrong(outcomes) if not error.startswith(_EXPLICIT)]
