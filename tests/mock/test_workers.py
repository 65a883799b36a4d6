"""Four workers that are one replica: limits at their edges, operators' calls, settings that are read again, workers
that die, and an orderly end."""

import contextlib
import io
import json
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from bench.mock_engine.running import MockEngine, running_mock_engine
from gateway.access.command import main as keys_command
from tests.support.gateway import Gateway, running_gateway
from tests.support.service import is_alive
from tests.support.waiting import wait_for

WORKERS = 4
IN_FLIGHT, WAITING = 6, 5
BODY = {"prompt": "Tell me.", "max_tokens": 5}


@dataclass
class Replica:
    gateway: Gateway
    engines: list[MockEngine]
    config: Path
    settings: dict[str, Any]
    keys: dict[str, str]

    def post(self, key: str = "client", model: str = "mock", **changes: Any) -> httpx.Response:
        """On a connection of its own, so on any of the workers."""
        headers = {"Authorization": f"Bearer {self.keys[key]}"}
        body = BODY | {"model": model} | changes
        return httpx.post(f"{self.gateway.url}/v1/completions", json=body, headers=headers, timeout=90, verify=False)

    def admin(self, method: str, path: str, body: Any = None) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.keys['ops']}"}
        return httpx.request(method, self.gateway.url + path, json=body, headers=headers, timeout=30, verify=False)

    def instances(self) -> dict[str, dict[str, Any]]:
        """By name, as any worker shows them."""
        return {one["name"]: one for one in self.admin("GET", "/admin/instances").json()["instances"]}

    def write(self, **changes: Any) -> None:
        """Replace the file of settings, as an editor does."""
        self.settings |= changes
        beside = self.config.with_suffix(".new")
        beside.write_text(yaml.safe_dump(self.settings))
        beside.replace(self.config)

    def workers(self) -> list[int]:
        pid = self.gateway.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [int(child) for child in children]

    def wait_until_full(self) -> None:
        """As many are open and wait as may."""
        metric = self.gateway.metric
        wait_for(lambda: metric("gateway_requests_in_flight", model="mock") == IN_FLIGHT, "all that may be open")
        wait_for(lambda: metric("gateway_queue_waiting", model="mock") == WAITING, "a full queue")

    def logged(self, text: str) -> int:
        return sum(text in str(line["message"]) for line in list(self.gateway.logs))


def name_of(engine: MockEngine) -> str:
    return engine.url.removeprefix("http://")


@pytest.fixture(scope="module")
def replica_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    folder = tmp_path_factory.mktemp("replica")
    config, keys_file = folder / "gateway.yaml", folder / "keys.yaml"
    models = ["mock", "v1", "v2"]
    with running_mock_engine(models=models) as first, running_mock_engine(models=models) as second:
        settings: dict[str, Any] = {
            "triton": [first.url],
            "workers": WORKERS,
            "max_in_flight": IN_FLIGHT,
            "max_waiting": WAITING,
            "keys_file": str(keys_file),
            "models": [
                {"triton_model": "mock"},
                {"triton_model": "v1", "names": ["m"], "weight": 1},
                {"triton_model": "v2", "names": ["m"], "weight": 0},
            ],
        }
        keys = {
            "client": new_key(keys_file, "client"),
            "other": new_key(keys_file, "other"),
            "limited": new_key(keys_file, "limited", "--requests-per-minute", "10"),
            "ops": new_key(keys_file, "ops", "--admin"),
        }
        config.write_text(yaml.safe_dump(settings))
        with running_gateway("--config", str(config)) as gateway:
            yield Replica(gateway.wait_until_ready(), [first, second], config, settings, keys)


