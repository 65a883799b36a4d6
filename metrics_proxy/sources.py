"""Where metrics come from: HTTP pages and multiprocess directories, each read within its time and limits.

A read that is under way is shared by everyone who asks meanwhile. Nothing is kept: what a source gave before is never
served in place of what it does not give now.
"""

import asyncio
import logging
import queue
import threading
import time
import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import aiohttp

from metrics_proxy.directory import Directory, DirectoryError, Report
from metrics_proxy.families import Family, count_samples
from metrics_proxy.parse import ParseError, Parser

_T = TypeVar("_T")

_log = logging.getLogger(__name__)

# What prometheus_client and Triton change least. OpenMetrics from whoever gives nothing else.
_ACCEPT = "text/plain;version=0.0.4;q=1,application/openmetrics-text;version=1.0.0;q=0.5,*/*;q=0.1"
_OPENMETRICS = "application/openmetrics-text"
_CHUNK = 1 << 16
# Bytes above which parsing would hold up other requests.
_LARGE = 1 << 17


class SourceError(Exception):
    """A sentence: why a source gives nothing."""


class BadPage(SourceError):
    """What it gave cannot be read."""


@dataclass(frozen=True)
class Content:
    """What a source gave. `conflicts` counts, by family and kind, what could not be kept of it."""

    families: Sequence[Family]
    conflicts: Counter[tuple[str, str]] = field(default_factory=Counter)
    report: Report | None = None


@dataclass(frozen=True)
class Outcome:
    """One read: what it gave or, with `content` None, why it gave nothing. `seconds` is how long it took."""

    source: str
    content: Content | None
    error: str
    seconds: float

    @property
    def samples(self) -> int:
        return count_samples(self.content.families) if self.content else 0


class Source(ABC):
    """A source with its history: `last_success` in seconds since the epoch, 0 before the first."""

    def __init__(self, name: str, timeout: float) -> None:
        self.name = name
        self.last_success = 0.0
        self.parse_errors = 0
        self._timeout = timeout
        self._running: asyncio.Task[Outcome] | None = None

    @property
    @abstractmethod
    def address(self) -> str:
        """For people."""

    @property
    def has_bridge(self) -> bool:
        return False

    @abstractmethod
    async def _fetch(self) -> Content:
        """Raises `SourceError`."""

    async def read(self, seconds: float) -> Outcome:
        """What it gives now; after `seconds`, that it gave nothing in time."""
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._read())
        running = self._running
        begun = time.monotonic()
        done, _ = await asyncio.wait((running,), timeout=seconds)
        if done:
            return running.result()
        took = time.monotonic() - begun
        return Outcome(self.name, None, f"it gave nothing within the scrape's {took:.3g} s", took)

    async def _read(self) -> Outcome:
        begun = time.monotonic()
        content, error = None, ""
        try:
            async with asyncio.timeout(self._timeout):
                content = await self._fetch()
            self.last_success = time.time()
        except TimeoutError:
            error = f"it gave nothing within {self._timeout:g} s"
        except BadPage as problem:
            self.parse_errors += 1
            error = str(problem)
        except SourceError as problem:
            error = str(problem)
        except Exception:
            # A fault of this service costs this source, not the page.
            _log.exception("reading the source %s failed", self.name)
            error = "reading it failed; the cause is in the log"
        return Outcome(self.name, content, error, time.monotonic() - begun)


