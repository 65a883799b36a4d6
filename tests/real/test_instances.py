"""Three real instances (tritonserver, our backend, vLLM with the tiny model) behind one gateway, under load: an engine
process is stopped, one is slow, a server is killed and started again."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from devtools.models import TINY
from devtools.stack import Stack, StackConfig
from tests.support.gateway import Gateway, running_gateway
from tests.support.load import Load, judge, load
from tests.support.processes import engine_of
from tests.support.waiting import wait_for

pytestmark = pytest.mark.long

BODY = {"model": TINY, "prompt": "Tell me.", "max_tokens": 60, "ignore_eos": True, "temperature": 0}
CLIENTS = 9


@dataclass
class Cluster:
    gateway: Gateway
    stacks: list[Stack]

    def name(self, number: int) -> str:
        return self.stacks[number].triton_url.removeprefix("http://")

    def engine(self, number: int) -> int:
        """The process that computes."""
        return engine_of(self.stacks[number].service("triton"))

    def logged(self, number: int, text: str) -> int:
        where = f"on {self.name(number)}"
        return sum(f"{where} {text}" in str(line["message"]) for line in list(self.gateway.logs))

    def in_flight(self, number: int) -> float:
        return self.gateway.metric("gateway_requests_in_flight", instance=self.name(number))


@pytest.fixture(scope="module")
def cluster(engine_platform: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("instances")
    stacks = [
        Stack(StackConfig(gateway=False), folder / f"stack-{number}", Path(sys.executable)) for number in range(3)
    ]
    with contextlib.ExitStack() as running:
        for stack in stacks:
            running.callback(stack.kill)
        with ThreadPoolExecutor(len(stacks)) as pool:
            list(pool.map(Stack.start, stacks))
        flags = [part for stack in stacks for part in ("--triton", stack.triton_url)]
        gateway = running.enter_context(
            running_gateway(*flags, "--model-repository", str(stacks[0].repository), "--stall-timeout", "10")
        )
        found = Cluster(gateway.wait_until_ready(), stacks)
        wait_for(lambda: sum("is ready on" in str(line["message"]) for line in gateway.logs) >= 3, "all instances")
        yield found


@pytest.fixture
def under_load(cluster: Cluster) -> Iterator[Load]:
    with load(cluster.gateway.url, BODY, CLIENTS) as running:
        running.wait_for_more(CLIENTS)
        yield running


def test_an_engine_process_is_stopped(cluster: Cluster, under_load: Load) -> None:
    """Triton's health routes go on saying that all is well."""
    engine = cluster.engine(1)
    before = cluster.logged(1, "is ejected")
    os.kill(engine, signal.SIGSTOP)
    try:
        wait_for(lambda: cluster.logged(1, "is ejected") > before, "the end of its patience")
        under_load.wait_for_more(2 * CLIENTS)
    finally:
        os.kill(engine, signal.SIGCONT)
    wait_for(lambda: cluster.logged(1, "is ramping"), "its return")
    wait_for(lambda: cluster.in_flight(1) > 1, "requests on it")
    judge(under_load.outcomes)


def test_an_engine_is_slow(cluster: Cluster, under_load: Load) -> None:
    """It computes for a tenth of the time. Every request is answered."""
    engine = cluster.engine(1)
    over = threading.Event()

    def slow_down() -> None:
        while not over.is_set():
            os.kill(engine, signal.SIGSTOP)
            over.wait(0.27)
            os.kill(engine, signal.SIGCONT)
            over.wait(0.03)

    slowing = threading.Thread(target=slow_down)
    slowing.start()
    try:
        under_load.wait_for_more(4 * CLIENTS)
    finally:
        over.set()
        slowing.join()
    assert not judge(under_load.outcomes)


def test_a_server_is_killed_and_started_again(cluster: Cluster) -> None:
    ready = cluster.logged(2, "is ramping")
    with load(cluster.gateway.url, BODY, CLIENTS) as running:
        wait_for(lambda: cluster.in_flight(2), "requests on the victim")
        cluster.stacks[2].kill()
        after = running.wait_for_more(2 * CLIENTS)
    assert all(outcome.is_whole for outcome in after)
    judge(running.outcomes)
    # The others' work would only make its start take longer.
    cluster.stacks[2].start()
    with load(cluster.gateway.url, BODY, CLIENTS) as running:
        wait_for(lambda: cluster.logged(2, "is ramping") > ready, "its return")
        wait_for(lambda: cluster.in_flight(2) > 1, "requests on it")
    assert not judge(running.outcomes)


def test_all_ends_with_nothing_in_flight(cluster: Cluster) -> None:
    wait_for(lambda: cluster.gateway.metric("gateway_requests_in_flight") == 0, "the end of all requests")