def new_key(file: Path, *arguments: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as said:
        assert keys_command(["new", *arguments, "--keys-file", str(file)]) == 0
    return said.getvalue().strip()


@pytest.fixture
def replica(replica_process: Replica) -> Iterator[Replica]:
    for engine in replica_process.engines:
        engine.reset()
    yield replica_process
    for engine in replica_process.engines:
        engine.clear_faults()
    wait_for(lambda: all(one["in_flight"] == 0 for one in replica_process.instances().values()), "nothing in flight")


def test_the_limits_are_those_of_all_workers_together(replica: Replica) -> None:
    engine = replica.engines[0]
    engine.add_fault(stall_after=1)
    with ThreadPoolExecutor(50) as pool:
        begun = [pool.submit(replica.post) for _ in range(IN_FLIGHT + WAITING)]
        replica.wait_until_full()
        refused = replica.post()
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert "max_in_flight" in refused.json()["error"]["message"]
        assert engine.state()["in_flight"] == IN_FLIGHT
        assert sum(one["in_flight"] for one in replica.instances().values()) == IN_FLIGHT
        engine.clear_faults()
        assert [answer.result().status_code for answer in begun] == [200] * (IN_FLIGHT + WAITING)


def test_never_more_are_open_than_may_be_and_every_request_has_an_answer(replica: Replica) -> None:
    engine = replica.engines[0]
    seen: list[int] = []
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            seen.append(engine.state()["in_flight"])

    watching = threading.Thread(target=look)
    watching.start()
    with ThreadPoolExecutor(24) as pool:
        answers = list(pool.map(lambda number: replica.post(key="client" if number % 2 else "other"), range(200)))
    over.set()
    watching.join()
    assert max(seen) <= IN_FLIGHT
    assert {answer.status_code for answer in answers} <= {200, 429}
    assert sum(answer.status_code == 200 for answer in answers) > 50


def test_a_key_that_floods_the_queue_does_not_keep_another_out(replica: Replica) -> None:
    engine = replica.engines[0]
    engine.add_fault(stall_after=1)
    with ThreadPoolExecutor(50) as pool:
        flood = [pool.submit(replica.post) for _ in range(IN_FLIGHT + WAITING)]
        replica.wait_until_full()
        other = pool.submit(replica.post, "other")
        # The newest of the key that has most of them waiting makes room.
        wait_for(lambda: [f for f in flood if f.done()], "a refusal of the flood")
        assert not other.done()
        engine.clear_faults()
        assert other.result().status_code == 200
        assert sorted(answer.result().status_code for answer in flood) == [200] * (IN_FLIGHT + WAITING - 1) + [429]


def test_a_rate_is_one_for_all_workers(replica: Replica) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: replica.post("limited"), range(16)))
    statuses = [answer.status_code for answer in answers]
    # A bucket of ten, which fills by one every six seconds.
    assert 10 <= statuses.count(200) <= 13
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"
    assert 1 <= int(refused.headers["retry-after"]) <= 60


def test_a_client_that_goes_away_while_it_waits_leaves_the_queue(replica: Replica) -> None:
    engine = replica.engines[0]
    engine.add_fault(stall_after=1)
    with ThreadPoolExecutor(20) as pool:
        begun = [pool.submit(replica.post) for _ in range(IN_FLIGHT)]
        wait_for(lambda: engine.state()["in_flight"] == IN_FLIGHT, "all that may be open")
        headers = {"Authorization": f"Bearer {replica.keys['client']}"}
        for _ in range(WAITING):
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(
                    f"{replica.gateway.url}/v1/completions",
                    json=BODY | {"model": "mock", "prompt": "gone"},
                    headers=headers,
                    timeout=0.5,
                    verify=False,
                )
        wait_for(lambda: replica.gateway.metric("gateway_queue_waiting", model="mock") == 0, "an empty queue")
        waiting = [pool.submit(replica.post) for _ in range(WAITING)]
        replica.wait_until_full()
        engine.clear_faults()
        assert {answer.result().status_code for answer in (*begun, *waiting)} == {200}
    assert not engine.requests("gone")


def test_the_list_of_instances_is_read_again_when_the_file_changes(replica: Replica) -> None:
    first, second = replica.engines
    replica.write(triton=[first.url, second.url])
    wait_for(lambda: replica.logged(f"is ready on {name_of(second)}"), "the new instance")
    with ThreadPoolExecutor(8) as pool:
        assert {answer.status_code for answer in pool.map(lambda _: replica.post(), range(20))} == {200}
    assert second.requests()
    before = replica.logged("the settings stay as they are")
    replica.config.write_text("triton: []\n")
    wait_for(lambda: replica.logged("the settings stay as they are") > before, "the mistake in the log")
    assert set(replica.instances()) == {name_of(first), name_of(second)}
    replica.write(max_body_bytes=5000)
    wait_for(lambda: replica.logged("changed settings that need a restart: max_body_bytes"), "the warning")
    replica.write(max_body_bytes=4 * 1024 * 1024)


