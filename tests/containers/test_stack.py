"""The CPU variant as a user starts it, seen from outside: answers, metrics, alerts, and what happens when parts die."""

import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from devtools.paths import ROOT
from tests.containers.conftest import MODEL, ContainerStack
from tests.support import waiting

pytestmark = pytest.mark.containers

# Loading a model on a busy machine takes minutes.
wait_for = partial(waiting.wait_for, seconds=420)

_SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}},
    "required": ["city"],
    "additionalProperties": False,
}
_CONSTRAINED = {"response_format": {"type": "json_schema", "json_schema": {"name": "capital", "schema": _SCHEMA}}}
_NAMES = re.compile(r"\b(?:(?:vllm|model|model_name):\w[\w:]*|(?:gateway|prefetch|metrics_proxy|DCGM)_\w+|up)\b")


def test_an_announced_model_answers_by_a_schema(stack: ContainerStack) -> None:
    wait_for(stack.is_ready, "the gateway")
    status, answer = stack.chat(**_CONSTRAINED)
    assert status == 200, answer
    assert json.loads(answer["choices"][0]["message"]["content"]).keys() == {"city"}
    assert "published" in stack.compose("logs", "first-model")
    assert [model["id"] for model in stack.ask("/v1/models")[1]["data"]] == [MODEL]


def test_without_a_key_there_is_nothing(stack: ContainerStack) -> None:
    assert stack.ask("/v1/models", key="")[0] == 401


def test_prometheus_sees_every_target(stack: ContainerStack) -> None:
    jobs = set(re.findall(r"job_name: (\S+)", (ROOT / "docker" / "prometheus" / "prometheus.yml").read_text()))
    wait_for(lambda: {one["metric"]["job"] for one in stack.query("up == 1")} == jobs, "every target")
    wait_for(lambda: stack.query("metrics_proxy_source_up") and not stack.query("metrics_proxy_source_up == 0"))


def _selected() -> set[str]:
    folder = ROOT / "docker"
    texts = [path.read_text() for path in (folder / "prometheus" / "rules").glob("*.yml")]
    for path in (folder / "grafana" / "dashboards").glob("*.json"):
        panels: list[dict[str, Any]] = json.loads(path.read_text())["panels"]
        texts += [target["expr"] for panel in panels for target in panel.get("targets", [])]
    return {name for text in texts for name in _NAMES.findall(text)}


def test_every_series_that_is_asked_for_exists_under_traffic(stack: ContainerStack) -> None:
    wait_for(stack.is_ready, "the gateway")
    assert stack.chat()[0] == 200
    # Something that is refused.
    assert stack.chat(temperature=-1)[0] == 400
    for name in sorted(_selected() - {"gateway_errors_total"}):
        wait_for(lambda name=name: stack.query(f"count({name})"), name)  # type: ignore[misc]


def _engine(stack: ContainerStack, command: str) -> None:
    """Sends the engine's process in Triton's container a signal."""
    script = (
        "import os, glob\n"
        "for path in glob.glob('/proc/[0-9]*/cmdline'):\n"
        "    if open(path, 'rb').read().startswith(b'VLLM::EngineCore'):\n"
        f"        os.kill(int(path.split('/')[2]), {command})\n"
    )
    stack.compose("exec", "-T", "triton", "python3", "-c", script)


def test_a_killed_engine_is_503_an_alert_and_comes_back(stack: ContainerStack) -> None:
    wait_for(stack.is_ready, "the gateway")
    _engine(stack, "9")
    statuses: list[int] = []

    def fails() -> bool:
        statuses.append(stack.chat(max_tokens=2)[0])
        return statuses[-1] == 503

    wait_for(fails, "a 503")
    wait_for(lambda: (fails() and "ErrorRate" in stack.firing()) or None, "the alert")
    wait_for(lambda: stack.chat(max_tokens=2)[0] == 200, "the model to be back")
    assert set(statuses) <= {200, 500, 503}
    # The dead engine's gauges are gone: what the new one says is all there is.
    wait_for(lambda: stack.query("sum(vllm:num_requests_running) == 0"), "the gauges of the living")


def test_a_hanging_engine_is_an_alert(stack: ContainerStack) -> None:
    wait_for(stack.is_ready, "the gateway")
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(stack.chat, max_tokens=1000, ignore_eos=True)
        wait_for(lambda: stack.query("sum(vllm:num_requests_running) == 1"), "a running request")
        # SIGSTOP: it is there, and does nothing.
        _engine(stack, "19")
        wait_for(lambda: "EngineWedged" in stack.firing(), "the alert")
        wait_for(lambda: "InstanceEjected" in stack.firing(), "the gateway to give it up")
        # SIGCONT: it is taken back.
        _engine(stack, "18")
        answer.result()
    wait_for(lambda: stack.chat(max_tokens=2)[0] == 200, "the engine to be taken back")


def test_gauges_are_right_across_the_containers(stack: ContainerStack) -> None:
    wait_for(stack.is_ready, "the gateway")
    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(stack.chat, max_tokens=400, ignore_eos=True) for _ in range(4)]
        wait_for(lambda: stack.query("sum(vllm:num_requests_running) == 4"), "four running requests")
        assert all(one.result()[0] == 200 for one in running)
    wait_for(lambda: stack.query("sum(vllm:num_requests_running) == 0"), "none")


def test_a_stopped_part_is_seen(stack: ContainerStack) -> None:
    stack.compose("stop", "prefetch")
    wait_for(lambda: "TargetDown" in stack.firing(), "the alert")
    stack.compose("start", "prefetch")
    wait_for(lambda: "TargetDown" not in stack.firing(), "its end")


@pytest.mark.parametrize("service", ["metrics-proxy", "prefetch", "prometheus", "alertmanager"])
def test_a_restart_beside_the_path_costs_no_request(stack: ContainerStack, service: str) -> None:
    wait_for(stack.is_ready, "the gateway")
    restarted = threading.Event()

    def asks() -> list[int]:
        statuses = []
        while not restarted.is_set():
            statuses.append(stack.chat(max_tokens=4)[0])
        return statuses

    with ThreadPoolExecutor(2) as pool:
        clients = [pool.submit(asks) for _ in range(2)]
        stack.compose("restart", service)
        restarted.set()
        assert {status for client in clients for status in client.result()} == {200}


def test_a_restarted_triton_has_its_models_again(stack: ContainerStack) -> None:
    wait_for(stack.is_ready, "the gateway")
    stack.compose("restart", "triton")
    wait_for(lambda: stack.chat(max_tokens=2)[0] == 200, "the model")
