"""`./dev up` with the mock engine: what it starts, says and leaves behind."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPResponse
from pathlib import Path

import pytest

from devtools import preconditions
from devtools import up as dev_up
from devtools.__main__ import is_base_url
from devtools.errors import DevError
from devtools.paths import ROOT
from devtools.stack import HOST, Ports, answers, loading
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


@contextmanager
def open_stream(up: Up, ports: Ports) -> Iterator[HTTPResponse]:
    """A streamed answer that has begun and does not go on."""
    stall = urllib.request.Request(f"http://{HOST}:{ports.triton_http}/mock/faults", b'{"stall_after": 2}')
    urllib.request.urlopen(stall).close()
    body = {"model": "tiny-random", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    url = f"http://{HOST}:{ports.gateway}/v1/chat/completions"
    chat = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(chat, timeout=30) as stream:
        assert stream.readline().startswith(b"data: ")
        yield stream


@pytest.mark.long
def test_an_open_stream_is_ended_with_an_error() -> None:
    ports = Ports.free()
    with running_up("--engine", "mock", ports=ports, ready_within=READY_WITHIN) as up, open_stream(up, ports) as stream:
        began = time.monotonic()
        up.process.send_signal(signal.SIGINT)
        *_, error, done = [line for line in stream.read().splitlines() if line]
        assert "error" in json.loads(error.removeprefix(b"data: "))
        assert done == b"data: [DONE]"
        assert up.process.wait(10) == 0
        # The last second of the time to finish is for the last words.
        assert time.monotonic() - began >= 4
    assert "waiting for open requests (up to 5 s)" in up.text


def test_a_second_ctrl_c_does_not_wait_for_open_requests() -> None:
    ports = Ports.free()
    with running_up("--engine", "mock", ports=ports, ready_within=READY_WITHIN) as up, open_stream(up, ports):
        pids = up.pids()
        began = time.monotonic()
        up.process.send_signal(signal.SIGINT)
        while "Ctrl-C again" not in up.text and time.monotonic() - began < 4:
            time.sleep(0.02)
        time.sleep(0.1)
        up.end(signal.SIGINT)
        assert time.monotonic() - began < 4
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


def test_an_engine_that_already_runs_and_the_other_polite_signals(tmp_path: Path) -> None:
    engine = Ports.free()
    with running_up("--engine", "mock", ports=engine, ready_within=READY_WITHIN) as mock:
        settings = tmp_path / "gateway.yaml"
        tokenizer = json.loads((mock.state / "models/tiny-random/1/model.json").read_text())["model"]
        model = {"triton_model": "tiny-random", "names": ["mine"], "tokenizer": tokenizer, "max_model_len": 4096}
        settings.write_text(json.dumps({"models": [{**model, "structured_outputs_backend": "guidance"}]}))
        url = f"http://{HOST}:{engine.triton_http}"
        flags = ("--engine", url, "--config", settings.name)
        with running_up(*flags, ports=Ports.free(), ready_within=READY_WITHIN, cwd=tmp_path) as up:
            assert '"model": "mine"' in up.commands[0]
            answer = subprocess.run(["bash", "-c", up.commands[0]], capture_output=True, check=True).stdout
            assert json.loads(answer)["model"] == "mine"
            pids = up.pids()
            assert up.end(signal.SIGHUP) == 0
            assert not alive(pids)
        settings.write_text(json.dumps({"models": [{**model, "triton_model": "another"}]}))
        ended = run_dev("up", *flags, "--port", str(Ports.free().gateway), cwd=tmp_path)
        assert ended.returncode == 1
        # Not after a minute's wait.
        assert "The gateway has no model to serve: Triton does not have the model 'another'" in ended.stdout
        assert mock.process.poll() is None
        pids = mock.pids()
        assert mock.end(signal.SIGTERM) == 0
        assert not alive(pids)


def test_a_taken_port_ends_it_before_anything_starts() -> None:
    ports = Ports.free()
    with socket.create_server((HOST, ports.gateway)):
        ended = run_dev("up", "--engine", "mock", "--port", str(ports.gateway))
    assert ended.returncode == 1
    assert ended.stdout == f"./dev: Port {ports.gateway} is taken; choose another with --port.\n"


@pytest.mark.parametrize("url", ["localhost:8000", "http://x:abc"])
def test_an_engine_that_is_no_url(url: str) -> None:
    ended = run_dev("up", "--engine", url)
    assert ended.returncode == 1
    assert ended.stdout.startswith("./dev: --engine takes mock or the base URL of a Triton, ")
    assert ended.stdout.count("\n") == 1


@pytest.mark.parametrize(
    "value",
    ["http://", "ftp://x", "http://x:99999", "http://[::1", "http://a b", "http://u:p@x", "http://x..y", "http://x?q"],
)
def test_a_malformed_url(value: str) -> None:
    assert not is_base_url(value)


@pytest.mark.parametrize("value", ["http://x", "https://x:1/", "http://[::1]:8000", "http://x:8000/triton"])
def test_a_base_url(value: str) -> None:
    assert is_base_url(value)


def test_an_engine_that_does_not_answer(tmp_path: Path) -> None:
    (tmp_path / "gateway.yaml").touch()
    ended = run_dev("up", "--engine", "http://127.0.0.1:1", "--config", "gateway.yaml", cwd=tmp_path)
    assert ended.returncode == 1
    assert ended.stdout.startswith("./dev: No Triton is ready at http://127.0.0.1:1; ")


def test_something_else_than_http_answers_at_the_engine_s_port() -> None:
    with socket.create_server((HOST, 0)) as server:

        def greet() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"SSH-2.0-x\r\n")
                connection.recv(4096)

        thread = threading.Thread(target=greet)
        thread.start()
        assert not answers(f"http://{HOST}:{server.getsockname()[1]}/")
        thread.join()


def test_an_engine_without_models() -> None:
    ended = run_dev("up", "--engine", "http://127.0.0.1:1")
    assert ended.returncode == 1
    assert ended.stdout.startswith("./dev: --engine URL needs --config FILE with the gateway's `models:`")


@pytest.mark.parametrize("config", ["nowhere.yaml", "."])
def test_a_config_that_cannot_be_read(config: str) -> None:
    ended = run_dev("up", "--engine", "mock", "--config", config)
    assert ended.returncode == 1
    assert re.fullmatch(rf"\./dev: --config {re.escape(config)} cannot be read: .*\n", ended.stdout)


def test_wrong_arguments_are_shown_with_their_command() -> None:
    wrong = run_dev("up", "--port", "abc").stdout
    assert "argument --port: must be a port from 1 to 65535, not 'abc'" in wrong
    assert run_dev("up", "foo").stdout.startswith("usage: ./dev up ")


def test_it_runs_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(ROOT / "dev")
    (tmp_path / "again").symlink_to("link")
    ended = subprocess.run([tmp_path / "again", "--help"], capture_output=True, text=True, check=True)
    assert ended.stdout.startswith("usage: ./dev ")


def test_no_python() -> None:
    bash = shutil.which("bash")
    assert bash is not None
    ended = subprocess.run([bash, "dev"], cwd=ROOT, env={"PATH": "/nonexistent"}, capture_output=True, text=True)
    assert ended.returncode == 1
    assert re.fullmatch(r"\./dev needs CPython 3.11 or newer .*\n", ended.stderr)


def test_the_engine_s_python_is_asked_for_before_anything_is_made(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def none() -> None:
        raise DevError("no engine Python")

    monkeypatch.setenv("TVS_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(preconditions, "check_engine_platform", lambda: None)
    monkeypatch.setattr(dev_up, "engine_python", none)
    with pytest.raises(DevError, match="no engine Python"):
        dev_up.up("triton", Ports.free(), None)
    assert not (tmp_path / "home").exists()


def test_what_triton_does_while_it_starts() -> None:
    log = 'I1 x.cc:1] "loading: a:1"\nI1 x.cc:1] "loading: b:1"\n'
    assert loading("") == ""
    assert loading(log) == "loading a, b"
    log += "I1 x.cc:1] \"successfully loaded 'a'\"\n"
    assert loading(log) == "loading b"
    assert loading(log + "I1 x.cc:1] \"successfully loaded 'b'\"\n") == "b is loaded"


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
    assert re.match(r"First set-up: about \d+ MB to download, \d+ MB on disk under ", ended.stdout)
    assert "Traceback" not in ended.stdout
    # What was begun is not taken for an environment.
    assert not list(tmp_path.glob("home/envs/*/.complete"))


def test_a_cache_that_cannot_be_written() -> None:
    ended = run_dev("up", "--engine", "mock", "--port", str(Ports.free().gateway), TVS_HOME="/proc/nowhere")
    assert ended.returncode == 1
    assert "TVS_HOME" in ended.stdout
    assert "Traceback" not in ended.stdout


def test_the_python_of_the_tests(tmp_path: Path) -> None:
    def said(*arguments: str) -> tuple[int, str]:
        command = [str(ROOT / "dev"), "python", *arguments]
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        return ended.returncode, ended.stdout

    script = "import sys, gateway; print(sys.argv[1:]); sys.exit(7)"
    assert said("-c", script, "-x", "--help") == (7, "['-x', '--help']\n")
    code, usage = said("-m", "bench", "load", "--help")
    assert (code, usage.splitlines()[0].startswith("usage: python -m bench load")) == (0, True)


@pytest.mark.parametrize("command", ["", "up", "test", "lint", "setup", "lock"])
def test_help(command: str) -> None:
    ended = run_dev(*command.split(), "--help")
    assert ended.returncode == 0
    assert re.match(rf"usage: ./dev {command}", ended.stdout)
