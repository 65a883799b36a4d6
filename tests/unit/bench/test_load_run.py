"""Loads on a real byte source, and on servers that fail."""

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from bench.__main__ import main
from bench.load.client import Client
from bench.load.run import ClosedLoop, Limit, OpenLoop, Progress, Target, run, run_in_processes
from bench.load.workloads import CHAT_PATH, Expected, Format, Request, Shape, Workload, chat_request
from bench.upstream.running import Upstream, running_upstream
from bench.upstream.script import Model, answer_text

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
