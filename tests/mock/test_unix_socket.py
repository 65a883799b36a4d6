"""Clients and proxies on the gateway's Unix-domain socket: the same bytes as over TCP, by the same short ways, and what
becomes of it when processes end, die and follow each other."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from fcntl import ioctl
from pathlib import Path
from termios import FIONREAD
from typing import Any

import httpx
import openai
import pytest

from bench.__main__ import main as bench
from bench.mock_engine.running import MockEngine
from bench.ports import free_port
from bench.upstream.running import running_upstream
from bench.upstream.script import Model, answer_text
from devtools.paths import ROOT
from tests.support.chat import MODEL, chat, events, joined
from tests.support.gateway import Gateway, running_gateway
from tests.support.service import is_alive
from tests.support.waiting import wait_for

CHAT = "/v1/chat/completions"
DIRECT, RELAYED = "gateway_direct_requests_total", "gateway_relayed_tokens_total"


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """With paths that are short enough, and open to the group of nginx's workers where there is one: they are of
    another user if this one is root."""
    made = Path(tempfile.mkdtemp(prefix="gw"))
    if os.geteuid() == 0:
        # What lies in such a folder is of the folder's group.
        shutil.chown(made, group="www-data")
        made.chmod(0o2750)
    yield made
    shutil.rmtree(made)


@contextmanager
def on_socket(path: Path, engine: MockEngine, repository: Path, *flags: str) -> Iterator[Gateway]:
    sockets = ("--unix-socket", str(path), *flags)
    with running_gateway("--triton", engine.url, "--model-repository", str(repository), *sockets) as gateway:
        yield gateway.wait_until_ready()


@pytest.fixture(scope="module")
def path(folder: Path) -> Path:
    return folder / "gateway.sock"


@pytest.fixture(scope="module")
def gateway(path: Path, paced: MockEngine, repository: Path) -> Iterator[Gateway]:
    with on_socket(path, paced, repository) as running:
        yield running


@contextmanager
def client(path: Path) -> Iterator[httpx.Client]:
    transport = httpx.HTTPTransport(uds=str(path), verify=False)
    with httpx.Client(transport=transport, base_url="http://gateway", timeout=60) as opened:
        yield opened


def connect(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(60)
    connection.connect(str(path))
    return connection


def is_taken(path: Path) -> bool:
    """Whether anybody listens there."""
    try:
        connect(path).close()
    except (FileNotFoundError, ConnectionRefusedError):
        return False
    return True


def request(**fields: Any) -> bytes:
    body = json.dumps(chat(**{"max_tokens": 30, "ignore_eos": True} | fields), separators=(",", ":")).encode()
    lines = (f"POST {CHAT} HTTP/1.1", "host: x", "x-request-id: r", f"content-length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def is_whole(answer: bytes) -> bool:
    head, _, body = answer.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" in head:
        return body.endswith(b"\r\n0\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head)
    return length is not None and len(body) == int(length[1])


def rest(connection: socket.socket) -> bytes:
    """All bytes of an answer that are still to come."""
    answer = b""
    while not is_whole(answer):
        part = connection.recv(65536)
        assert part, f"the connection ended after {answer!r}"
        answer += part
    return answer


def answer_to(sent: bytes, connection: socket.socket) -> bytes:
    with connection:
        connection.sendall(sent)
        return rest(connection)


def without_identity(answer: bytes) -> bytes:
    """Nor the sizes of chunks, which are those of what came at once."""
    head, _, body = answer.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" in head:
        body = re.sub(rb"(^|\r\n)[0-9a-f]+\r\n", b"", body)
    head = re.sub(rb"\r\ndate: [^\r]*", b"", head)
    return head + b"\r\n\r\n" + re.sub(rb'"id":"[^"]*"|"created":\d+', b"", body)


def test_a_load_over_it(gateway: Gateway, path: Path, tmp_path: Path) -> None:
    """From processes of its own; the name `gateway` is nobody's."""
    file = tmp_path / "report.json"
    flags = ["load", "--url", "http://gateway", "--unix-socket", str(path), "--model", MODEL, "--json", str(file)]
    flags += ["--workload", "decode", "--prompt-bytes", "50", "--answer-tokens", "5", "--ignore-eos"]
    assert bench([*flags, "--requests", "12", "--concurrency", "3", "--processes", "2"]) == 0
    found = json.loads(file.read_text())["all"]
    assert (found["requests"], found["wrong"], found["tokens"]) == (12, 0, 60)


