"""What becomes of open streams when the model's process dies, the engine dies, the model is unloaded, or tritonserver
is to stop; and that the model comes back."""

import asyncio
import os
import signal
import time

from bench.synthetic.script import Script
from devtools.stack import Stack
from tests.egress.conftest import backend_of, gateway_before
from tests.support.backend import Backend
from tests.support.egress_proxy import EgressProxy, running_egress_proxy
from tests.support.gateway import Gateway
from tests.support.processes import stub_of
from tests.support.streams import ask, asking, chat, chats, silently_wrong, until, until_answered, until_batched, wrong

_STOP_SECONDS = 6.0
"""From the last stream's end until tritonserver is down."""


async def _loaded_again(backend: Backend, gateway: Gateway) -> None:
    """The model is unloaded; it is loaded again, and the gateway uses it as before."""
    await until(lambda: not backend.is_ready, "the unloading")
    await asyncio.to_thread(backend.load)
    # The gateway learns of it when it looks at the model the next time, and of the new one's hello with a request.
    await until_answered(gateway)
    batched = gateway.metric("gateway_generations_total", path="batched")
    assert wrong(await ask(gateway.url, *chats(16, 100))) == []
    assert gateway.metric("gateway_generations_total", path="batched") == batched + 16


async def test_the_models_process_is_killed(triton: Stack, proxy: EgressProxy, backend: Backend) -> None:
    """Every stream says so; the model can be loaded again. Triton does not notice by itself."""
    with gateway_before(proxy.url, triton, "--stall-timeout", "3") as gateway:
        await until_batched(gateway)
        async with asking(gateway.url, chats(16, 4000)) as outcomes:
            await until(lambda: proxy.seen.answered() > 16, "the streams")
            os.kill(stub_of(triton.service("triton")), signal.SIGKILL)
            ended = await outcomes
        assert len(wrong(ended)) == 16
        assert silently_wrong(ended) == []
        # Triton still takes it for loaded.
        await asyncio.to_thread(backend.unload)
        await _loaded_again(backend, gateway)


async def test_the_engine_dies(triton: Stack, proxy: EgressProxy, backend: Backend) -> None:
    """Every stream says so."""
    with gateway_before(proxy.url, triton) as gateway:
        await until_batched(gateway)
        async with asking(gateway.url, [*chats(16, 4000), chat(Script(die_after=40), 60)]) as outcomes:
            ended = await outcomes
        assert len(wrong(ended)) == 17
        assert silently_wrong(ended) == []
        await _loaded_again(backend, gateway)


async def test_a_request_that_fails(triton: Stack, proxy: EgressProxy) -> None:
    """Says so behind what it had; the others go on."""
    with gateway_before(proxy.url, triton) as gateway:
        await until_batched(gateway)
        failing = [chat(Script(first=number, fail_after=20), 60) for number in range(4)]
        async with asking(gateway.url, [*chats(8, 100), *failing]) as outcomes:
            ended = await outcomes
        assert wrong(ended[:8]) == []
        assert len(wrong(ended[8:])) == 4
        assert silently_wrong(ended[8:]) == []
        assert {outcome.chunks for outcome in ended[8:]} <= set(range(1, 21))


async def test_the_model_is_unloaded_under_open_streams(triton: Stack, proxy: EgressProxy, backend: Backend) -> None:
    """Triton lets them end; the subscription does not keep the model."""
    with gateway_before(proxy.url, triton) as gateway:
        await until_batched(gateway)
        async with asking(gateway.url, chats(16, 300)) as outcomes:
            await until(lambda: proxy.seen.answered() > 16, "the streams")
            await asyncio.to_thread(backend.unload)
            ended = await outcomes
        assert silently_wrong(ended) == []
        await _loaded_again(backend, gateway)


async def test_tritonserver_stops_with_sixty_four_open_streams(fresh_triton: Stack) -> None:
    """The streams come to their ends, and soon after the last of them it is down."""
    service = fresh_triton.service("triton")
    with running_egress_proxy(fresh_triton.triton_url) as proxy, gateway_before(proxy.url, fresh_triton) as gateway:
        await until_batched(gateway)
        async with asking(gateway.url, chats(64, 700)) as outcomes:
            await until(lambda: proxy.seen.answered() > 64, "the streams")
            service.ask_to_stop()
            ended = await outcomes
            last = time.monotonic()
        assert wrong(ended) == []
        assert await asyncio.to_thread(service.wait) == 0
        assert time.monotonic() - last < _STOP_SECONDS


async def test_tritonserver_stops_when_nothing_is_asked_any_more(fresh_triton: Stack) -> None:
    """A gateway that has asked before does not hold it up."""
    service = fresh_triton.service("triton")
    backend = backend_of(fresh_triton)
    assert backend.is_ready
    backend.close()
    with gateway_before(fresh_triton.triton_url, fresh_triton) as gateway:
        await until_batched(gateway)
        assert wrong(await ask(gateway.url, *chats(16, 20))) == []
        began = time.monotonic()
        assert await asyncio.to_thread(service.stop) == 0
        assert time.monotonic() - began < _STOP_SECONDS
