"""Nothing grows with the number of requests that have been: no stream, no tombstone, no memory."""


import pytest

from bench.compare.usage import memory_bytes
from bench.load.client import Client
from bench.load.run import ClosedLoop, Limit, run
from bench.load.workloads import Workload
from devtools.stack import Stack
from tests.egress.conftest import gateway_before
from tests.support.processes import stub_of
from tests.support.streams import chats, until_batched, wrong

_MOST_GROWTH = 8 << 20
"""Bytes: what an allocator holds back. If something of each request stayed, 20,000 of them would leave more."""
_CONCURRENCY = 64


async def _ask(url: str, count: int) -> None:
    client = Client(url)
    try:
        outcomes = (await run(client, Workload("", chats(64, 3)), ClosedLoop(_CONCURRENCY), Limit(count))).outcomes
    finally:
        client.close()
    assert wrong(outcomes) == []


@pytest.mark.parametrize(
    ("warm", "count"),
    [(1_000, 2_000), pytest.param(2_000, 20_000, marks=[pytest.mark.long, pytest.mark.timeout(600)])],
)
async def test_memory_is_flat(warm: int, count: int, triton: Stack) -> None:
    service = triton.service("triton")
    with gateway_before(triton.triton_url, triton) as gateway:
        await until_batched(gateway)
        await _ask(gateway.url, warm)
        processes = {"tritonserver": service.pids()[0], "stub": stub_of(service), "gateway": gateway.process.pid}
        before = {name: memory_bytes([pid]) for name, pid in processes.items()}
        await _ask(gateway.url, count)
        grown = {name: memory_bytes([pid]) - before[name] for name, pid in processes.items()}
        assert {name: size for name, size in grown.items() if size > _MOST_GROWTH} == {}
        assert gateway.metric("gateway_generations_total", path="batched") >= warm + count
