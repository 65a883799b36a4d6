"""Streams of known forms, which the native relay asks for and tells from the head to the end: to the client the same as
one that is the first of its form, whatever the engine does, and everything is counted."""

import contextlib
import fcntl
import socket
import sys
import termios
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.mock_engine.running import MockEngine, running_mock_engine
from bench.upstream.script import answer_text
from tests.mock.test_direct import ask, connected, learned, request, unchunked, without_identity
from tests.mock.test_relay import FLOOD, SAID, before_a_source, relayed
from tests.support.chat import events, joined
from tests.support.gateway import Gateway, running_gateway
from tests.support.waiting import wait_for

# Of the client's own mistakes, which the engine finds.
REFUSED = "INVALID_ARG max_tokens: it is too large"


def told(client: httpx.Client, engine: MockEngine, gateway: Gateway, fault: dict[str, Any], **fields: Any) -> list[Any]:
    """The answers to a request of a known form and to one of another when this goes wrong."""
    learned(gateway, client, engine, stream=True, user="known", **fields)
    answers = []
    for user in ("known", "another"):
        engine.clear_faults()
        engine.add_fault(**fault)
        answers.append(without_identity(ask(client, "Say it.", stream=True, user=user, **fields)))
    engine.clear_faults()
    return answers


@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 5, 6, 30])
def test_every_length(tokens: int, gateway: Gateway, client: httpx.Client, engine: MockEngine) -> None:
    fields = {"max_tokens": tokens, "stream_options": {"include_usage": True}}
    learned(gateway, client, engine, stream=True, user="known", **fields)
    before = relayed(gateway)
    known = without_identity(ask(client, "Say it.", stream=True, user="known", **fields))
    assert relayed(gateway) == before + tokens
    assert known == without_identity(ask(client, "Say it.", stream=True, user="another", **fields))


@pytest.mark.parametrize(
    "fault",
    [
        {"split_writes": [1]},
        {"split_writes": 5},
        {"split_writes": [150, 3]},
        {"merge": 3},
        {"merge": [1, 2, 30]},
        {"error_before": REFUSED},
        {"error_before": "UNAVAILABLE: it cannot"},
        {"error_after": {"tokens": 0, "error": "INTERNAL: it broke"}},
        {"error_after": {"tokens": 1, "error": "INTERNAL: it broke"}},
        {"error_after": {"tokens": 9, "error": "UNAVAILABLE: The engine is dead."}},
        {"finish_reason_error": True},
        *({"close_after": {"events": count}} for count in (1, 2, 3, 6)),
        *({"close_after": {"bytes": count}} for count in (1, 100, 200, 300, 320, 500, 900)),
    ],
    ids=str,
)
def test_what_the_engine_does_ends_the_same(
    fault: dict[str, Any], gateway: Gateway, client: httpx.Client, engine: MockEngine
) -> None:
    known, unknown = told(client, engine, gateway, {"text": SAID, **fault}, max_tokens=30)
    assert known == unknown
    wait_for(lambda: gateway.metric("gateway_requests_in_flight") == 0)
    wait_for(lambda: ask(client, seed=1).status_code == 200)


def test_the_next_request_may_come_before_the_gateway_knows_of_the_end(
    gateway: Gateway, client: httpx.Client, engine: MockEngine
) -> None:
    learned(gateway, client, engine, stream=True, max_tokens=6)
    before = gateway.metric("gateway_direct_requests_total")
    asked = request(max_tokens=6, stream=True)
    with connected(gateway) as connection:
        for _ in range(100):
            connection.sendall(asked)
            answer = b""
            while not answer.endswith(b"0\r\n\r\n"):
                answer += connection.recv(65536)
            assert answer.count(b"HTTP/1.1 200 OK") == answer.count(b"[DONE]") == 1
    assert gateway.metric("gateway_direct_requests_total") == before + 100


@pytest.fixture
def by_name(engine: MockEngine, repository: Path) -> Iterator[Gateway]:
    """Whose Triton has a name, which may stand for addresses where nobody listens."""
    url = engine.url.replace("127.0.0.1", "localhost")
    with running_gateway("--triton", url, "--model-repository", str(repository)) as gateway:
        yield gateway.wait_until_ready()


def test_an_instance_with_a_name(by_name: Gateway, engine: MockEngine) -> None:
    with httpx.Client(base_url=by_name.url) as client:

        def is_told() -> bool:
            before = relayed(by_name)
            assert ask(client, stream=True, max_tokens=2).status_code == 200
            return relayed(by_name) == before + 2

        # Once it has been connected to the usual way.
        wait_for(is_told)
        assert is_told()


def test_an_instance_that_is_away_for_a_while(repository: Path) -> None:
    with contextlib.ExitStack() as stack:
        with running_mock_engine(model_repository=repository) as first:
            port = int(first.url.rpartition(":")[2])
            flags = ("--triton", first.url, "--model-repository", str(repository))
            gateway = stack.enter_context(running_gateway(*flags)).wait_until_ready()
            client = stack.enter_context(httpx.Client(base_url=gateway.url))
            learned(gateway, client, first, stream=True)
        assert ask(client, stream=True).status_code == 503
        stack.enter_context(running_mock_engine(model_repository=repository, port=port))
        wait_for(lambda: ask(client, stream=True).status_code == 200)
        before = gateway.metric("gateway_direct_requests_total")
        assert ask(client, stream=True).status_code == 200
        assert gateway.metric("gateway_direct_requests_total") == before + 1


