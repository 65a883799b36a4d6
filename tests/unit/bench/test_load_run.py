"""Loads on a real byte source, and on servers that fail."""

import asyncio
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path

import pytest

from bench.__main__ import main
from bench.load.client import Client
from bench.load.run import ClosedLoop, Limit, OpenLoop, Progress, Target, run, run_in_processes
from bench.load.workloads import CHAT_PATH, Expected, Format, Request, Shape, Workload, chat_request
from bench.upstream.running import Upstream, running_upstream
from bench.upstream.script import Model, answer_text
from devtools.paths import ROOT

MODEL = Model("bench", most_tokens=300, tokens_per_second=500)
TOKENS = 20
DECODE = Shape(prompt_bytes=100, answer_tokens=TOKENS)


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    with running_upstream([MODEL]) as running:
        yield running


def known(count: int) -> Workload:
    """Requests whose answers are known to the letter."""
    expected = Expected(answer_text(MODEL, TOKENS), TOKENS, TOKENS, "length")
    asked = [chat_request("decode", MODEL.name, DECODE, number) for number in range(count)]
    return Workload("known", [Request(one.kind, one.path, one.body, one.format, expected) for one in asked])


async def test_closed_loop(upstream: Upstream) -> None:
    client, progress = Client(upstream.url), Progress()
    found = await run(client, known(3), ClosedLoop(4), Limit(requests=25), progress)
    client.close()
    assert [one.error for one in found.outcomes] == [""] * 25
    assert (progress.begun, progress.ended, progress.wrong, progress.tokens) == (25, 25, 0, 25 * TOKENS)
    assert all(len(one.gaps) == TOKENS - 1 for one in found.outcomes)
    assert all(one.ttft is not None and 0 < one.ttft <= one.seconds for one in found.outcomes)
    assert found.seconds > 0


async def test_connections_are_kept_and_can_be_opened_ahead(upstream: Upstream) -> None:
    client = Client(upstream.url)
    before = upstream.stats().connections
    await client.connect(3)
    await run(client, known(3), ClosedLoop(3), Limit(requests=30))
    # The question itself takes one.
    assert upstream.stats().connections <= before + 3
    client.close()


async def test_open_loop_begins_requests_by_its_own_clock(upstream: Upstream) -> None:
    client = Client(upstream.url)
    found = await run(client, known(3), OpenLoop(rate=2000), Limit(requests=40))
    client.close()
    assert [one.error for one in found.outcomes] == [""] * 40
    begins = sorted(one.began for one in found.outcomes)
    gaps = [b - a for a, b in pairwise(begins)]
    # When they were due, not when the loop came to it: no two at the same time, and not evenly.
    assert min(gaps) > 0
    assert max(gaps) > 2 * min(gaps)
    assert len(await _begun(upstream, OpenLoop(1000), 0.2)) > 0


async def _begun(upstream: Upstream, arrivals: OpenLoop, seconds: float) -> list[float]:
    client = Client(upstream.url)
    found = await run(client, known(1), arrivals, Limit(seconds=seconds))
    client.close()
    assert all(one.is_right for one in found.outcomes)
    begins = [one.began for one in found.outcomes]
    assert max(begins) - min(begins) < seconds
    return begins


def test_processes_share_the_load(upstream: Upstream) -> None:
    told: list[Progress] = []
    found = run_in_processes(
        Target(upstream.url), known(5), ClosedLoop(5), Limit(requests=31), processes=2, on_progress=told.append
    )
    assert len(found.outcomes) == 31
    assert all(one.is_right for one in found.outcomes)
    assert found.processes == 2
    assert told[-1] == Progress(31, 31, 0, 31 * TOKENS)
    ends = [one.ended for one in found.outcomes]
    assert ends == sorted(ends)