@pytest.mark.parametrize("stream", [True, False])
def test_the_bytes_are_those_of_tcp_and_so_are_the_ways(
    stream: bool, gateway: Gateway, path: Path, slow: MockEngine
) -> None:
    host, _, port = gateway.url.removeprefix("http://").partition(":")
    answers = []
    # Also of a form that the gateway knows by now.
    for _ in range(4):
        for connection in (socket.create_connection((host, int(port)), timeout=60), connect(path)):
            before = gateway.metric(DIRECT), gateway.metric(RELAYED)
            answers.append(without_identity(answer_to(request(stream=stream), connection)))
            gained = gateway.metric(DIRECT) - before[0], gateway.metric(RELAYED) - before[1]
    # The last one, over the Unix-domain socket.
    assert gained[0] == 1
    assert (gained[1] > 10) is stream
    assert answers[0].startswith(b"HTTP/1.1 200 OK\r\n")
    assert (b"data: [DONE]" in answers[0]) is stream
    assert set(answers) == {answers[0]}


def test_every_endpoint_is_there(gateway: Gateway, path: Path, slow: MockEngine) -> None:
    with client(path) as unix:
        for name in ("/health/live", "/health/ready", "/v1/models", "/openapi.json", "/docs"):
            assert unix.get(name).text == httpx.get(gateway.url + name, verify=False).text, name
        assert unix.get("/metrics").text.startswith("# HELP ")
        assert unix.get("/admin/instances").status_code == 403
        assert unix.get("/nowhere").status_code == 404
    # A client's address is nowhere looked for.
    wait_for(lambda: any(line.get("path") == "/v1/models" for line in gateway.logs), "its line in the log")
    assert not [line for line in gateway.logs if "Traceback" in str(line)]


def test_the_start_says_where_it_listens(gateway: Gateway, path: Path) -> None:
    wait_for(lambda: [line for line in gateway.logs if line["message"] == f"listening on unix:{path}"], "the line")
    settings = next(line["settings"] for line in gateway.logs if line["message"] == "effective settings")
    assert settings["unix_socket"] == str(path)


def test_openais_client(gateway: Gateway, path: Path, slow: MockEngine) -> None:
    http = openai.DefaultHttpxClient(transport=httpx.HTTPTransport(uds=str(path)))
    with openai.OpenAI(base_url="http://gateway/v1", api_key="none", max_retries=0, http_client=http) as sdk:
        assert [model.id for model in sdk.models.list()] == [MODEL]
        stream = sdk.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Tell me."}], max_tokens=20, stream=True
        )
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        whole = sdk.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Tell me."}], max_tokens=20
        )
        assert text
        assert text == whole.choices[0].message.content


OPERATIONS = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
IN_DOCS = "/run/gateway/gateway.sock"
NGINX = OPERATIONS.partition("```nginx\n")[2].partition("```")[0]
MAIN = """\
daemon off;
user www-data;
pid {folder}/pid;
error_log {folder}/error.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    {site}
}}
"""


