"""Streams that go through the native relay: the same bytes as without it, and everything that can happen to a stream on
its way. Each test makes sure that the relay had it."""

import asyncio
import itertools
import json
import os
import re
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.mock_engine.running import MockEngine, running_mock_engine
from bench.upstream.running import running_upstream
from bench.upstream.script import Model, answer_text
from tests.support.chat import MODEL, completion, events, joined
from tests.support.chat import chat as chat_of_a_form
from tests.support.gateway import Gateway, running_gateway
from tests.support.waiting import wait_for

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
# As in the checkout where the package is not installed: the folder of its source is one with nothing in it.
WITHOUT = (
    "import runpy, sys, types; sys.modules['gateway_relay'] = types.ModuleType('gateway_relay'); "
    "runpy.run_module('gateway', run_name='__main__')"
)
# As where there is no such folder either.
NOWHERE = "import runpy, sys; sys.modules['gateway_relay'] = None; runpy.run_module('gateway', run_name='__main__')"
# As where it is another version's, which knew no such number.
OLDER = "import runpy, gateway_relay; del gateway_relay.INTERFACE; runpy.run_module('gateway', run_name='__main__')"


_numbers = itertools.count()


def chat(**changes: Any) -> dict[str, Any]:
    """Each is the first of its form: those of a known one are the relay's from their beginning (`test_told`)."""
    return chat_of_a_form(**{"user": f"user {next(_numbers)}"} | changes)


@contextmanager
def relaying(engine: MockEngine, repository: Path, *flags: str) -> Iterator[Gateway]:
    with running_gateway("--triton", engine.url, "--model-repository", str(repository), *flags) as gateway:
        yield gateway.wait_until_ready()


@pytest.fixture(scope="module")
def native(paced: MockEngine, repository: Path) -> Iterator[Gateway]:
    with relaying(paced, repository) as gateway:
        assert any("native relay" in str(line["message"]) for line in gateway.logs)
        yield gateway


@pytest.fixture(scope="module")
def python(paced: MockEngine, repository: Path) -> Iterator[Gateway]:
    flags = ("--triton", paced.url, "--model-repository", str(repository))
    with running_gateway(*flags, command=("-c", WITHOUT)) as gateway:
        gateway.wait_until_ready()
        assert any("gateway_relay is not installed" in str(line["message"]) for line in gateway.logs)
        yield gateway


def test_without_the_package_and_its_source(paced: MockEngine, repository: Path) -> None:
    flags = ("--triton", paced.url, "--model-repository", str(repository))
    with running_gateway(*flags, command=("-c", NOWHERE)) as gateway:
        gateway.wait_until_ready()
        assert any("gateway_relay is not installed" in str(line["message"]) for line in gateway.logs)
        answer = httpx.post(f"{gateway.url}{CHAT}", json=chat(stream=True, max_tokens=3), verify=False)
        assert answer.text.endswith("data: [DONE]\n\n")


def test_a_package_that_does_not_fit_is_told_and_not_used(paced: MockEngine, repository: Path) -> None:
    flags = ("--triton", paced.url, "--model-repository", str(repository))
    with running_gateway(*flags, command=("-c", OLDER)) as gateway:
        gateway.wait_until_ready()
        assert any("pip install ./gateway_relay" in str(line["message"]) for line in gateway.logs)
        for _ in range(4):
            answer = httpx.post(f"{gateway.url}{CHAT}", json=chat_of_a_form(stream=True, max_tokens=20), verify=False)
            assert answer.text.endswith("data: [DONE]\n\n")
        assert relayed(gateway) == 0


def relayed(gateway: Gateway) -> float:
    return gateway.metric("gateway_relayed_tokens_total")


def anonymous(body: str) -> str:
    return re.sub(r'"id":"[^"]*","object":"([^"]*)","created":\d+', r'"object":"\1"', body)