@contextmanager
def server(*answers: bytes | None) -> Iterator[str]:
    """Answers the first requests so, one on each connection, and closes it; None: says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        silent = []

        def serve() -> None:
            for answer in answers:
                connection, _ = listener.accept()
                connection.recv(1 << 16)
                if answer is None:
                    silent.append(connection)
                    continue
                connection.sendall(answer)
                connection.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join(30)
        for connection in silent:
            connection.close()


async def ask(url: str, seconds: float = 60) -> str:
    client = Client(url, timeout=seconds)
    found = await client.ask(Request("x", CHAT_PATH, b"{}"))
    client.close()
    return found.error


async def test_what_goes_wrong_is_the_outcomes_error() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        error = await ask(f"http://127.0.0.1:{nobody.getsockname()[1]}")
    assert "cannot connect to 127.0.0.1:" in error
    with server(b"") as url:
        assert await ask(url) == "the connection was closed before the answer began"
    with server(b"HTTP/1.1 200 OK\r\n") as url:
        assert await ask(url) == "the connection was closed in the middle of the answer's head"
    with server(b"SSH-2.0\r\n\r\n") as url:
        assert await ask(url) == "the answer does not begin with a status line of HTTP/1.1"
    with server(b"HTTP/1.1 429 Too Many Requests\r\n\r\nlater") as url:
        assert await ask(url) == "status 429: 'later'"
    with server(None) as url:
        assert await ask(url, 0.2) == "the answer took longer than 0.2 s"


async def test_a_kept_connection_that_the_server_has_closed_is_not_an_error() -> None:
    whole = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    with server(whole, whole) as url:
        client = Client(url)
        for _ in range(2):
            found = await client.ask(Request("x", "/", b"{}", Format.WHOLE))
            assert found.error == ""
        client.close()


async def test_a_stream_that_ends_in_the_middle_of_a_read_is_ended_once(upstream: Upstream) -> None:
    """The end's bytes come in pieces, and bytes like them stand in the middle."""
    event = b'data: {"choices":[{"index":0,"delta":{"content":"0"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    comment = b": 0\r\n\r\n"
    pieces = [
        head,
        b"%x\r\n" % len(comment) + comment,
        b"\r\n%x\r\n" % len(event) + event,
        b"\r\n0",
        b"\r",
        b"\n\r",
        b"\n",
    ]
    released = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"{}")
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.001)
        await released.wait()
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    client = Client(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}")
    found = await client.ask(Request("x", "/", b"{}", Format.CHAT, Expected("0", chunks=1)))
    assert found.error == ""
    released.set()
    client.close()
    listening.close()


def test_what_is_no_url_is_refused() -> None:
    with pytest.raises(ValueError, match="is no URL such as"):
        Client("127.0.0.1:9000")


def test_the_command(upstream: Upstream, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "report.json"
    flags = ["load", "--url", upstream.url, "--model", MODEL.name, "--concurrency", "4", "--requests", "12"]
    assert main([*flags, "--workload", "mixed", "--answer-tokens", "5", "--slo-ttft", "600", "--json", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "all: 12 of 12 answers right" in shown
    assert "goodput" in shown
    report = json.loads(file.read_text())
    assert report["all"]["tokens"] == 60
    assert report["kinds"].keys() == {"preprocess", "decode"}
    assert report["all"]["ttft"]["count"] == 12
    assert report["all"]["goodput"] == pytest.approx(report["all"]["requests_per_second"])


@pytest.mark.parametrize("reach", ["url", "absent", "file", "stale"])
def test_where_nobody_listens_no_request_is_tried(
    reach: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "s"
    if reach == "file":
        path.touch()
    with socket.socket() as nobody, socket.socket(socket.AF_UNIX) as gone:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        if reach == "stale":
            gone.bind(str(path))
        over = [] if reach == "url" else ["--unix-socket", str(path)]
        assert main(["load", "--url", f"http://127.0.0.1:{port}", "--model", "m", *over]) == 2
    place, flag = (f"127.0.0.1:{port}", "--url") if reach == "url" else (str(path), "--unix-socket")
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"bench load: cannot connect to {place}: ")
    assert said.err.endswith(f"; start the server, or give another {flag}.\n")


def test_the_command_fails_where_an_answer_is_wrong(upstream: Upstream, capsys: pytest.CaptureFixture[str]) -> None:
    """The byte source knows no schema."""
    flags = ["load", "--url", upstream.url, "--model", MODEL.name, "--requests", "3", "--warmup", "0", "--json", "-"]
    assert main([*flags, "--workload", "structured"]) == 1
    (error,) = json.loads(capsys.readouterr().out)["all"]["errors"]
    assert error.startswith("the answer is no JSON")


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--requests", "0"], "must be 1 at least"),
        (["--rate", "0"], "must be above 0"),
        (["--rate", "3", "--concurrency", "3"], "not allowed with"),
        (["--workload", "other"], "invalid choice"),
    ],
)
def test_wrong_flags(flags: list[str], problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["load", "--url", "http://127.0.0.1:1", "--model", "m", *flags])
    assert ended.value.code == 2
    assert problem in capsys.readouterr().err


def test_a_wrong_url_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["load", "--url", "127.0.0.1:9000", "--model", "m", "--requests", "1"])
    assert ended.value.code == 2
    assert "is no URL such as" in capsys.readouterr().err


