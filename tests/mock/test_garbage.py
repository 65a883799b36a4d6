"""However a request or a connection ends, what it had goes with it, and does not wait for the garbage collector: that
may come late, and a body may be of megabytes."""

import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.mock_engine.running import MockEngine
from tests.mock.test_direct import PATH, ask, body, learned
from tests.support.garbage import Watched, watched_gateway
from tests.support.gateway import raw_request
from tests.support.waiting import wait_for

COUNT = 10

End = Callable[[Watched, MockEngine, int], None]


@pytest.fixture(scope="module")
def watched(paced: MockEngine, repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    file = tmp_path_factory.mktemp("garbage") / "count.json"
    flags = ("--triton", paced.url, "--model-repository", str(repository), "--request-timeout", "2")
    with watched_gateway(file, *flags) as watched:
        with httpx.Client(base_url=watched.gateway.url, timeout=30, verify=False) as client:
            for stream in (False, True):
                learned(watched.gateway, client, stream=stream)
        yield watched


def answered(status: int = 200, more: str = "", **fields: Any) -> End:
    def end(watched: Watched, _: MockEngine, number: int) -> None:
        own = {"user": str(number)} if "user" in fields else {}
        # A connection for each: they end, too.
        with httpx.Client(base_url=watched.gateway.url, timeout=30, verify=False) as client:
            assert ask(client, f"Number {number}.{more}", **fields | own).status_code == status

    return end


def gone(**fields: Any) -> End:
    def end(watched: Watched, engine: MockEngine, _: int) -> None:
        before = len(engine.requests())
        with raw_request(watched.gateway, PATH, json.dumps(body("Go on.", max_tokens=400, **fields)).encode()):
            wait_for(lambda: len(engine.requests()) > before)
            time.sleep(0.02)

    return end


def late(watched: Watched, engine: MockEngine, number: int) -> None:
    """One of each for all: they take a while."""
    if number == 0:
        failing(200, stall_after=2, stream=True, user="")(watched, engine, number)
        failing(200, stall_after=2, stream=True)(watched, engine, number)
        failing(504, stall_after=2, stream=False)(watched, engine, number)


def failing(status: int, stream: bool, user: str | None = None, **fault: Any) -> End:
    fields: dict[str, Any] = {"stream": stream} | ({} if user is None else {"user": user})

    def end(watched: Watched, engine: MockEngine, number: int) -> None:
        engine.add_fault(**fault)
        answered(status, **fields)(watched, engine, number)
        engine.clear_faults()

    return end


def half(watched: Watched, engine: MockEngine, number: int) -> None:
    with half_sent(watched):
        pass
    if number == 0:
        # It takes a while.
        with half_sent(watched) as connection:
            assert connection.recv(1000).startswith(b"HTTP/1.1 408 ")


@contextlib.contextmanager
def half_sent(watched: Watched) -> Iterator[socket.socket]:
    host, _, port = watched.gateway.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{{".encode())
        yield connection


ENDS: dict[str, End] = {
    "answered": answered(stream=False),
    "answered, by the relay": answered(stream=True),
    "answered, of an unknown form": answered(stream=False, user=""),
    "answered, a stream of an unknown form": answered(stream=True, user=""),
    "refused by the schema": answered(400, messages=5),
    "refused by a field's bounds": answered(400, temperature=-1),
    "refused, no such model": answered(404, model="none"),
    "refused by the engine": answered(400, more="x" * 600),
    "a stream refused by the engine": answered(400, more="x" * 600, stream=True),
    "refused by the checker": answered(400, structured_outputs={"regex": "("}),
    "the engine fails": failing(500, stream=False, error_before="INTERNAL: it broke"),
    "the engine fails, of an unknown form": failing(500, stream=False, user="", error_before="INTERNAL: it broke"),
    "the engine fails a stream": failing(200, stream=True, error_after={"tokens": 2, "error": "INTERNAL: it broke"}),
    "the connection breaks in mid-stream": failing(200, stream=True, close_after={"events": 3}),
    "the connection breaks in mid-stream, of an unknown form": failing(
        200, stream=True, user="", close_after={"events": 3}
    ),
    "gone": gone(stream=False),
    "gone, from the relay": gone(stream=True),
    "gone, of an unknown form": gone(stream=False, user="u"),
    "gone, a stream of an unknown form": gone(stream=True, user="u"),
    "late": late,
    "half a request": half,
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS.keys())
def test_what_a_request_had_goes_with_it(watched: Watched, paced: MockEngine, end: End) -> None:
    # What is made once, such as what a first error compiles, is no request's.
    end(watched, paced, 0)
    settled(watched)
    watched.garbage()
    for number in range(COUNT):
        end(watched, paced, number)
    settled(watched)
    assert watched.garbage() == {}


def settled(watched: Watched) -> None:
    """Nothing is in flight, and the connections have ended."""

    def is_over() -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return watched.gateway.metric("gateway_requests_in_flight") == 0
        return False

    wait_for(is_over)
    time.sleep(0.1)