SAID = 'Paris 日本 🎉 "\n\\\t\x1b data: x\n\n é\u2028/<tool\x7f!ü ' * 2


def streams() -> Iterator[tuple[str, str, dict[str, Any], bool]]:
    """Name, path, request, and whether it is nothing but text."""
    many = {"stream": True, "max_tokens": 30}
    usage = {"include_usage": True}
    yield "chat", CHAT, chat(**many), True
    yield "chat with usage", CHAT, chat(**many, stream_options=usage), True
    yield "chat with a stop", CHAT, chat(**many, stop=["never said"]), True
    yield "chat that stops", CHAT, chat(**many, stop=["ü"]), True
    yield "chat with echo", CHAT, chat(**many, echo=True), True
    yield "completion", COMPLETIONS, completion(**many), True
    yield "completion with usage", COMPLETIONS, completion(**many, stream_options=usage), True
    yield "completion with echo", COMPLETIONS, completion(**many, echo=True), True
    yield "long", CHAT, chat(stream=True, max_tokens=39), True
    yield "running usage", CHAT, chat(**many, stream_options=usage | {"continuous_usage_stats": True}), False
    yield "logprobs", CHAT, chat(**many, logprobs=True), False
    yield "token ids", CHAT, chat(**many, return_token_ids=True), False
    yield "two choices", CHAT, chat(**many, n=2, seed=1), False
    yield "tools", CHAT, chat(**many, tools=[{"type": "function", "function": {"name": "f"}}]), False
    yield "no echo of a prompt alone", COMPLETIONS, completion(stream=True, max_tokens=0, echo=True), False


STREAMS = {name: (path, body, is_text) for name, path, body, is_text in streams()}


@pytest.mark.parametrize("name", STREAMS)
def test_a_client_gets_the_same_bytes_with_and_without(
    name: str, native: Gateway, python: Gateway, slow: MockEngine
) -> None:
    path, body, is_text = STREAMS[name]
    slow.add_fault(text=SAID)
    before = relayed(native)
    answers = [httpx.post(gateway.url + path, json=body, timeout=60) for gateway in (native, python)]
    assert [answer.status_code for answer in answers] == [200, 200]
    if name == "two choices":
        # Their events come in any order.
        one, other = (sorted(anonymous(answer.text).split("\n\n")) for answer in answers)
        assert one == other
    else:
        assert anonymous(answers[0].text) == anonymous(answers[1].text)
    assert (relayed(native) > before) is is_text


@pytest.mark.parametrize(
    "fault",
    [
        {"error_after": {"tokens": 15, "error": "UNAVAILABLE: The engine is dead."}},
        {"error_after": {"tokens": 15, "error": "INTERNAL: it broke"}},
        {"close_after": {"events": 15}},
        {"close_after": {"bytes": 3000}},
        {"split_writes": 3},
        {"split_writes": [1, 500]},
        {"merge": [1, 1, 1, 1, 1, 3, 2]},
    ],
    ids=str,
)
def test_what_the_engine_does_ends_the_same(
    fault: dict[str, Any], native: Gateway, python: Gateway, slow: MockEngine
) -> None:
    before = relayed(native)
    body = chat(stream=True, max_tokens=39, stream_options={"include_usage": True})
    bodies = []
    for gateway in (native, python):
        slow.clear_faults()
        slow.add_fault(text=SAID, **fault)
        bodies.append(anonymous(httpx.post(gateway.url + CHAT, json=body, timeout=60).text))
    assert bodies[0] == bodies[1]
    assert bodies[0].endswith("data: [DONE]\n\n")
    # A stream can only be handed over between two chunks, and the cuts leave no such moment.
    assert (relayed(native) > before) is ("split_writes" not in fault)


class Gained:
    """What the gateway's metrics have gained since."""

    def __init__(self, gateway: Gateway, *names: str) -> None:
        self._gateway = gateway
        self._before = {name: gateway.metric(name) for name in names}

    def __getitem__(self, name: str) -> float:
        return self._gateway.metric(name) - self._before[name]