def test_sighup_reads_again_and_a_running_answer_is_not_disturbed(replica: Replica) -> None:
    first, second = replica.engines
    replica.write(triton=[first.url, second.url])
    wait_for(lambda: len(replica.instances()) == 2, "both instances")
    second.add_fault(stall_after=2)
    first.set_state(models={"mock": {"ready": False}})
    wait_for(lambda: replica.instances()[name_of(first)]["models"]["mock"]["state"] == "down", "the first to be down")
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(replica.post)
        wait_for(lambda: second.state()["in_flight"] == 1, "a request on the second")
        replica.write(triton=[first.url])
        replica.gateway.process.send_signal(signal.SIGHUP)
        wait_for(lambda: replica.instances()[name_of(second)]["removed"], "the second to be removed")
        second.clear_faults()
        assert running.result().status_code == 200
    first.set_state(models={"mock": {"ready": True}})
    wait_for(lambda: set(replica.instances()) == {name_of(first)}, "the second to be gone")
    wait_for(lambda: replica.post().status_code == 200, "an answer of the first")


def test_a_drained_instance_gets_nothing_new(replica: Replica) -> None:
    first, second = replica.engines
    replica.write(triton=[first.url, second.url])
    wait_for(
        lambda: (
            all(
                one["models"]["mock"]["state"] in ("ready", "ramping", "half-open")
                for one in replica.instances().values()
            )
            and len(replica.instances()) == 2
        ),
        "both instances",
    )
    second.add_fault(stall_after=2)
    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(replica.post) for _ in range(4)]
        wait_for(lambda: second.state()["in_flight"], "a request on it")
        answer = replica.admin("POST", f"/admin/instances/{name_of(second)}/drain")
        assert (answer.status_code, answer.json()["draining"]) == (200, True)
        assert {replica.post().status_code for _ in range(6)} == {200}
        held = second.state()["in_flight"]
        assert held == replica.instances()[name_of(second)]["in_flight"]
        second.clear_faults()
        assert {answer.result().status_code for answer in running} == {200}
    assert len(second.requests()) == held
    assert replica.admin("POST", f"/admin/instances/{name_of(second)}/undrain").json()["draining"] is False
    wait_for(
        lambda: replica.post().status_code == 200 and len(second.requests()) > held, "requests on the second again"
    )
    unknown = replica.admin("POST", "/admin/instances/nowhere:1/drain")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "instance_not_found")


def test_a_roll_out_is_one_call_and_so_is_the_way_back(replica: Replica) -> None:
    def versions() -> set[str]:
        for engine in replica.engines:
            engine.forget_requests()
        assert {replica.post(model="m").status_code for _ in range(8)} == {200}
        return {request["model"] for engine in replica.engines for request in engine.requests()}

    assert versions() == {"v1"}
    answer = replica.admin("PUT", "/admin/models/m/weights", {"v1": 0, "v2": 1})
    assert answer.json() == {"model": "m", "weights": {"v1": 0, "v2": 1}, "previous": {"v1": 1, "v2": 0}}
    assert versions() == {"v2"}
    assert replica.admin("POST", "/admin/models/m/weights/rollback").json()["weights"] == {"v1": 1, "v2": 0}
    assert versions() == {"v1"}
    replica.admin("PUT", "/admin/models/m/weights", {"v1": 1, "v2": 1})
    assert versions() == {"v1", "v2"}
    for body in ({"v1": -1}, {"v3": 1}, {"v1": 0, "v2": 0}, [1], {"v1": "1"}):
        refused = replica.admin("PUT", "/admin/models/m/weights", body)
        assert refused.status_code == 400, body
    assert replica.admin("GET", "/admin/models/m/weights").json()["weights"] == {"v1": 1, "v2": 1}
    listed = httpx.get(
        f"{replica.gateway.url}/v1/models", headers={"Authorization": f"Bearer {replica.keys['client']}"}, verify=False
    )
    assert sorted(model["id"] for model in listed.json()["data"]) == ["m", "mock"]


