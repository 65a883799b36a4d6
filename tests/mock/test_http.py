"""HTTP as clients really speak it, and how the process ends."""

import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from bench.mock_engine.running import MockEngine, running_mock_engine
from devtools.paths import ROOT
from tests.support.chat import ask, chat
from tests.support.gateway import Gateway, running_gateway
from tests.support.service import is_alive

BODY = json.dumps(chat(max_tokens=2)).encode()


def exchange(gateway: Gateway, *pieces: bytes, pause: float = 0.02) -> bytes:
    """Send the pieces, read until the server closes or says no more for half a second."""
    host, _, port = gateway.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(0.5)
        answer = b""
        try:
            for piece in pieces:
                connection.sendall(piece)
                time.sleep(pause)
            while data := connection.recv(65536):
                answer += data
        except (TimeoutError, ConnectionResetError):
            pass  # silence, or a close with something of ours unread
        return answer


def head(*lines: str, length: int | str = len(BODY)) -> bytes:
    first = ("POST /v1/chat/completions HTTP/1.1", "Host: x", f"Content-Length: {length}")
    return "\r\n".join((*first, *lines)).encode() + b"\r\n\r\n"


@pytest.mark.parametrize("name", ["Upgrade", "upgrade", "UPGRADE"])
@pytest.mark.parametrize("split", [False, True])
def test_a_client_that_asks_for_http2_is_answered_over_http1(
    name: str, split: bool, gateway: Gateway, engine: MockEngine
) -> None:
    request = head("Connection: Upgrade, HTTP2-Settings", f"{name}: h2c", "HTTP2-Settings: AAMAAABkAAQ")
    pieces = (request, BODY) if split else (request + BODY,)
    assert exchange(gateway, *pieces).startswith(b"HTTP/1.1 200 OK")


def test_the_text_h2c_in_a_body_is_text(gateway: Gateway, engine: MockEngine) -> None:
    body = json.dumps(chat("Upgrade: h2c", max_tokens=2)).encode()
    assert exchange(gateway, head(length=len(body)), body).startswith(b"HTTP/1.1 200 OK")
    (request,) = engine.wait_for_requests(1)
    assert "Upgrade: h2c" in request["inputs"]["text_input"]


def test_a_body_that_looks_like_a_head_is_a_body(gateway: Gateway) -> None:
    body = b"\r\nUpgrade: h2c\r\n\r\n"
    # Without these bytes the rest of a body would be waited for.
    for begin in (b"", b"{}"):
        pieces = (head(length=len(begin + body)), begin, body)
        assert exchange(gateway, *pieces, pause=0.6).startswith(b"HTTP/1.1 400 Bad Request")


def test_a_client_that_asks_for_http2_may_ask_again(gateway: Gateway, engine: MockEngine) -> None:
    request = head("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQ") + BODY
    assert exchange(gateway, request, request, pause=0.3).count(b"HTTP/1.1 200 OK") == 2


def test_pipelined_requests_are_answered_in_order(gateway: Gateway, engine: MockEngine) -> None:
    answer = exchange(gateway, (head() + BODY) * 3)
    assert answer.count(b"HTTP/1.1 200 OK") == 3


def test_a_body_in_many_pieces_and_one_that_is_waited_for(gateway: Gateway, engine: MockEngine) -> None:
    pieces = [BODY[i : i + 7] for i in range(0, len(BODY), 7)]
    assert exchange(gateway, head(), *pieces, pause=0.001).startswith(b"HTTP/1.1 200 OK")
    answer = exchange(gateway, head("Expect: 100-continue"), BODY, pause=0.1)
    assert answer.startswith(b"HTTP/1.1 100 Continue")
    assert b"HTTP/1.1 200 OK" in answer


@pytest.mark.parametrize("length", ["9" * 19, "9" * 5000, "0" * 5000 + "5"])
def test_an_absurd_content_length(length: str, gateway: Gateway, engine: MockEngine) -> None:
    answer = exchange(gateway, head(length=length), b"{}")
    assert answer.startswith((b"HTTP/1.1 413 ", b"HTTP/1.1 400 "))
    assert httpx.get(f"{gateway.url}/health/live").status_code == 200


def test_a_head_without_end_is_cut(gateway: Gateway) -> None:
    line = b"X-Padding: " + b"x" * 1000 + b"\r\n"
    # Some of it has to stay unsent, or the close would be a reset that can overtake the answer.
    answer = exchange(gateway, b"GET / HTTP/1.1\r\n" + line * 32, line * 33)
    assert answer.startswith(b"HTTP/1.1 431 ")


def test_the_connection_lives_on_after_errors(gateway: Gateway, engine: MockEngine) -> None:
    bad = b'{"model": 1}'
    answer = exchange(gateway, head(length=len(bad)) + bad + head() + BODY)
    assert answer.index(b"HTTP/1.1 400 ") < answer.index(b"HTTP/1.1 200 OK")


