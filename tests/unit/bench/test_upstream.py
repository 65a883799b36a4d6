"""The byte source: what it says is read by the gateway's own parser, for Triton's format and OpenAI's."""

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from bench.upstream import build
from bench.upstream.running import Upstream, running_upstream
from bench.upstream.script import Model, answer_text
from devtools.errors import DevError
from devtools.paths import ROOT
from gateway.triton.contract import Backend, Delta, GenerateRequest, contract_of, parse_response, request_body
from gateway.triton.response_parser import PlainParser
from tests.support.service import is_alive
from tests.support.waiting import wait_for

FAST = Model("fast", most_tokens=200)
PACED = Model("paced", most_tokens=50, text_bytes=8, tokens_per_second=500)
LARGE = Model("large", most_tokens=150, text_bytes=64 * 1024)
CHAT = "/v1/chat/completions"
GENERATE = "/v2/models/{}/generate_stream"


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    with running_upstream([FAST, PACED, LARGE]) as running:
        yield running


def connect(upstream: Upstream) -> socket.socket:
    parts = urlsplit(upstream.url)
    connection = socket.socket()
    connection.settimeout(60)
    # Little room, so that who does not read is seen to be slow.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
    connection.connect((parts.hostname, parts.port))
    return connection


def request(path: str, body: bytes = b"", method: str = "POST") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def read(connection: socket.socket) -> PlainParser:
    """One whole answer."""
    parser = PlainParser()
    while not parser.done:
        data = connection.recv(1 << 20)
        if not data:
            parser.eof()
        parser.feed(data)
    return parser


def events(answer: PlainParser) -> list[bytes]:
    """All of them; of a great many the parser gives a part at a time."""
    taken: list[bytes] = []
    while some := answer.take():
        taken += some
    return taken


def ask(upstream: Upstream, path: str, body: bytes = b"", method: str = "POST") -> PlainParser:
    with connect(upstream) as connection:
        connection.sendall(request(path, body, method))
        return read(connection)


def generate(prompt: str, tokens: int | None) -> bytes:
    return request_body(Backend.OURS, GenerateRequest(prompt, {"max_tokens": tokens}, request_id="x"), None)


def deltas(answer: PlainParser) -> list[Delta]:
    return [parse_response(event) for event in events(answer)]


