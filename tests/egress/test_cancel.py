"""A client that goes away at any moment of its request's life: the engine is free of it, and nobody else notices."""

import contextlib

import httpx
import pytest

from bench.synthetic.script import Script
from devtools.models import TINY
from devtools.stack import Stack
from tests.egress.conftest import gateway_before
from tests.support.egress_proxy import EgressProxy
from tests.support.streams import ask, asking, cancelled, chat, chats, until, until_batched, wrong

WHEN = {
    "before acceptance": Script(admission_seconds=1.5),
    "before the first token": Script(wait=1_000_000),
    "in mid-stream": Script(pace=10),
}


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("when", WHEN)
async def test_cancelled(when: str, stream: bool, triton: Stack, proxy: EgressProxy) -> None:
    log = triton.service("triton").log
    before = len(cancelled(log))
    with gateway_before(proxy.url, triton) as gateway:
        await until_batched(gateway)
        async with asking(gateway.url, chats(8, 400)) as others:
            body = {
                "model": TINY,
                "messages": [{"role": "user", "content": WHEN[when].prompt()}],
                "max_tokens": 4000,
                "stream": stream,
            }
            with contextlib.suppress(httpx.ReadTimeout):
                async with (
                    httpx.AsyncClient(timeout=0.5) as client,
                    client.stream("POST", f"{gateway.url}/v1/chat/completions", json=body) as answer,
                ):
                    # The head of a stream comes with the admission, a whole answer's at its end.
                    assert stream
                    assert when != "before acceptance"
                    assert answer.status_code == 200
                    if when == "in mid-stream":
                        texts = answer.aiter_text()
                        while "content" not in await anext(texts):
                            pass
            await until(lambda: len(cancelled(log)) > before, "the cancellation")
            assert wrong(await others) == []
        assert wrong(await ask(gateway.url, chat(Script(first=7), 20))) == []
    assert len(cancelled(log)) == before + 1


async def test_cancelled_after_the_end(triton: Stack, proxy: EgressProxy) -> None:
    """A client that closes when it has its answer, and one that closes while the request's own stream may still wait
    for its final: there is nothing to cancel."""
    log = triton.service("triton").log
    before = len(cancelled(log))
    with gateway_before(proxy.url, triton) as gateway:
        await until_batched(gateway)
        for number in range(30):
            assert wrong(await ask(gateway.url, chat(Script(first=number), 1 + number))) == []
        async with asking(gateway.url, chats(32, 60)) as outcomes:
            assert wrong(await outcomes) == []
    assert len(cancelled(log)) == before
    assert triton.service("triton").exit_code is None


async def test_all_at_once(triton: Stack, proxy: EgressProxy) -> None:
    log = triton.service("triton").log
    before = len(cancelled(log))
    with gateway_before(proxy.url, triton) as gateway:
        await until_batched(gateway)
        async with asking(gateway.url, chats(32, 300)) as others:
            async with asking(gateway.url, chats(32, 4000, begin=32)):
                await until(lambda: proxy.seen.answered() > 64, "the streams")
            await until(lambda: len(cancelled(log)) == before + 32, "32 cancellations")
            assert wrong(await others) == []
        await until(lambda: len([own for own in proxy.seen.own if own.tokens == 300]) == 32, "the finals of the others")