def test_operators_calls_need_the_admin_key(replica: Replica) -> None:
    for method, path in (
        ("GET", "/admin/instances"),
        ("POST", f"/admin/instances/{name_of(replica.engines[0])}/drain"),
        ("PUT", "/admin/models/m/weights"),
        ("POST", "/admin/models/m/weights/rollback"),
    ):
        url = replica.gateway.url + path
        assert httpx.request(method, url, verify=False).status_code == 401
        client = {"Authorization": f"Bearer {replica.keys['client']}"}
        assert httpx.request(method, url, headers=client, verify=False).status_code == 403
    assert not any(one["draining"] for one in replica.instances().values())


def test_a_worker_that_dies_is_replaced_and_holds_no_place(replica: Replica) -> None:
    before = set(replica.workers())
    assert len(before) == WORKERS
    victim = min(before)
    starts = replica.logged("Application startup complete")
    os.kill(victim, signal.SIGKILL)
    wait_for(lambda: replica.logged("ended with exit code -9"), "the loss in the log")
    # The others go on.
    assert {replica.post().status_code for _ in range(4)} == {200}
    wait_for(lambda: replica.logged("Application startup complete") > starts, "another worker")
    assert len(set(replica.workers()) - before) == 1


def test_metrics_are_those_of_all_workers(replica: Replica) -> None:
    before = replica.gateway.metric("gateway_requests_total", model="mock", status="200")
    for _ in range(12):
        assert replica.post().status_code == 200
    assert replica.gateway.metric("gateway_requests_total", model="mock", status="200") == before + 12


def test_an_end_lets_streams_finish_and_cuts_off_those_that_do_not() -> None:
    with running_mock_engine() as engine:
        flags = ("--triton", engine.url, "--models", '[{"triton_model": "mock"}]', "--workers", "2")
        with running_gateway(*flags, "--shutdown-timeout", "4") as gateway:
            gateway.wait_until_ready()
            children = Path(f"/proc/{gateway.process.pid}/task/{gateway.process.pid}/children").read_text().split()
            engine.add_fault(match="for ever", stall_after=2)
            engine.add_fault(match="slowly", token_interval_ms=100)

            def ask(prompt: str, *, stream: bool) -> httpx.Response:
                body = {"model": "mock", "prompt": prompt, "max_tokens": 10, "stream": stream}
                return httpx.post(f"{gateway.url}/v1/completions", json=body, timeout=60, verify=False)

            with ThreadPoolExecutor(8) as pool:
                finishing = [pool.submit(ask, "slowly", stream=True) for _ in range(4)]
                cut = [pool.submit(ask, "for ever", stream=True) for _ in range(2)]
                whole = pool.submit(ask, "for ever", stream=False)
                wait_for(lambda: engine.state()["in_flight"] == 7, "all requests")
                gateway.process.send_signal(signal.SIGTERM)
                for answer in finishing:
                    assert answer.result().text.endswith("data: [DONE]\n\n")
                    assert "error" not in answer.result().text
                for answer in cut:
                    *_, error, done = [line for line in answer.result().text.split("\n\n") if line]
                    message = json.loads(error.removeprefix("data: "))["error"]["message"]
                    assert (message, done) == ("The gateway is shutting down.", "data: [DONE]")
                assert whole.result().status_code == 503
                assert whole.result().json()["error"]["message"] == "The gateway is shutting down."
            assert gateway.process.wait(60) == 0
            assert not any(is_alive(child) for child in children)
            assert not [line for line in gateway.logs if "exception" in line or "Traceback" in json.dumps(line)]


def test_a_supervisor_that_is_killed_leaves_no_worker() -> None:
    with running_mock_engine() as engine:
        flags = ("--triton", engine.url, "--models", '[{"triton_model": "mock"}]', "--workers", "2")
        with running_gateway(*flags) as gateway:
            pid = gateway.process.pid
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            assert len(children) == 2
            gateway.process.kill()
            gateway.process.wait()
            wait_for(lambda: not any(is_alive(child) for child in children), "the end of the workers")