class HttpSource(Source):
    """A page over HTTP. `session` makes the connections; it must not unpack bodies itself."""

    def __init__(
        self,
        name: str,
        timeout: float,
        url: str,
        parser: Parser,
        session: Callable[[], aiohttp.ClientSession],
        *,
        max_bytes: int,
        is_triton: bool,
    ) -> None:
        super().__init__(name, timeout)
        self._url = url
        self._parser = parser
        self._session = session
        self._max_bytes = max_bytes
        self._is_triton = is_triton

    @property
    def address(self) -> str:
        return self._url

    @property
    def has_bridge(self) -> bool:
        return self._is_triton

    async def _fetch(self) -> Content:
        headers = {"Accept": _ACCEPT, "Accept-Encoding": "gzip"}
        try:
            async with self._session().get(self._url, headers=headers, allow_redirects=False) as answer:
                if answer.status != 200:
                    raise SourceError(f"it answered with status {answer.status}")
                body = await self._body(answer)
                content_type = answer.headers.get("Content-Type", "").lower()
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise SourceError(_reason(error)) from None
        is_openmetrics = content_type.startswith(_OPENMETRICS)
        if len(body) < _LARGE:
            return self._parse(body, is_openmetrics)
        return await asyncio.to_thread(self._parse, body, is_openmetrics)

    async def _body(self, answer: aiohttp.ClientResponse) -> bytes:
        """Unpacked. Both the body and what is unpacked from it have the same limit."""
        encoding = answer.headers.get("Content-Encoding", "identity").strip().lower()
        if encoding not in ("gzip", "x-gzip", "identity", ""):
            raise BadPage(f"its body has the Content-Encoding {encoding!r}, which was not asked for")
        unpack = zlib.decompressobj(16 + zlib.MAX_WBITS) if "gzip" in encoding else None
        body = bytearray()
        received = 0
        async for chunk in answer.content.iter_chunked(_CHUNK):
            received += len(chunk)
            if unpack:
                try:
                    body += unpack.decompress(chunk, self._max_bytes + 1 - len(body))
                except zlib.error:
                    raise BadPage("its body is not the gzip that its Content-Encoding says") from None
            else:
                body += chunk
            if len(body) > self._max_bytes or received > self._max_bytes:
                raise BadPage(f"its body has more than {self._max_bytes} bytes (max_body_bytes)")
        if unpack and not unpack.eof:
            raise BadPage("its gzip ends early")
        return bytes(body)

    def _parse(self, body: bytes, openmetrics: bool) -> Content:
        try:
            page = self._parser.parse(body.decode("utf-8"), openmetrics=openmetrics)
        except UnicodeDecodeError:
            raise BadPage("its page is not UTF-8") from None
        except ParseError as error:
            raise BadPage(f"its page is wrong: {error}") from None
        conflicts = Counter({(family, "duplicate"): number for family, number in page.repeated.items()})
        conflicts.update({(family, "type"): number for family, number in page.retyped.items()})
        return Content(page.families, conflicts)


class DirectorySource(Source):
    """A multiprocess directory. A thread reads it, which may hang with the file system; no second one is begun then."""

    def __init__(self, name: str, timeout: float, path: str, directory: Directory) -> None:
        super().__init__(name, timeout)
        self._path = path
        self._directory = directory
        self._reading: asyncio.Future[Report] | None = None
        self._worker = _Worker()

    @property
    def address(self) -> str:
        return self._path

    async def _fetch(self) -> Content:
        if self._reading is not None and not self._reading.done():
            raise SourceError("reading it has not ended since it was begun for an earlier scrape")
        self._reading = self._worker.do(self._directory.read)
        try:
            report = await asyncio.shield(self._reading)
        except DirectoryError as error:
            raise SourceError(str(error)) from None
        self.parse_errors += len(report.bad)
        return Content(report.families, report.combined.conflicts, report)


class _Worker(threading.Thread):
    """Does one thing after another, and does not keep the process from ending. A thread of its own for each read would
    cost a third of the read."""

    def __init__(self) -> None:
        super().__init__(daemon=True, name="read-directory")
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.start()

    def run(self) -> None:
        while True:
            self._work.get()()

    def do(self, function: Callable[[], _T]) -> "asyncio.Future[_T]":
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_T] = loop.create_future()

        def settle(result: _T | None, error: BaseException | None) -> None:
            if future.cancelled():
                return
            if error is None:
                future.set_result(result)  # type: ignore[arg-type]
            else:
                future.set_exception(error)
                # Taken note of, also if nobody waits any more.
                future.exception()

        def work() -> None:
            result, failure = None, None
            try:
                result = function()
            except BaseException as error:
                failure = error
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, result, failure)

        self._work.put(work)
        return future


def _reason(error: Exception) -> str:
    match error:
        case aiohttp.ClientConnectorError():
            return f"it cannot be reached: {error.strerror or error.os_error}"
        case aiohttp.ClientPayloadError():
            return "its body ended early"
        case aiohttp.ServerDisconnectedError():
            return "it closed the connection without an answer"
    return f"its answer is no HTTP that can be read: {error}"


async def read_all(sources: Sequence[Source], seconds: float) -> list[Outcome]:
    reads: list[Awaitable[Outcome]] = [source.read(seconds) for source in sources]
    return list(await asyncio.gather(*reads))