@contextmanager
def running_nginx(site: str, path: Path) -> Iterator[httpx.Client]:
    """nginx with what the documentation shows, before the socket at this path."""
    folder = path.parent
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    assert program, "install nginx (on Debian: nginx-light)"
    port = free_port()
    assert IN_DOCS in site
    assert "listen 80;" in site
    site = site.replace(IN_DOCS, str(path)).replace("listen 80;", f"listen 127.0.0.1:{port};")
    (folder / "nginx.conf").write_text(MAIN.format(folder=folder, site=site))
    process = subprocess.Popen([program, "-p", folder, "-e", folder / "error.log", "-c", folder / "nginx.conf"])
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, verify=False) as opened:
            wait_for(lambda: process.poll() is not None or is_answering(opened), "nginx")
            assert process.poll() is None, (folder / "error.log").read_text()
            yield opened
    finally:
        process.terminate()
        process.wait(60)


def is_answering(opened: httpx.Client) -> bool:
    try:
        return opened.get("/").status_code > 0
    except httpx.ConnectError:
        return False


@pytest.mark.parametrize("upstream", ["http://gateway", f"http://unix:{IN_DOCS}"])
def test_nginx_as_it_is_documented(upstream: str, gateway: Gateway, path: Path, slow: MockEngine) -> None:
    assert OPERATIONS.count(f"proxy_pass {upstream};") == 1
    with running_nginx(NGINX.replace("proxy_pass http://gateway;", f"proxy_pass {upstream};"), path) as proxy:
        direct = httpx.get(f"{gateway.url}/v1/models", verify=False)
        assert proxy.get("/v1/models").json() == direct.json()
        assert [proxy.get(name).status_code for name in ("/metrics", "/health/ready", "/admin/instances")] == [404] * 3
        body = chat("x" * 100_000, max_tokens=2)
        assert proxy.post(CHAT, json=body).json()["error"]["code"] == "context_length_exceeded"
        assert proxy.post("/tokenize", json={"model": MODEL, "prompt": "x"}).status_code == 200
        before = gateway.metric(RELAYED)
        slow.add_fault(stall_after=20)
        said = ""
        with proxy.stream("POST", CHAT, json=chat(stream=True, max_tokens=40, ignore_eos=True)) as answer:
            for line in answer.iter_lines():
                said += f"{line}\n"
                # Not before all that can come has come; nothing of it is kept back.
                if said.count('"content":"') == 20:
                    slow.clear_faults()
        assert said.endswith("data: [DONE]\n\n")
        assert gateway.metric(RELAYED) > before


def test_a_client_that_goes_away_ends_the_engines_work(gateway: Gateway, path: Path, slow: MockEngine) -> None:
    before = gateway.metric(RELAYED)
    with connect(path) as connection:
        connection.sendall(request(stream=True, max_tokens=400))
        said = b""
        while said.count(b'"content":"') < 12:
            said += connection.recv(65536)
    (asked,) = slow.wait_for_requests(1)
    assert asked["ended"] == "cancelled"
    wait_for(lambda: gateway.metric("gateway_requests_in_flight") == 0, "the end of its request")
    assert gateway.metric(RELAYED) > before


FLOOD = Model("flood", 1024, 16_384, tokens_per_second=300)


def test_a_client_that_reads_late_has_every_byte(folder: Path, repository: Path, tmp_path: Path) -> None:
    """Megabytes, of which the kernel holds little: the rest waits, in the relay too."""
    shutil.copytree(repository / MODEL, tmp_path / FLOOD.name)
    path = folder / "flood.sock"
    flags = ("--model-repository", str(tmp_path), "--unix-socket", str(path))
    body = chat(model=FLOOD.name, stream=True, max_tokens=150)
    with (
        running_upstream([FLOOD]) as source,
        running_gateway("--triton", source.url, *flags) as gateway,
        client(path) as unix,
    ):
        gateway.wait_until_ready()
        with unix.stream("POST", CHAT, json=body) as answer:
            held = answer.extensions["network_stream"].get_extra_info("socket")
            wait_for(lambda: unread(held) > 100_000, "as much as the kernel holds")
            answer.read()
        assert joined(events(answer)) == answer_text(FLOOD, 150)
        assert gateway.metric(RELAYED) > 100