def test_a_slow_upload_ends(repository: Path, engine: MockEngine) -> None:
    flags = ("--triton", engine.url, "--model-repository", str(repository), "--request-timeout", "0.5")
    with running_gateway(*flags) as gateway:
        gateway.wait_until_ready()
        assert exchange(gateway, head(), BODY[:10], pause=0.4).startswith(b"HTTP/1.1 408 ")


def test_a_client_that_does_not_read_is_let_go_at_the_deadline(repository: Path) -> None:
    flags = ("--model-repository", str(repository), "--request-timeout", "1")
    with (
        running_mock_engine(model_repository=repository) as flooding,
        running_gateway("--triton", flooding.url, *flags) as gateway,
    ):
        gateway.wait_until_ready()
        flooding.add_fault(text="x" * 50_000_000)
        host, _, port = gateway.url.removeprefix("http://").partition(":")
        body = json.dumps(chat(stream=True, max_tokens=500)).encode()
        with socket.create_connection((host, int(port))) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.sendall(head(length=len(body)) + body)
            give_up_at = time.monotonic() + 60
            while (
                gateway.metric("gateway_requests_total", status="499")
                + gateway.metric("gateway_requests_total", status="200")
                == 0
            ):
                assert time.monotonic() < give_up_at
                time.sleep(0.05)
        assert gateway.metric("gateway_requests_in_flight") == 0


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_an_orderly_end_drains_and_is_exit_code_0(sent: signal.Signals, repository: Path) -> None:
    with (
        running_mock_engine(model_repository=repository, token_interval_ms=20) as slow,
        running_gateway("--triton", slow.url, "--model-repository", str(repository)) as gateway,
        httpx.Client(base_url=gateway.wait_until_ready().url, timeout=10) as client,
        client.stream("POST", "/v1/chat/completions", json=chat(stream=True)) as answer,
    ):
        lines = answer.iter_lines()
        next(lines)
        gateway.process.send_signal(sent)
        assert [line for line in lines if line][-1] == "data: [DONE]"
        assert gateway.process.wait(10) == 0
        assert not [line for line in gateway.logs if "Traceback" in str(line)]


def test_a_stream_that_outlasts_the_drain_ends_with_an_error_and_done(repository: Path, engine: MockEngine) -> None:
    flags = ("--triton", engine.url, "--model-repository", str(repository), "--shutdown-timeout", "1")
    with (
        running_gateway(*flags) as gateway,
        httpx.Client(base_url=gateway.wait_until_ready().url, timeout=10) as client,
    ):
        engine.add_fault(stall_after=3)
        with client.stream("POST", "/v1/chat/completions", json=chat(stream=True)) as answer:
            lines = answer.iter_lines()
            next(lines)
            gateway.process.send_signal(signal.SIGTERM)
            *_, error, done = [line for line in lines if line]
        assert json.loads(error.removeprefix("data: "))["error"]["message"] == "The gateway is shutting down."
        assert done == "data: [DONE]"
        assert gateway.process.wait(10) == 0
        assert not [line for line in gateway.logs if "exception" in line or "Traceback" in str(line)]


def test_a_kill_leaves_no_process(repository: Path, engine: MockEngine) -> None:
    with running_gateway("--triton", engine.url, "--model-repository", str(repository)) as gateway:
        gateway.wait_until_ready()
        children = Path(f"/proc/{gateway.process.pid}/task/{gateway.process.pid}/children").read_text().split()
        assert children
        gateway.process.kill()
        gateway.process.wait()
        give_up_at = time.monotonic() + 30
        while any(is_alive(child) for child in children):
            assert time.monotonic() < give_up_at
            time.sleep(0.02)


def test_a_clients_own_stop_is_no_violation_of_the_engine(client: httpx.Client, engine: MockEngine) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    engine.add_fault(text='{"a": 1')
    assert "x-gateway-structured-output" in ask(client, guided_json=schema).headers
    answer = ask(client, guided_json=schema, stop=["}"])
    assert answer.json()["choices"][0]["finish_reason"] == "stop"
    assert "x-gateway-structured-output" not in answer.headers


def test_requests_with_the_defaults_that_sdks_send(client: httpx.Client) -> None:
    defaults = {
        "n": 1, "logprobs": False, "top_logprobs": 0, "tools": [], "functions": [], "tool_choice": "none",
        "parallel_tool_calls": True, "modalities": ["text"], "response_format": {"type": "text"},
        "reasoning_effort": None, "audio": None,
    }  # fmt: skip
    answer = ask(client, "hi", **defaults)
    assert answer.status_code == 200, answer.text
    assert "x-gateway-warning" not in answer.headers


def test_a_checker_that_cannot_start_is_one_sentence(repository: Path, engine: MockEngine) -> None:
    """Here since the Python that runs the gateway cannot be run again."""
    script = "import sys, gateway.app; sys.executable = '/nowhere/python'; sys.argv[0] = 'gateway'; "
    script += "import runpy; runpy.run_module('gateway', run_name='__main__')"
    process = subprocess.run(
        [sys.executable, "-c", script, "--port", "0", "--triton", engine.url, "--model-repository", str(repository)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert process.returncode == 1
    assert "the schema checker does not start" in process.stderr
    assert "Traceback" not in process.stderr
