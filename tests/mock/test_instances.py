"""Three instances behind two workers, under load: one is killed, stopped, slow, started again. What had said nothing
yet is answered by another; what had is ended with an error; nobody else notices."""

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from bench.mock_engine.running import MockEngine, running_mock_engine
from tests.support.gateway import Gateway, running_gateway
from tests.support.load import Load, judge, load
from tests.support.waiting import wait_for

BODY = {"model": "mock", "prompt": "Tell me.", "max_tokens": 20, "seed": 7, "temperature": 0}
STALL_S = 3
CLIENTS = 12


@dataclass
class Cluster:
    gateway: Gateway
    engines: list[MockEngine]
    stack: contextlib.ExitStack

    def restart(self, number: int) -> None:
        """A killed engine, on its old port."""
        port = self.engines[number].url.rpartition(":")[2]
        self.engines[number] = self.stack.enter_context(running_mock_engine(port=port, token_interval_ms=20))

    def states(self) -> dict[str, str]:
        """By the engine's URL, as the log says."""
        found: dict[str, str] = {}
        for line in list(self.gateway.logs):
            words = str(line["message"]).split()
            if words[:2] == ["model", "mock"] and "is" in words:
                where = words[words.index("on") + 1].rstrip(":")
                state = words[words.index("is") + 1].rstrip(":")
                found[f"http://{where}"] = state
        return found


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with contextlib.ExitStack() as stack:
        engines = [stack.enter_context(running_mock_engine(token_interval_ms=20)) for _ in range(3)]
        flags = [part for engine in engines for part in ("--triton", engine.url)]
        gateway = stack.enter_context(
            running_gateway(
                *flags, "--models", '[{"triton_model": "mock"}]', "--workers", "2", "--stall-timeout", str(STALL_S)
            )
        )
        gateway.wait_until_ready()
        wait_for(lambda: sum("is ready on" in line["message"] for line in gateway.logs) >= 3, "all engines")
        yield Cluster(gateway, engines, stack)


@pytest.fixture(scope="module")
def expected(cluster: Cluster) -> str:
    return str(httpx.post(f"{cluster.gateway.url}/v1/completions", json=BODY).json()["choices"][0]["text"])


@pytest.fixture
def under_load(cluster: Cluster) -> Iterator[Load]:
    with load(cluster.gateway.url, BODY, CLIENTS) as running:
        running.wait_for_more(CLIENTS)
        yield running


def busy(engine: MockEngine) -> bool:
    return bool(engine.state()["in_flight"])


def used_again(engine: MockEngine) -> None:
    """It gets requests from clients, more than one at a time."""
    engine.forget_requests()
    wait_for(lambda: len(engine.requests()) > 5, "requests on the instance that is back")


def test_one_is_killed_and_started_again(cluster: Cluster, under_load: Load, expected: str) -> None:
    victim = cluster.engines[0]
    wait_for(lambda: busy(victim), "requests on the victim")
    os.kill(victim.pid, signal.SIGKILL)
    after = under_load.wait_for_more(3 * CLIENTS)
    # Whoever begins when it is dead notices nothing.
    assert all(outcome.is_whole for outcome in after)
    cluster.restart(0)
    used_again(cluster.engines[0])
    judge(under_load.outcomes, expected)


def test_one_is_stopped_and_goes_on(cluster: Cluster, under_load: Load, expected: str) -> None:
    """SIGSTOP: its connections stay open, and nothing comes, not even an answer to a probe."""
    victim = cluster.engines[1]
    wait_for(lambda: busy(victim), "requests on the victim")
    os.kill(victim.pid, signal.SIGSTOP)
    try:
        wait_for(lambda: cluster.states()[victim.url] in ("ejected", "not"), "the end of its patience")
        after = under_load.wait_for_more(3 * CLIENTS)
        assert all(outcome.is_whole for outcome in after)
    finally:
        os.kill(victim.pid, signal.SIGCONT)
    used_again(victim)
    judge(under_load.outcomes, expected)


@pytest.mark.parametrize("fault", [{"stall_before": True}, {"stall_after": 0}, {"stall_after": 4}])
def test_an_engine_hangs_while_its_server_answers(
    fault: dict[str, Any], cluster: Cluster, under_load: Load, expected: str
) -> None:
    """Before the admission, before the first token, and behind it. Probes are good all the time."""
    victim = cluster.engines[2]
    ejections = ejected(cluster, victim)
    victim.add_fault(**fault)
    try:
        wait_for(lambda: ejected(cluster, victim) > ejections, "the end of its patience")
        under_load.wait_for_more(3 * CLIENTS)
    finally:
        victim.clear_faults()
    used_again(victim)
    errors = judge(under_load.outcomes, expected)
    assert bool(errors) == (fault == {"stall_after": 4})


def ejected(cluster: Cluster, engine: MockEngine) -> int:
    where = f"on {engine.url.removeprefix('http://')} is ejected"
    return sum(where in str(line["message"]) for line in list(cluster.gateway.logs))


def test_one_is_slow(cluster: Cluster, under_load: Load, expected: str) -> None:
    """It gets fewer requests, and every one is answered."""
    slow, *others = cluster.engines
    slow.add_fault(token_interval_ms=200)
    try:
        under_load.wait_for_more(2 * CLIENTS)
        for engine in cluster.engines:
            engine.forget_requests()
        under_load.wait_for_more(6 * CLIENTS)
        counts = [len(engine.requests()) for engine in (slow, *others)]
    finally:
        slow.clear_faults()
    assert 0 < counts[0] < min(counts[1:])
    assert not judge(under_load.outcomes, expected)


def test_all_ends_with_nothing_in_flight(cluster: Cluster) -> None:
    wait_for(lambda: cluster.gateway.metric("gateway_requests_in_flight") == 0, "the end of all requests")
    wait_for(lambda: not any(map(busy, cluster.engines)), "the end of their requests")
    assert not [line for line in cluster.gateway.logs if "exception" in line or "Traceback" in json.dumps(line)]


def test_a_canary_finds_a_hang_before_a_client_does_and_the_return() -> None:
    """With nobody asking anything."""
    with running_mock_engine() as first, running_mock_engine() as second:
        flags = ("--triton", first.url, "--triton", second.url, "--models", '[{"triton_model": "mock"}]')
        with running_gateway(*flags, "--canary-interval", "0.5", "--stall-timeout", "1") as gateway:
            gateway.wait_until_ready()

            def logged(engine: MockEngine, state: str) -> bool:
                where = f"on {engine.url.removeprefix('http://')} is {state}"
                return any(where in str(line["message"]) for line in list(gateway.logs))

            wait_for(lambda: first.requests() and second.requests(), "a canary for each")
            (canary, *_) = first.requests()
            assert canary["sampling_parameters"]["max_tokens"] == 1
            first.add_fault(stall_before=True)
            wait_for(lambda: logged(first, "ejected"), "the end of its patience")
            assert not logged(second, "ejected")
            first.clear_faults()
            wait_for(lambda: logged(first, "ramping"), "its return")
            assert gateway.metric("gateway_requests_total") == 0