TOKENS, GAPS, FIRST = (
    "gateway_completion_tokens_total",
    "gateway_inter_token_latency_seconds_count",
    "gateway_time_to_first_token_seconds_count",
)
GAP_SUM, RELAYED = "gateway_inter_token_latency_seconds_sum", "gateway_relayed_tokens_total"


def test_all_is_counted(native: Gateway, slow: MockEngine) -> None:
    gained = Gained(native, TOKENS, GAPS, GAP_SUM, FIRST, RELAYED)
    answer = httpx.post(native.url + CHAT, json=chat(stream=True, max_tokens=40, ignore_eos=True), timeout=60)
    assert joined(events(answer))
    assert 20 < gained[RELAYED] < 40
    # All but the first one came after another.
    assert (gained[TOKENS], gained[GAPS], gained[FIRST]) == (40, 39, 1)
    # 5 ms apart at least.
    assert 39 * 0.004 < gained[GAP_SUM] < answer.elapsed.total_seconds()
    assert native.metric("gateway_requests_in_flight") == 0


def connect(gateway: Gateway) -> socket.socket:
    host, _, port = gateway.url.removeprefix("http://").partition(":")
    connection = socket.create_connection((host, int(port)), timeout=60)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def request(*lines: str, **changes: Any) -> tuple[bytes, bytes]:
    """Head and body."""
    body = json.dumps(chat(**{"stream": True, "max_tokens": 30, "ignore_eos": True} | changes)).encode()
    first = (f"POST {CHAT} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}")
    return "\r\n".join((*first, *lines)).encode() + b"\r\n\r\n", body