@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/"])
def test_the_url_with_and_without_v1_and_the_only_model(
    path: str, upstream: Upstream, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["load", "--url", upstream.url + path, "--requests", "2", "--warmup", "0", "--answer-tokens", "2"]
    assert main(flags) == 0
    assert "2 of 2 answers right" in capsys.readouterr().out


@contextmanager
def refusing(status: int, message: str, models: list[str]) -> Iterator[str]:
    """A server of these models that refuses every other request."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(200, {"data": [{"id": name} for name in models]})

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self._answer(status, {"error": {"message": message}})

        def _answer(self, code: int, body: object) -> None:
            data = json.dumps(body).encode()
            self.send_response(code)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()


@pytest.mark.parametrize(
    ("status", "message", "flags", "advice"),
    [
        (404, "No such model.", ["--model", "nope"], "it does not serve 'nope' but 'a', 'b': give another --model"),
        (404, "No such page.", ["--model", "a"], "check --url and --model"),
        (400, "Too long.", ["--model", "a"], "give fewer --prompt-bytes or --answer-tokens, or another --workload"),
        (401, "Who?", ["--model", "a"], "give it a key that it takes, by --api-key or OPENAI_API_KEY"),
        (429, "Later.", ["--model", "a", "--warmup", "0"], "give a lower --concurrency or --rate"),
        (500, "Broken.", ["--model", "a", "--warmup", "0", "--requests", "3"], "its own log should say why"),
    ],
)
def test_where_everything_is_refused_it_ends_at_once(
    status: int, message: str, flags: list[str], advice: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with refusing(status, message, ["a", "b"]) as url:
        assert main(["load", "--url", url, *flags]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    start = f"bench load: {url} refuses every request, status {status}: {message.rstrip('.')}; "
    assert said.err.startswith(start)
    assert said.err.endswith(f"{advice}.\n")


def test_the_model_has_to_be_said_where_there_are_several(capsys: pytest.CaptureFixture[str]) -> None:
    with refusing(500, "", ["a", "b"]) as url:
        assert main(["load", "--url", url]) == 2
    assert capsys.readouterr().err == f"bench load: {url} serves 'a', 'b'; say which is meant.\n"


def until(terminal: int, word: bytes) -> bytes:
    """What comes from a terminal's program until it says this, or ends."""
    shown = b""
    while word not in shown:
        try:
            shown += os.read(terminal, 1 << 16)
        except OSError:
            break
    return shown


@contextmanager
def on_a_terminal(*words: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A command whose error output is a terminal, in a group of processes of its own, as a shell starts it."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "bench", *words]
    done = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=theirs, start_new_session=True)
    os.close(theirs)
    guard = threading.Timer(60, done.kill)
    guard.start()
    try:
        yield done, ours
    finally:
        guard.cancel()
        done.kill()
        done.wait()
        os.close(ours)


def test_on_a_terminal_it_says_how_far_it_is_and_ctrl_c_keeps_what_was_measured(upstream: Upstream) -> None:
    flags = ["--warmup", "2", "--workload", "decode", "--answer-tokens", "5", "--processes", "2", "--json", "-"]
    with on_a_terminal("load", "--url", upstream.url, *flags) as (done, terminal):
        shown = until(terminal, b" 28 s left")
        assert b"warm-up: 2 of 2 answers, 0 in flight" in shown
        assert b", 16 in flight, " in shown
        os.killpg(done.pid, signal.SIGINT)
        shown += until(terminal, b"interrupted; what was measured until then counts.")
        assert done.stdout is not None
        report = json.loads(done.stdout.read())
        assert done.wait(30) == 130
    assert b"Traceback" not in shown
    assert b"Process " not in shown
    assert report["all"]["requests"] > 0
    assert report["all"]["wrong"] == 0
    assert report["processes"] == 2


def test_ctrl_c_before_anything_is_measured(upstream: Upstream) -> None:
    flags = ["--workload", "decode", "--answer-tokens", "300"]
    with on_a_terminal("load", "--url", upstream.url, *flags) as (done, terminal):
        until(terminal, b"warm-up: starting")
        os.killpg(done.pid, signal.SIGINT)
        shown = until(terminal, b"interrupted; nothing was measured.")
        assert done.wait(30) == 130
    assert b"Traceback" not in shown
