"""Running mock engines, one of each dialect for all tests; and a client that sees every byte."""

import json
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import pytest

from bench.mock_engine.running import MockEngine, running_mock_engine


@dataclass(frozen=True)
class Answer:
    """One HTTP response as it came."""

    status_line: str
    headers: dict[str, str]
    body: bytes
    """Chunk framing included."""

    @property
    def status(self) -> int:
        return int(self.status_line.split(" ")[1])

    @property
    def content(self) -> bytes:
        """The body without its chunk framing."""
        if self.headers.get("transfer-encoding") != "chunked":
            return self.body
        content, rest = b"", self.body
        while rest:
            size, rest = rest.split(b"\r\n", 1)
            content += rest[: int(size, 16)]
            rest = rest[int(size, 16) + 2 :]
        return content

    @property
    def events(self) -> list[dict[str, Any]]:
        """The SSE events' JSON."""
        events = self.content.split(b"\n\n")
        assert events.pop() == b""
        return [json.loads(event.removeprefix(b"data: ")) for event in events]

    @property
    def text(self) -> str:
        return "".join(event["text_output"] for event in self.events)


class Client:
    """Sends one request on a connection of its own and reads until the server closes it."""

    def __init__(self, engine: MockEngine) -> None:
        self.engine = engine
        address = urlsplit(engine.url)
        self._address = (address.hostname, address.port)

    def connect(self) -> socket.socket:
        return socket.create_connection(self._address, timeout=10)

    def send(self, method: str, path: str, body: Any = None, headers: str = "") -> socket.socket:
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        connection = self.connect()
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}Content-Length: {len(data)}\r\n\r\n"
        )
        connection.sendall(head.encode() + data)
        return connection

    def ask(self, method: str, path: str, body: Any = None, headers: str = "") -> Answer:
        return read_answer(self.send(method, path, body, headers))

    def stream(self, prompt: str = "Say something.", sampling: Any = None, **inputs: Any) -> Answer:
        """`generate_stream` on the model `m` with the usual outputs."""
        return self.ask("POST", "/v2/models/m/generate_stream", generate_body(prompt, sampling, **inputs))


def generate_body(prompt: str, sampling: Any = None, **inputs: Any) -> dict[str, Any]:
    body = {
        "text_input": prompt,
        "stream": True,
        "exclude_input_in_output": True,
        "return_finish_reason": True,
        "return_num_input_tokens": True,
        "return_num_output_tokens": True,
        "sampling_parameters": json.dumps(sampling or {}),
    } | inputs
    return {key: value for key, value in body.items() if value is not None}


def read_answer(connection: socket.socket) -> Answer:
    data = b""
    with connection:
        while part := connection.recv(65536):
            data += part
    head, body = data.split(b"\r\n\r\n", 1)
    status_line, *fields = head.decode().split("\r\n")
    headers = {name.lower(): value for name, value in (field.split(": ", 1) for field in fields)}
    return Answer(status_line, headers, body)


@pytest.fixture(scope="session")
def _own() -> Iterator[MockEngine]:
    with running_mock_engine(models=("m", "other"), token_interval_ms=0) as engine:
        yield engine


@pytest.fixture(scope="session")
def _stock() -> Iterator[MockEngine]:
    with running_mock_engine(models=("m",), token_interval_ms=0, stock=True) as engine:
        yield engine


@pytest.fixture
def own(_own: MockEngine) -> Iterator[Client]:
    """A client of a mock of this project's backend."""
    yield Client(_own)
    _own.reset()


@pytest.fixture
def stock(_stock: MockEngine) -> Iterator[Client]:
    """A client of a mock of the stock backend."""
    yield Client(_stock)
    _stock.reset()


@pytest.fixture(params=["own", "stock"])
def either(request: pytest.FixtureRequest) -> Client:
    """Both of them in turn."""
    get: Callable[[str], Client] = request.getfixturevalue
    return get(request.param)
