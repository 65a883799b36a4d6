"""What two workers count together, as one page says it."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from bench.mock_engine.running import MockEngine
from tests.support.chat import MODEL, ask, chat, complete
from tests.support.gateway import Gateway, raw_request, running_gateway
from tests.support.waiting import wait_for

WHERE = {"model": MODEL, "key": ""}


@pytest.fixture(scope="module")
def workers(
    engine_process: MockEngine, repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    foreign = tmp_path_factory.mktemp("foreign")
    flags = ("--triton", engine_process.url, "--model-repository", str(repository), "--workers", "2")
    # 40 s are more than any pause of the machine; no answer is without pauses.
    levels = ("--slo-ttft", "40", "--slo-itl", "40")
    with running_gateway(*flags, *levels, PROMETHEUS_MULTIPROC_DIR=str(foreign)) as running:
        yield running.wait_until_ready()
    assert list(foreign.iterdir()) == [], "a folder of another program's"


def clients(gateway: Gateway, count: int) -> Iterator[httpx.Client]:
    """Each on a connection of its own, so that the kernel may give it to any worker."""
    for _ in range(count):
        with httpx.Client(base_url=gateway.url, verify=False, timeout=30) as client:
            yield client


def test_the_page_is_the_same_whichever_worker_answers(workers: Gateway, engine: MockEngine) -> None:
    before = workers.metric("gateway_requests_total", status="200", reason="length")
    for number, client in enumerate(clients(workers, 20)):
        assert ask(client, max_tokens=5, stream=number % 2 == 0).status_code == 200
    def finished() -> float:
        return workers.metric("gateway_requests_total", status="200", reason="length") - before

    wait_for(lambda: finished() == 20)
    assert {finished() for _ in range(10)} == {20.0}
    assert workers.metric("gateway_completion_tokens_total", **WHERE, reason="length") >= 100
    assert workers.metric("gateway_time_to_first_token_seconds_count", **WHERE) >= 20
    assert workers.metric("gateway_inter_token_latency_seconds_count", **WHERE) >= 20
    assert workers.metric("gateway_upstream_head_seconds_count", model=MODEL) >= 20
    assert workers.metric("gateway_slo_met_total", **WHERE) == workers.metric("gateway_slo_requests_total", **WHERE)
    for worker in "01":
        assert workers.metric("gateway_worker_cpu_seconds_total", worker=worker) > 0
        assert workers.metric("gateway_event_loop_delay_seconds_count", worker=worker) > 0


def test_the_instance_is_shown_by_every_worker(workers: Gateway, engine: MockEngine) -> None:
    for client in clients(workers, 4):
        assert ask(client, max_tokens=2).status_code == 200
    wait_for(lambda: workers.metric("gateway_instance_in_flight", model=MODEL) == 0)
    for _ in range(6):
        assert workers.metric("gateway_instance_state", model=MODEL, state="ready") == 1
        assert workers.metric("gateway_instance_state", model=MODEL, state="ejected") == 0
        page = httpx.get(f"{workers.url}/metrics", verify=False).text
        assert "gateway_seconds_since_last_token{" in page
        assert f'gateway_queue_waiting{{model="{MODEL}"}} 0.0' in page


def test_refusals_and_errors_by_kind(workers: Gateway, engine: MockEngine) -> None:
    def count(name: str, kind: str) -> float:
        return workers.metric(name, kind=kind)

    before = count("gateway_refused_total", "model_not_found"), count("gateway_errors_total", "engine_error")
    for client in clients(workers, 4):
        assert complete(client, model="none").status_code == 404
    engine.add_fault(error_before="Error generating stream: it broke", next=4)
    for client in clients(workers, 4):
        assert complete(client).status_code == 500
    assert count("gateway_refused_total", "model_not_found") == before[0] + 4
    wait_for(lambda: count("gateway_errors_total", "engine_error") == before[1] + 4)
    assert workers.metric("gateway_slo_requests_total", **WHERE) > workers.metric("gateway_slo_met_total", **WHERE)


def test_calls_that_cannot_be_read_are_counted(workers: Gateway, engine: MockEngine) -> None:
    before = workers.metric("gateway_parser_failures_total", model=MODEL)
    engine.add_fault(text="<tool_call>I would call f.</tool_call>")
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    for client in clients(workers, 2):
        assert ask(client, tools=tools, max_tokens=200).status_code == 200
    wait_for(lambda: workers.metric("gateway_parser_failures_total", model=MODEL) == before + 2)


def test_a_worker_that_dies_takes_its_requests_out_of_flight(workers: Gateway, engine: MockEngine) -> None:
    engine.add_fault(stall_after=2)
    wait_for(lambda: workers.metric("gateway_requests_in_flight") == 0)
    with ExitStack() as stack:
        body = json.dumps(chat(stream=True, max_tokens=50)).encode()
        for _ in range(12):
            stack.enter_context(raw_request(workers, "/v1/chat/completions", body))
        wait_for(lambda: workers.metric("gateway_requests_in_flight") == 12)
        wait_for(lambda: workers.metric("gateway_instance_in_flight") == 12)
        tokens = workers.metric("gateway_completion_tokens_total")
        os.kill(_children(workers.process.pid)[0], signal.SIGKILL)
        wait_for(lambda: any("ended with exit code" in str(line["message"]) for line in workers.logs))
        # Its share of the twelve is gone, at the desk and on the page.
        wait_for(lambda: workers.metric("gateway_instance_in_flight") < 12)
        wait_for(lambda: workers.metric("gateway_requests_in_flight") == workers.metric("gateway_instance_in_flight"))
        assert workers.metric("gateway_completion_tokens_total") >= tokens, "a counter does not go back"
    wait_for(lambda: workers.metric("gateway_requests_in_flight") == 0)
    wait_for(lambda: workers.metric("gateway_instance_in_flight") == 0)
    engine.clear_faults()
    for client in clients(workers, 2):
        assert ask(client, max_tokens=2).status_code == 200


def _children(process: int) -> list[int]:
    """The workers of a supervisor."""
    found: list[int] = []
    for file in Path(f"/proc/{process}/task").glob("*/children"):
        found += map(int, file.read_text().split())
    return found