def test_an_instance_that_stalls_behind_the_head_of_the_answer(repository: Path, engine: MockEngine) -> None:
    """The client has the head and the first event, and gets the rest from another instance."""
    with running_mock_engine(model_repository=repository) as second:
        triton = [flag for one in (engine, second) for flag in ("--triton", one.url)]
        flags = (*triton, "--model-repository", str(repository), "--stall-timeout", "1")
        with running_gateway(*flags) as gateway, httpx.Client(base_url=gateway.wait_until_ready().url) as client:
            wait_for(lambda: sum("is ready on" in line["message"] for line in gateway.logs) == 2)
            learned(gateway, client, stream=True)
            whole = without_identity(ask(client, stream=True))
            engine.add_fault(stall_after=0)
            before = gateway.metric("gateway_retries_total")
            while gateway.metric("gateway_retries_total") == before:
                assert without_identity(ask(client, stream=True)) == whole
            engine.clear_faults()


@pytest.mark.parametrize("tokens", [0, 1, 8])
def test_a_client_that_goes_away_ends_the_engine_s_work(
    tokens: int, gateway: Gateway, client: httpx.Client, engine: MockEngine
) -> None:
    learned(gateway, client, engine, stream=True)
    cancelled = gateway.metric("gateway_cancelled_requests_total")
    engine.add_fault(stall_after=tokens)
    with connected(gateway) as connection:
        connection.sendall(request(stream=True))
        wait_for(lambda: engine.state()["in_flight"] == 1)
        answer = b""
        # The first event comes with the engine's admission, ahead of any token.
        while answer.count(b'"content"') < tokens + 1:
            answer += connection.recv(65536)
    wait_for(lambda: engine.state()["in_flight"] == 0)
    wait_for(lambda: gateway.metric("gateway_cancelled_requests_total") == cancelled + 1)
    engine.clear_faults()
    assert ask(client, stream=True).status_code == 200


def test_a_deadline_ends_a_stream_between_two_chunks(repository: Path, engine: MockEngine) -> None:
    flags = ("--triton", engine.url, "--model-repository", str(repository), "--request-timeout", "1.5")
    with running_gateway(*flags) as gateway, httpx.Client(base_url=gateway.wait_until_ready().url) as client:
        for tokens in (2, 8):
            learned(gateway, client, engine, stream=True)
            engine.add_fault(stall_after=tokens)
            answer = ask(client, stream=True)
            engine.clear_faults()
            *said, error = events(answer)
            assert joined(said)
            assert error["error"]["code"] == "deadline_exceeded" or "time" in error["error"]["message"]
            assert answer.text.endswith("data: [DONE]\n\n")


def test_many_at_once_are_counted_to_the_last_token(gateway: Gateway, client: httpx.Client, engine: MockEngine) -> None:
    fields: dict[str, Any] = {"stream": True, "max_tokens": 10}
    learned(gateway, client, engine, **fields)
    names = ("gateway_completion_tokens_total", "gateway_direct_requests_total", "gateway_relayed_tokens_total")
    before = [gateway.metric(name) for name in names]
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda number: ask(client, f"{number % 7}", **fields), range(200)))
    assert {answer.status_code for answer in answers} == {200}
    assert len({joined(events(answer)) for answer in answers}) <= 7
    gained = [gateway.metric(name) - value for name, value in zip(names, before, strict=True)]
    assert gained == [2000, 200, 2000]
    wait_for(lambda: gateway.metric("gateway_requests_in_flight") == 0)


def unread(connection: socket.socket) -> int:
    """Bytes."""
    return int.from_bytes(fcntl.ioctl(connection, termios.FIONREAD, b"\0" * 4), sys.byteorder)


def wait_until_full(connection: socket.socket) -> None:
    """No more comes, be it that there is no room for it."""
    sizes = [0]

    def is_full() -> bool:
        sizes.append(unread(connection))
        return sizes[-1] > 0 and len(set(sizes[-10:])) == 1

    wait_for(is_full)


@pytest.mark.parametrize("tokens", [20, 100, 170, 240])
def test_a_client_that_reads_late_gets_all_and_may_ask_again(tokens: int, flood: Gateway) -> None:
    """Of answers up to more than the sockets hold, so that the end of them waits in the gateway."""
    fields: dict[str, Any] = {"model": FLOOD.name, "stream": True, "max_tokens": tokens}
    whole = answer_text(FLOOD, tokens)
    with httpx.Client(base_url=flood.url) as client:
        learned(flood, client, **fields)
    with connected(flood) as connection:
        for _ in range(3):
            before = flood.metric("gateway_direct_requests_total")
            connection.sendall(request(**fields))
            wait_until_full(connection)
            answer = bytearray()
            while not answer.endswith(b"0\r\n\r\n"):
                answer += connection.recv(65536)
            assert joined(events(httpx.Response(200, content=unchunked(bytes(answer))))) == whole
            assert flood.metric("gateway_direct_requests_total") == before + 1


@pytest.fixture(scope="module")
def flood(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with before_a_source(repository, tmp_path_factory.mktemp("source")) as gateway:
        yield gateway


def test_a_gateway_that_ends_says_nothing_of_what_it_held(repository: Path, engine: MockEngine) -> None:
    """As nanobind does of its own accord, on standard error."""
    flags = ("--triton", engine.url, "--model-repository", str(repository))
    with running_gateway(*flags) as gateway, httpx.Client(base_url=gateway.wait_until_ready().url) as client:
        learned(gateway, client, engine, stream=True)
    assert gateway.process.returncode == 0
    assert not [line for line in gateway.logs if line["level"] == "raw"]
