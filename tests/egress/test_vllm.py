"""The same faults with vLLM: few and short, since what breaks is the same. Nobody knows what a random model says, but
each request's own final tells how long it is."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.egress.client import Connection, Streamed, read_chat
from bench.load.workloads import CHAT_PATH
from devtools.models import TINY
from devtools.stack import Stack, StackConfig
from tests.egress.conftest import backend_of, gateway_before
from tests.support.egress_proxy import EgressProxy, running_egress_proxy
from tests.support.gateway import Gateway
from tests.support.streams import cancelled, until

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

_STREAMS = 64
_TOKENS = 500
_DROPS = 20
_STALL_SECONDS = 8.0
_STOP_SECONDS = 5.0
"""Beside what it takes without a subscription, from the last stream's end until tritonserver is down."""


def _config() -> StackConfig:
    return StackConfig(models={TINY: {}}, gateway=False)


@pytest.fixture(scope="module")
def triton(engine_platform: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    stack = Stack(_config(), tmp_path_factory.mktemp("vllm") / "stack", Path(sys.executable))
    stack.start()
    yield stack
    stack.kill()


async def _begin(gateway: Gateway, streams: int, tokens: int) -> list[Connection]:
    connections = [await Connection.to(gateway.url) for _ in range(streams)]
    for number, connection in enumerate(connections):
        body = {
            "model": TINY,
            "messages": [{"role": "user", "content": f"Stream {number}"}],
            "max_tokens": tokens,
            "ignore_eos": True,
            "stream": True,
        }
        connection.send(CHAT_PATH, body)
    return connections


async def _read(connections: list[Connection]) -> list[Streamed]:
    """All, to their ends. Raises WrongAnswer for an error in a stream."""
    answers = await asyncio.gather(*(connection.until_ended() for connection in connections))
    for connection in connections:
        connection.close()
    return [read_chat(answer, 0.0) for answer in answers]


async def _until_batched(gateway: Gateway) -> None:
    for _ in range(100):
        await _read(await _begin(gateway, 1, 3))
        if gateway.metric("gateway_generations_total", path="batched"):
            return
    raise AssertionError("the gateway does not use batched egress")


async def _assert_whole(streams: list[Streamed], proxy: EgressProxy, begun: int) -> None:
    """Each is as long as one of the finals says, which come behind the answers."""
    await until(lambda: proxy.seen.finished(begun) == _STREAMS, "the finals")
    finals = proxy.seen.own[begun:]
    assert {stream.finish_reason for stream in streams} == {"length"}
    assert {own.tokens for own in finals} == {_TOKENS}
    assert sorted(len(stream.text) for stream in streams) == sorted(own.characters or 0 for own in finals)


async def test_a_subscription_that_is_cut_twenty_times(triton: Stack, proxy: EgressProxy) -> None:
    with gateway_before(proxy.url, triton) as gateway:
        await _until_batched(gateway)
        begun = len(proxy.seen.own)
        streams = await _begin(gateway, _STREAMS, _TOKENS)
        await until(lambda: proxy.seen.answered(begun) == _STREAMS, "the streams")
        for _ in range(_DROPS):
            await until(proxy.drop_subscriptions, "a subscription to cut")
        await _assert_whole(await _read(streams), proxy, begun)


async def test_a_gateway_that_stalls_for_eight_seconds(triton: Stack, proxy: EgressProxy) -> None:
    with gateway_before(proxy.url, triton) as gateway:
        await _until_batched(gateway)
        begun = len(proxy.seen.own)
        streams = await _begin(gateway, _STREAMS, _TOKENS)
        await until(lambda: proxy.seen.answered(begun) == _STREAMS, "the streams")
        os.kill(gateway.process.pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(_STALL_SECONDS)
        finally:
            os.kill(gateway.process.pid, signal.SIGCONT)
        await _assert_whole(await _read(streams), proxy, begun)


async def test_a_killed_gateway_leaves_nothing_behind(triton: Stack, proxy: EgressProxy) -> None:
    log = triton.service("triton").log
    before = len(cancelled(log))
    with gateway_before(proxy.url, triton) as gateway:
        await _until_batched(gateway)
        begun = len(proxy.seen.own)
        streams = await _begin(gateway, 16, 3000)
        await until(lambda: proxy.seen.answered(begun) == 16, "the streams")
        gateway.process.kill()
        for stream in streams:
            stream.close()
    await until(lambda: len(cancelled(log)) >= before + 16, "the end of 16 requests")
    assert cancelled(log)[-1] == (0, 0)


async def test_tritonserver_stops_with_sixty_four_open_streams(engine_platform: None, tmp_path: Path) -> None:
    def stack(name: str) -> Stack:
        made = Stack(_config(), tmp_path / name, Path(sys.executable))
        made.start()
        return made

    alone = stack("alone")
    try:
        backend = backend_of(alone)
        backend.generate(text_input="Hello")
        backend.close()
        began = time.monotonic()
        assert await asyncio.to_thread(alone.service("triton").stop) == 0
        usual = time.monotonic() - began
    finally:
        alone.kill()
    triton = stack("under load")
    try:
        service = triton.service("triton")
        with running_egress_proxy(triton.triton_url) as proxy, gateway_before(proxy.url, triton) as gateway:
            await _until_batched(gateway)
            begun = len(proxy.seen.own)
            streams = await _begin(gateway, _STREAMS, _TOKENS)
            await until(lambda: proxy.seen.answered(begun) == _STREAMS, "the streams")
            service.ask_to_stop()
            ended = await _read(streams)
            last = time.monotonic()
            await _assert_whole(ended, proxy, begun)
            assert await asyncio.to_thread(service.wait) == 0
            assert time.monotonic() - last < usual + _STOP_SECONDS
    finally:
        triton.kill()
