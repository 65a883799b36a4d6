"""For the tests of metrics_proxy: pages over real HTTP, the application without a process around it, a process of its
own, and a reader of pages that shares nothing with the proxy's."""

import asyncio
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx

from metrics_proxy.app import MetricsProxy
from metrics_proxy.settings import load
from tests.support.service import Service, running_service

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


@dataclass
class Answer:
    """What a source answers. `claims` is a Content-Length that is longer than the body; `before` runs first, such as a
    wait. `delay` is seconds between two chunks."""

    body: bytes | Iterable[bytes] = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=lambda: {"Content-Type": TEXT})
    claims: int | None = None
    before: Callable[[], object] = lambda: None
    delay: float = 0


class PageServer:
    """A source. `answer` may be changed at any time; `requests` holds the headers of what was asked for."""

    def __init__(self, answer: Answer | str) -> None:
        self.answer = Answer(answer.encode()) if isinstance(answer, str) else answer
        self.requests: list[dict[str, str]] = []
        self.port = 0
        self._server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/metrics"

    def say(self, text: str) -> None:
        self.answer = Answer(text.encode())

    def start(self) -> "PageServer":
        """Listens, on the port that it had before."""
        source = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                source.requests.append({name.lower(): value for name, value in self.headers.items()})
                answer = source.answer
                answer.before()
                self.close_connection = True
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                if isinstance(answer.body, bytes):
                    self.send_header("Content-Length", str(answer.claims or len(answer.body)))
                self.send_header("Connection", "close")
                self.end_headers()
                try:
                    for chunk in (answer.body,) if isinstance(answer.body, bytes) else answer.body:
                        self.wfile.write(chunk)
                        self.wfile.flush()
                        time.sleep(answer.delay)
                except OSError:
                    pass  # The proxy has had enough.

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False
            request_queue_size = 128

        self._server = Server(("127.0.0.1", self.port), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def __enter__(self) -> "PageServer":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


@asynccontextmanager
async def running_app(*flags: str) -> AsyncIterator[httpx.AsyncClient]:
    """The application with these flags, and a client of it."""
    app = MetricsProxy(load([*flags]))
    messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    done: asyncio.Queue[Any] = asyncio.Queue()
    lifespan = asyncio.create_task(app({"type": "lifespan"}, messages.get, done.put))
    await messages.put({"type": "lifespan.startup"})
    assert (await done.get())["type"] == "lifespan.startup.complete"
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://proxy", timeout=60) as client:
        yield client
    await messages.put({"type": "lifespan.shutdown"})
    await lifespan


class Proxy(Service):
    """A running proxy."""

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def page(self, **headers: str) -> "Samples":
        answer = httpx.get(f"{self.url}/metrics", headers=headers, timeout=60)
        assert answer.status_code == 200, answer.text
        return Samples(answer.text)


@contextmanager
def running_proxy(*flags: str, **environment: str) -> Iterator[Proxy]:
    """`python -m metrics_proxy` on a free port."""
    command = ("-m", "metrics_proxy", "--port", "0", *flags)
    with running_service(*command, environment=environment) as service:
        yield Proxy(service.url, service.process, service.logs)


Key = tuple[str, frozenset[tuple[str, str]]]

_NAME = re.compile(r"[a-zA-Z_:][\w:]*", re.ASCII)
_LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)",?', re.ASCII)


def key(series: str) -> Key:
    """A series as the tests write it, such as `a{b="c"}`; an empty label is none."""
    name = _NAME.match(series)
    assert name, series
    inner = series[name.end() :].strip()
    labels = set()
    if inner:
        assert inner[0] == "{", series
        assert inner[-1] == "}", series
        at = 1
        while at < len(inner) - 1:
            label = _LABEL.match(inner, at)
            assert label, series
            value = re.sub(r"\\(.)", lambda m: {"n": "\n"}.get(m[1], m[1]), label[2])
            if value:
                labels.add((label[1], value))
            at = label.end()
    return name[0], frozenset(labels)


class Samples:
    """The samples of a page, by series, and its lines."""

    def __init__(self, page: str) -> None:
        self.text = page
        self.lines = page.split("\n")
        self.values: dict[Key, list[float]] = {}
        for line in self.lines:
            if line and not line.startswith("#"):
                series, _, value = line.rpartition(" ")
                self.values.setdefault(key(series), []).append(float(value))

    def __getitem__(self, series: str) -> float:
        """The value of a series that must be there once."""
        (value,) = self.values.get(key(series), [])
        return value

    def __contains__(self, series: str) -> bool:
        return key(series) in self.values

    def names(self) -> set[str]:
        return {name for name, _ in self.values}

    def named(self, name: str) -> dict[frozenset[tuple[str, str]], float]:
        return {labels: values[0] for (found, labels), values in self.values.items() if found == name}

    def types(self) -> dict[str, str]:
        return {line.split(" ")[2]: line.split(" ")[3] for line in self.lines if line.startswith("# TYPE ")}

    def without_own(self) -> dict[Key, list[float]]:
        return {key: values for key, values in self.values.items() if not key[0].startswith("metrics_proxy_")}
