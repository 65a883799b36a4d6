"""`./dev up` with the mock engine: what it starts, says and leaves behind."""

import json
import os
import re
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from devtools.stack import HOST, Ports
from tests.support.dev import Up, run_dev, running_up

READY_WITHIN = 60


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def pid_of(up: Up, module: str) -> int:
    """The process that runs `python -m module`, not its guard."""
    (pid,) = [
        pid
        for pid in up.pids()
        if f"-m\0{module}\0".encode() in (command := Path(f"/proc/{pid}/cmdline").read_bytes())
        and b"guard.py" not in command
    ]
    return pid


def test_it_is_up_in_seconds_and_ctrl_c_leaves_nothing() -> None:
    began = time.monotonic()
    with running_up("--engine", "mock", ports=Ports.free(), ready_within=READY_WITHIN) as up:
        # Everything is made already: a second start makes nothing.
        assert "environment" not in up.text
        assert time.monotonic() - began < 30
        assert len(up.commands) == 3
        answer = subprocess.run(["bash", "-c", up.commands[2]], capture_output=True, check=True).stdout
        content = json.loads(json.loads(answer)["choices"][0]["message"]["content"])
        assert content.keys() == {"city", "country"}
        pids = up.pids()
        assert up.end(signal.SIGINT) == 0
        assert not alive(pids)
    assert up.shown[-1] == "Stopped.\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_other_polite_signals_stop_it_too(number: int) -> None:
    with running_up("--engine", "mock", ports=Ports.free(), ready_within=READY_WITHIN) as up:
        pids = up.pids()
        assert up.end(number) == 0
        assert not alive(pids)


@pytest.mark.parametrize("module", ["gateway", "bench.mock_engine"])
def test_the_death_of_a_part_ends_the_others_and_says_so(module: str) -> None:
    with running_up("--engine", "mock", ports=Ports.free(), ready_within=READY_WITHIN) as up:
        pids = up.pids()
        os.kill(pid_of(up, module), signal.SIGKILL)
        assert up.process.wait(30) == 1
        assert not alive(pids)
    name = {"gateway": "gateway", "bench.mock_engine": "mock"}[module]
    assert f"./dev: {name} ended with exit code 137, so everything was stopped" in up.text


def test_a_killed_dev_leaves_nothing() -> None:
    with running_up("--engine", "mock", ports=Ports.free(), ready_within=READY_WITHIN) as up:
        pids = up.pids()
        up.process.kill()
        up.process.wait()
        deadline = time.monotonic() + 30
        while alive(pids) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not alive(pids)


def test_a_killed_guard_ends_everything() -> None:
    with running_up("--engine", "mock", ports=Ports.free(), ready_within=READY_WITHIN) as up:
        pids = up.pids()
        guards = [pid for pid in pids if b"guard.py" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        os.kill(guards[0], signal.SIGKILL)
        assert up.process.wait(30) == 1
        assert not alive(pids)


def test_an_engine_that_already_runs() -> None:
    engine = Ports.free()
    with running_up("--engine", "mock", ports=engine, ready_within=READY_WITHIN) as mock:
        settings = Path(mock.state / "gateway.yaml")
        tokenizer = json.loads((mock.state / "models/tiny-random/1/model.json").read_text())["model"]
        model = {"triton_model": "tiny-random", "names": ["mine"], "tokenizer": tokenizer, "max_model_len": 4096}
        settings.write_text(json.dumps({"models": [{**model, "structured_outputs_backend": "guidance"}]}))
        url = f"http://{HOST}:{engine.triton_http}"
        flags = ("--engine", url, "--config", str(settings))
        with running_up(*flags, ports=Ports.free(), ready_within=READY_WITHIN) as up:
            assert '"model": "mine"' in up.commands[0]
            answer = subprocess.run(["bash", "-c", up.commands[0]], capture_output=True, check=True).stdout
            assert json.loads(answer)["model"] == "mine"
            assert up.end() == 0
        assert mock.process.poll() is None


def test_a_taken_port_ends_it_before_anything_starts() -> None:
    ports = Ports.free()
    with socket.create_server((HOST, ports.gateway)):
        ended = run_dev("up", "--engine", "mock", "--port", str(ports.gateway))
    assert ended.returncode == 1
    assert ended.stdout == f"./dev: Port {ports.gateway} is taken; choose another with --port.\n"


def test_an_engine_that_is_no_url() -> None:
    ended = run_dev("up", "--engine", "localhost:8000")
    assert ended.returncode == 1
    assert "--engine takes mock or the base URL" in ended.stdout


def test_an_engine_that_does_not_answer() -> None:
    ended = run_dev("up", "--engine", "http://127.0.0.1:1", "--port", str(Ports.free().gateway))
    assert ended.returncode == 1
    assert ended.stdout.startswith("./dev: No Triton is ready at http://127.0.0.1:1; ")


def test_a_service_that_does_not_start_is_quoted(tmp_path: Path) -> None:
    (tmp_path / "gateway.yaml").write_text('{"no_such_setting": 1}')
    flags = ("--engine", "mock", "--config", str(tmp_path / "gateway.yaml"))
    ports = Ports.free()
    says = pytest.raises(AssertionError, match=r"gateway ended while starting: .*no_such_setting")
    with says, running_up(*flags, ports=ports, ready_within=READY_WITHIN):
        pass


def test_an_unreachable_index(tmp_path: Path) -> None:
    nowhere = "http://127.0.0.1:1/simple"
    ended = run_dev(
        *("up", "--engine", "mock", "--port", str(Ports.free().gateway)),
        TVS_HOME=str(tmp_path / "home"),
        PIP_INDEX_URL=nowhere,
        PIP_EXTRA_INDEX_URL=nowhere,
        PIP_RETRIES="1",
    )
    assert ended.returncode == 1
    assert "./dev: pip cannot reach its package index" in ended.stdout
    assert "Traceback" not in ended.stdout
    # What was begun is not taken for an environment.
    assert not list(tmp_path.glob("home/envs/*/.complete"))


def test_a_cache_that_cannot_be_written() -> None:
    ended = run_dev("up", "--engine", "mock", "--port", str(Ports.free().gateway), TVS_HOME="/proc/nowhere")
    assert ended.returncode == 1
    assert "TVS_HOME" in ended.stdout
    assert "Traceback" not in ended.stdout


@pytest.mark.parametrize("command", ["", "up", "test", "lint", "setup", "lock"])
def test_help(command: str) -> None:
    ended = run_dev(*command.split(), "--help")
    assert ended.returncode == 0
    assert re.match(rf"usage: ./dev {command}", ended.stdout)