@pytest.mark.parametrize("model", [FAST, PACED])
@pytest.mark.parametrize("tokens", [1, 2, 37])
def test_triton_format_is_read_by_the_gateway(upstream: Upstream, model: Model, tokens: int) -> None:
    answer = ask(upstream, GENERATE.format(model.name), generate("Say max_tokens: 3", tokens))
    assert answer.status == 200
    assert answer.reusable
    admission, *others = deltas(answer)
    assert admission == Delta("", None, 1, 0)
    assert [delta.new_tokens for delta in others] == [1] * tokens
    assert [delta.finish_reason for delta in others] == [None] * (tokens - 1) + ["length"]
    assert "".join(delta.text for delta in others) == answer_text(model, tokens)


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        (b'{"max_tokens": 5}', 5),
        (b'{"max_completion_tokens":6,"min_tokens":2}', 6),
        (b'{"messages":["max_tokens: 9"],"max_tokens":7}', 7),
        (b'{"max_tokens":100000}', FAST.most_tokens),
        (b"{}", FAST.most_tokens),
        (b"", FAST.most_tokens),
    ],
)
def test_openai_format(upstream: Upstream, body: bytes, tokens: int) -> None:
    for path in (CHAT, f"/{FAST.name}{CHAT}?x=1"):
        role, *others, done = events(ask(upstream, path, body))
        assert json.loads(role)["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert done == b"[DONE]"
        choices = [json.loads(event)["choices"][0] for event in others]
        assert "".join(choice["delta"]["content"] for choice in choices) == answer_text(FAST, tokens)
        assert [choice["finish_reason"] for choice in choices] == [None] * (tokens - 1) + ["length"]


def test_without_a_limit_an_answer_is_as_long_as_the_model_allows(upstream: Upstream) -> None:
    answer = ask(upstream, GENERATE.format(PACED.name), generate("Hello", None))
    assert "".join(delta.text for delta in deltas(answer)) == answer_text(PACED, PACED.most_tokens)


def test_tokens_that_differ_have_different_texts() -> None:
    assert answer_text(FAST, 3) == " 0000 0001 0002"
    assert answer_text(Model("m", text_bytes=2), 12) == " 0 1 2 3 4 5 6 7 8 9 0 1"


def test_the_gateway_takes_it_for_a_triton_with_this_projects_backend(upstream: Upstream) -> None:
    answer = ask(upstream, "/v2/models/paced", method="GET")
    with connect(upstream) as connection:
        connection.sendall(request("/v2/models/paced", method="GET"))
        body = connection.recv(1 << 20).partition(b"\r\n\r\n")[2]
    assert answer.status == 200
    assert contract_of(json.loads(body)).backend is Backend.OURS


def test_a_connection_carries_many_requests_also_ahead(upstream: Upstream) -> None:
    with connect(upstream) as connection:
        for _ in range(3):
            connection.sendall(request(CHAT, b'{"max_tokens":2}'))
            assert len(events(read(connection))) == 4
    with connect(upstream) as connection:
        pieces = (
            request(GENERATE.format(PACED.name), generate("Hello", 4)) + request("/nothing") + request("/v2/health")
        )
        for byte in range(0, len(pieces), 7):
            connection.sendall(pieces[byte : byte + 7])
        received = b""
        while received.count(b"404 Not Found") < 2:
            received += connection.recv(1 << 20)
    assert received.count(b"data: ") == 5


def test_a_slow_reader_gets_everything_and_holds_up_nobody(upstream: Upstream) -> None:
    body = generate("Hello", None)
    with connect(upstream) as slow:
        slow.sendall(request(GENERATE.format(LARGE.name), body))
        # 10 MB, more than these sockets hold, are under way and not read.
        assert len(deltas(ask(upstream, GENERATE.format(PACED.name), body))) == 1 + PACED.most_tokens
        assert upstream.stats().streams == 1
        text = "".join(delta.text for delta in deltas(read(slow)))
    assert text == answer_text(LARGE, LARGE.most_tokens)


def test_what_it_cannot_read_is_refused(upstream: Upstream) -> None:
    with connect(upstream) as connection:
        connection.sendall(f"POST {CHAT} HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        answer = b""
        while data := connection.recv(1 << 20):
            answer += data
    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")


def test_a_client_that_leaves_is_counted_and_let_go(upstream: Upstream) -> None:
    before = upstream.stats()
    with connect(upstream) as connection:
        connection.sendall(request(GENERATE.format(LARGE.name), generate("Hello", None)))
        connection.recv(1)
    wait_for(lambda: upstream.stats().left_by_client == before.left_by_client + 1, "the client to be missed")
    assert upstream.stats().streams == 0


def test_what_it_cost_is_told() -> None:
    with running_upstream([FAST]) as running:
        ask(running, CHAT, b'{"max_tokens":150}')
        stats = running.stats()
    assert stats.tokens == 150
    assert stats.cpu_microseconds_per_token > 0


def test_it_ends_with_its_owner(tmp_path: Path) -> None:
    owner = (
        "from bench.upstream.running import running_upstream\n"
        "from bench.upstream.script import Model\n"
        "import os, signal\n"
        "with running_upstream([Model('m')]) as upstream:\n"
        "    print(upstream.pid, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", owner], cwd=ROOT, capture_output=True, text=True)
    wait_for(lambda: not is_alive(done.stdout.strip()), "the byte source's end")


def test_without_a_compiler_one_sentence_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TVS_HOME", str(tmp_path))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(DevError, match=r"has no g\+\+; install it"):
        build.program()


def test_a_taken_port_is_named(upstream: Upstream) -> None:
    port = urlsplit(upstream.url).port
    assert port is not None
    with (
        pytest.raises(DevError, match=rf"cannot listen on 127.0.0.1:{port}: Address already in use"),
        running_upstream([FAST], port=port),
    ):
        pass