class Answers:
    """What comes on a connection, answer by answer."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._data = b""

    def until(self, mark: bytes) -> bytes:
        while mark not in self._data:
            data = self._connection.recv(65536)
            assert data, f"the connection ended after {self._data!r}"
            self._data += data
        found, _, self._data = self._data.partition(mark)
        return found + mark

    def stream(self) -> bytes:
        """The events of one."""
        head = self.until(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK")
        assert b"transfer-encoding: chunked" in head
        parts = []
        while size := int(self.until(b"\r\n"), 16):
            while len(self._data) < size + 2:
                self._data += self._connection.recv(65536)
            parts.append(self._data[:size])
            assert self._data[size : size + 2] == b"\r\n"
            self._data = self._data[size + 2 :]
        assert self.until(b"\r\n") == b"\r\n"
        return b"".join(parts)


def is_whole(stream: bytes) -> bool:
    *parts, done, rest = stream.split(b"\n\n")
    return (done, rest) == (b"data: [DONE]", b"") and b'"finish_reason":"length"' in parts[-1]


def test_a_connection_is_kept_and_used_again(native: Gateway, slow: MockEngine) -> None:
    with connect(native) as connection:
        answers = Answers(connection)
        for number in range(3):
            before = relayed(native)
            connection.sendall(b"".join(request()))
            assert is_whole(answers.stream()), number
            assert relayed(native) > before


def test_pipelined_requests_wait_for_the_one_that_is_relayed(native: Gateway, slow: MockEngine) -> None:
    before = relayed(native)
    with connect(native) as connection:
        answers = Answers(connection)
        connection.sendall(b"".join(request()))
        # In the middle of the first, two more.
        begin = answers.until(b'"content":"')
        connection.sendall(b"".join(request()) * 2)
        assert begin.startswith(b"HTTP/1.1 200 OK")
        rest = answers.until(b"0\r\n\r\n")
        assert rest.count(b"data: [DONE]") == 1
        assert is_whole(answers.stream())
        assert is_whole(answers.stream())
    assert relayed(native) > before + 60


def test_a_body_that_is_waited_for(native: Gateway, slow: MockEngine) -> None:
    before = relayed(native)
    head, body = request("Expect: 100-continue")
    with connect(native) as connection:
        answers = Answers(connection)
        connection.sendall(head)
        assert answers.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body)
        assert is_whole(answers.stream())
    assert relayed(native) > before


def test_a_connection_that_is_to_be_closed_is(native: Gateway, slow: MockEngine) -> None:
    with connect(native) as connection:
        connection.sendall(b"".join(request("Connection: close")))
        answers = Answers(connection)
        assert is_whole(answers.stream())
        assert connection.recv(10) == b""


def begin(gateway: Gateway, engine: MockEngine, **changes: Any) -> tuple[socket.socket, Answers]:
    """A stream of many tokens that has come into the relay."""
    connection = connect(gateway)
    answers = Answers(connection)
    connection.sendall(b"".join(request(max_tokens=400, **changes)))
    for _ in range(12):
        answers.until(b'"content":"')
    return connection, answers


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    connection.close()


def half_close(connection: socket.socket) -> None:
    # A server takes it for the client's end, with the relay as without.
    connection.shutdown(socket.SHUT_WR)
    while connection.recv(65536):
        pass
    connection.close()


@pytest.mark.parametrize("leave", [socket.socket.close, reset, half_close])
def test_a_client_that_goes_away_ends_the_engines_work(
    leave: Callable[[socket.socket], None], native: Gateway, slow: MockEngine
) -> None:
    ended, wasted = "gateway_cancelled_requests_total", "gateway_cancelled_completion_tokens_total"
    gained = Gained(native, ended, wasted, RELAYED)
    connection, _ = begin(native, slow)
    leave(connection)
    (asked,) = slow.wait_for_requests(1)
    assert asked["ended"] == "cancelled"
    wait_for(lambda: gained[ended] == 1)
    assert native.metric("gateway_requests_in_flight") == 0
    assert 0 < gained[RELAYED] < gained[wasted] < 400
    # What comes next is as ever.
    assert events(httpx.post(native.url + CHAT, json=chat(stream=True), timeout=60))


def test_a_deadline_ends_it_with_whole_events(slow: MockEngine, repository: Path) -> None:
    with relaying(slow, repository, "--request-timeout", "2") as gateway:
        slow.add_fault(token_interval_ms=20)
        answer = httpx.post(gateway.url + CHAT, json=chat(stream=True, max_tokens=400, ignore_eos=True), timeout=60)
        *chunks, error = events(answer)
        assert error["error"]["code"] == "deadline_exceeded"
        assert len(chunks) > 10
        assert len(chunks) - 1 == gateway.metric("gateway_completion_tokens_total")
        assert relayed(gateway) > 5
        (asked,) = slow.wait_for_requests(1)
        assert asked["ended"] == "cancelled"


def test_an_engine_that_stops_is_found_out_and_one_that_goes_on_is_not(slow: MockEngine, repository: Path) -> None:
    with relaying(slow, repository, "--stall-timeout", "1") as gateway:
        slow.add_fault(token_interval_ms=100)
        answer = httpx.post(gateway.url + CHAT, json=chat(stream=True, max_tokens=40, ignore_eos=True), timeout=60)
        assert "error" not in events(answer)[-1]
        assert relayed(gateway) > 30
        slow.clear_faults()
        slow.add_fault(stall_after=20)
        answer = httpx.post(gateway.url + CHAT, json=chat(stream=True, max_tokens=400, ignore_eos=True), timeout=60)
        *chunks, error = events(answer)
        assert error["error"]["message"] == "The inference server makes no progress."
        assert len(chunks) == 21
        assert relayed(gateway) > 45


def test_a_drain_waits_for_a_relayed_stream(slow: MockEngine, repository: Path) -> None:
    with relaying(slow, repository) as gateway:
        connection, answers = begin(gateway, slow)
        gateway.process.send_signal(signal.SIGTERM)
        with connection:
            assert answers.until(b"0\r\n\r\n").endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        assert gateway.process.wait(30) == 0
        assert not [line for line in gateway.logs if "Traceback" in str(line)]


def test_a_relayed_stream_that_outlasts_the_drain_ends_with_an_error(slow: MockEngine, repository: Path) -> None:
    with relaying(slow, repository, "--shutdown-timeout", "1") as gateway:
        slow.add_fault(token_interval_ms=50)
        connection, answers = begin(gateway, slow)
        gateway.process.send_signal(signal.SIGTERM)
        with connection:
            rest = answers.until(b"0\r\n\r\n")
        assert b"The gateway is shutting down." in rest
        assert rest.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        assert gateway.process.wait(30) == 0
        assert not [line for line in gateway.logs if "Traceback" in str(line)]


def test_a_kill_of_the_engine_in_mid_stream_is_an_error_event(repository: Path) -> None:
    with (
        running_mock_engine(model_repository=repository, token_interval_ms=5) as dying,
        relaying(dying, repository) as gateway,
    ):
        connection, answers = begin(gateway, dying)
        with connection:
            os.kill(dying.pid, signal.SIGKILL)
            rest = answers.until(b"0\r\n\r\n")
        assert b"The inference server died in the middle of the answer." in rest
        assert rest.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        assert relayed(gateway) > 5


PACED = Model("paced", 1024, 5, tokens_per_second=20)
FLOOD = Model("flood", 2048, 16_384, tokens_per_second=300)
"""6 MB in a bit more than a second, of which a stream in the relay can be held up."""


@contextmanager
def before_a_source(repository: Path, folder: Path, *flags: str) -> Iterator[Gateway]:
    """The gateway before a byte source that is fast enough for anything."""
    for model in (PACED, FLOOD):
        shutil.copytree(repository / MODEL, folder / model.name)
    with (
        running_upstream([PACED, FLOOD]) as source,
        running_gateway("--triton", source.url, "--model-repository", str(folder), *flags) as gateway,
    ):
        yield gateway.wait_until_ready()


def silent_client(gateway: Gateway) -> socket.socket:
    """It asks for more than the kernel holds, and reads nothing."""
    connection = connect(gateway)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.sendall(b"".join(request(model="flood", max_tokens=400)))
    return connection


def test_a_client_that_does_not_read_is_let_go_at_the_deadline(repository: Path, tmp_path: Path) -> None:
    with (
        before_a_source(repository, tmp_path, "--request-timeout", "3") as gateway,
        silent_client(gateway),
    ):
        wait_for(lambda: gateway.metric("gateway_requests_total", status="499") == 1)
        assert relayed(gateway) > 0
        assert gateway.metric("gateway_requests_in_flight") == 0


def test_hundreds_of_streams_beside_some_that_nobody_reads(repository: Path, tmp_path: Path) -> None:
    """Nothing is lost, and nobody waits for the others."""
    tokens = 60
    with before_a_source(repository, tmp_path, "--max-in-flight", "400") as gateway:
        silent = [silent_client(gateway) for _ in range(8)]

        async def ask() -> None:
            limits = httpx.Limits(max_connections=256)
            async with httpx.AsyncClient(base_url=gateway.url, limits=limits, timeout=90) as client:
                body = chat(model="paced", stream=True, max_tokens=tokens)
                answers = await asyncio.gather(*(client.post(CHAT, json=body) for _ in range(256)))
            assert {joined(events(answer)) for answer in answers} == {answer_text(PACED, tokens)}

        asyncio.run(ask())
        assert relayed(gateway) > 256 * (tokens - 20)
        assert gateway.metric("gateway_requests_in_flight") == len(silent)
        for connection in silent:
            connection.close()
        wait_for(lambda: gateway.metric("gateway_requests_in_flight") == 0)
        assert not [line for line in gateway.logs if "Traceback" in str(line)]