def unread(connection: socket.socket) -> int:
    """Bytes that came and were not read."""
    return int.from_bytes(ioctl(connection, FIONREAD, b"\0" * 4), sys.byteorder)


ENDED = b"data: [DONE]\n\n\r\n0\r\n\r\n"


@contextmanager
def begun(path: Path, **fields: Any) -> Iterator[socket.socket]:
    """A stream of which something has come."""
    with connect(path) as connection:
        connection.sendall(request(stream=True, **fields))
        assert connection.recv(15, socket.MSG_PEEK) == b"HTTP/1.1 200 OK"
        yield connection


def test_streams_finish_and_a_successor_may_start_meanwhile(folder: Path, slow: MockEngine, repository: Path) -> None:
    path = folder / "succession.sock"
    slow.add_fault(match="slowly", stall_after=2)
    with (
        on_socket(path, slow, repository) as old,
        begun(path, messages=[{"role": "user", "content": "slowly"}]) as stream,
    ):
        old.process.send_signal(signal.SIGTERM)
        # Sooner than they are cut off.
        wait_for(lambda: not is_taken(path), "no new connections", seconds=20)
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{old.url}/health/live", verify=False)
        with on_socket(path, slow, repository), client(path) as unix:
            assert unix.post(CHAT, json=chat()).status_code == 200
            assert old.process.poll() is None
            slow.clear_faults()
            assert rest(stream).endswith(ENDED)
            assert old.process.wait(60) == 0
            assert is_taken(path)
            assert unix.post(CHAT, json=chat()).status_code == 200
        assert not path.exists()
        assert not [line for line in old.logs if "Traceback" in str(line)]


def test_a_live_one_is_refused_and_what_a_killed_gateway_leaves_is_replaced(
    folder: Path, slow: MockEngine, repository: Path
) -> None:
    path = folder / "killed.sock"
    with on_socket(path, slow, repository, "--workers", "2") as gateway:
        with pytest.raises(AssertionError) as refused, on_socket(path, slow, repository):
            pass
        assert "ended with exit code 2" in str(refused.value)
        assert f"gateway: Another process listens on '{path}'" in str(refused.value)
        with client(path) as unix:
            assert unix.post(CHAT, json=chat()).status_code == 200
        gateway.process.kill()
        gateway.process.wait()
        # Workers follow their supervisor.
        wait_for(lambda: not is_taken(path), "nobody who listens")
        assert path.exists()
    with on_socket(path, slow, repository), client(path) as unix:
        assert unix.post(CHAT, json=chat()).status_code == 200
    assert not path.exists()


def test_workers_share_it_and_a_new_one_inherits_it(folder: Path, slow: MockEngine, repository: Path) -> None:
    path = folder / "workers.sock"
    with on_socket(path, slow, repository, "--workers", "2") as gateway:
        children = Path(f"/proc/{gateway.process.pid}/task/{gateway.process.pid}/children").read_text().split()
        assert len(children) == 2

        def ask(number: int) -> bytes:
            return answer_to(request(stream=True, max_tokens=20), connect(path))

        with ThreadPoolExecutor(16) as pool:
            assert all(answer.endswith(ENDED) for answer in pool.map(ask, range(32)))
        assert gateway.metric(RELAYED) > 100
        for child in children:
            os.kill(int(child), signal.SIGKILL)
        wait_for(lambda: not any(is_alive(child) for child in children), "their end")
        # Nobody is there to take it, and it is not refused: it waits for a worker.
        assert ask(0).startswith(b"HTTP/1.1 200 OK")
        gateway.wait_until_ready()
        slow.add_fault(stall_after=2)
        with begun(path) as stream:
            gateway.process.send_signal(signal.SIGTERM)
            wait_for(lambda: not is_taken(path), "no new connections", seconds=20)
            assert gateway.process.poll() is None
            slow.clear_faults()
            assert rest(stream).endswith(ENDED)
        assert gateway.process.wait(60) == 0
        assert not path.exists()
