"""A gateway that is killed or stalls while streams are open, two of them on one Triton, and a plain client beside."""

import asyncio
import os
import signal

from bench.synthetic.script import Script
from devtools.stack import Stack
from tests.egress.conftest import gateway_before
from tests.support.backend import Backend, sampling, text_of
from tests.support.egress_proxy import EgressProxy
from tests.support.streams import ask, asking, cancelled, chat, chats, until, until_batched, wrong

_STALL_SECONDS = 8.0
"""Longer than anything waits for an acknowledgement, shorter than the backend's lease."""


async def test_a_killed_gateway_leaves_nothing_behind(triton: Stack, proxy: EgressProxy) -> None:
    log = triton.service("triton").log
    before = len(cancelled(log))
    with gateway_before(proxy.url, triton) as gateway:
        await until_batched(gateway)
        async with asking(gateway.url, chats(16, 4000)) as outcomes:
            await until(lambda: gateway.metric("gateway_generations_total", path="batched") >= 16, "16 streams")
            await until(lambda: gateway.metric("gateway_completion_tokens_total") >= 0, "tokens")
            gateway.process.kill()
            assert len(wrong(await outcomes)) == 16
    await until(lambda: len(cancelled(log)) >= before + 16, "the end of 16 requests")
    assert cancelled(log)[-1] == (0, 0)
    with gateway_before(proxy.url, triton) as gateway:
        await until_batched(gateway)


async def test_a_gateway_that_stalls_for_eight_seconds(triton: Stack, proxy: EgressProxy) -> None:
    """Nothing is lost, doubled or garbled, whether a stream has ended meanwhile or goes on."""
    with gateway_before(proxy.url, triton) as gateway:
        await until_batched(gateway)
        requests = [*chats(32, 400), *chats(32, 2400, begin=32)]
        async with asking(gateway.url, requests) as outcomes:
            await until(lambda: proxy.seen.answered() > 64, "the streams")
            os.kill(gateway.process.pid, signal.SIGSTOP)
            try:
                await asyncio.sleep(_STALL_SECONDS)
            finally:
                os.kill(gateway.process.pid, signal.SIGCONT)
            assert wrong(await outcomes) == []
        assert gateway.metric("gateway_generations_total", path="per_request") <= 2


async def test_two_gateways_and_a_plain_client(triton: Stack, proxy: EgressProxy, backend: Backend) -> None:
    """Each gets its own, whole."""
    script = Script(first=1234, multibyte=True)

    def plain() -> str:
        wanted = sampling(max_tokens=400)
        return text_of(backend.stream(text_input=script.prompt(), send_admission=True, sampling_parameters=wanted))

    with gateway_before(proxy.url, triton) as one, gateway_before(proxy.url, triton) as other:
        await until_batched(one)
        await until_batched(other)
        async with asking(one.url, chats(32, 400)) as ours, asking(other.url, chats(32, 400, begin=32)) as theirs:
            texts = await asyncio.gather(*(asyncio.to_thread(plain) for _ in range(4)))
            assert wrong(await ours) == []
            assert wrong(await theirs) == []
        assert {len(wrong(await ask(each.url, chat(Script(), 5)))) for each in (one, other)} == {0}
    assert set(texts) == {script.text(400)}
    assert len({own.subscriber for own in proxy.seen.own}) == 2
