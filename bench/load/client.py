"""Asks and times: one HTTP/1.1 connection per request in flight, kept open between requests.

Made to cost little, so that what is measured is the server: while an answer comes, a read is a time and a reference to
its bytes; all else is done at the answer's end.
"""

import asyncio
import ssl
import time
from collections.abc import Callable, Mapping
from typing import cast
from urllib.parse import urlsplit

from bench.load.check import Outcome, judge
from bench.load.stream import Answer, Malformed, read_answer
from bench.load.workloads import Request

_END = b"0\r\n\r\n"
_CLOSED = "the connection was closed before the answer began"


def check_url(url: str) -> str:
    """The URL itself. Raises ValueError for what a client cannot ask."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r} is no URL such as http://127.0.0.1:9000")
    return url


class Client:
    """For one event loop. `url` is the server's base URL, without `/v1`; `headers` go with every request; `timeout` is
    how many seconds an answer may take in all. With `unix_socket`, the path of a Unix-domain socket, that is connected
    to, not the URL's host."""

    def __init__(
        self,
        url: str,
        *,
        unix_socket: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = 600.0,
    ) -> None:
        parts = urlsplit(check_url(url))
        assert parts.hostname is not None
        self._host, self._port = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
        self._unix_socket = unix_socket
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._path = parts.path.rstrip("/")
        lines = {"Host": parts.netloc, "Content-Type": "application/json", "Accept": "*/*"} | dict(headers or {})
        self._lines = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self._timeout = timeout
        self._idle: list[_Connection] = []

    async def ask(self, request: Request, began: float | None = None) -> Outcome:
        """Sends it and waits for the end of the answer. What goes wrong is the outcome's error; nothing is raised for
        it. `began` is when it should have been sent, where that is not now."""
        if began is None:
            began = time.perf_counter()
        try:
            async with asyncio.timeout(self._timeout):
                answer = await self._send(request)
        except TimeoutError:
            return _failed(request, began, f"the answer took longer than {self._timeout:g} s")
        except (OSError, Malformed, _Closed) as error:
            return _failed(request, began, str(error) or type(error).__name__)
        return judge(request, answer, began, time.perf_counter())

    async def connect(self, count: int) -> None:
        """Opens so many connections ahead, for requests to come. Raises OSError."""
        self._idle += await asyncio.gather(*(self._open() for _ in range(count)))

    def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    async def _send(self, request: Request) -> Answer:
        head = f"POST {self._path}{request.path} HTTP/1.1\r\n{self._lines}Content-Length: {len(request.body)}\r\n\r\n"
        data = head.encode() + request.body
        kept = self._take_idle()
        if kept is not None:
            try:
                return await self._exchange(kept, data)
            except _Closed:
                # The server has closed it in the meantime, as it may.
                pass
        return await self._exchange(await self._open(), data)

    async def _open(self) -> "_Connection":
        loop = asyncio.get_running_loop()
        name = self._host if self._tls else None
        try:
            if self._unix_socket is not None:
                _, connection = await loop.create_unix_connection(
                    _Connection, self._unix_socket, ssl=self._tls, server_hostname=name
                )
            else:
                _, connection = await loop.create_connection(
                    _Connection, self._host, self._port, ssl=self._tls, server_hostname=name
                )
        except OSError as error:
            place = self._unix_socket or f"{self._host}:{self._port}"
            raise ConnectionError(f"cannot connect to {place}: {error.strerror or error}") from None
        return connection

    async def _exchange(self, connection: "_Connection", data: bytes) -> Answer:
        try:
            answer = await connection.exchange(data)
        except BaseException:
            connection.close()
            raise
        if answer.keeps_alive and answer.is_whole and connection.is_open:
            self._idle.append(connection)
        else:
            connection.close()
        return answer

    def _take_idle(self) -> "_Connection | None":
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
        return None


class _Closed(Exception):
    """The connection was closed before a byte of the answer came."""


def _failed(request: Request, began: float, error: str) -> Outcome:
    return Outcome(request.kind, began, time.perf_counter(), error=error)


class _Connection(asyncio.Protocol):
    """Used by one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._reads: list[bytes] = []
        self._times: list[float] = []
        # Whether the end can be seen by the last bytes alone: those of a chunked body.
        self._is_plain = False
        self._waiter: asyncio.Future[Answer] | None = None
        self._clock: Callable[[], float] = time.perf_counter

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def exchange(self, data: bytes) -> Answer:
        """Raises `_Closed`, `Malformed`."""
        if self._transport is None:
            raise _Closed(_CLOSED)
        self._reads, self._times, self._is_plain = [], [], False
        self._waiter = asyncio.get_running_loop().create_future()
        self._transport.write(data)
        try:
            return await self._waiter
        finally:
            self._waiter = None
            self._reads, self._times = [], []

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have asyncio's methods without being its classes.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._times.append(self._clock())
        self._reads.append(data)
        if not self._is_plain or len(data) < len(_END) or data.endswith(_END):
            self._look(is_closed=False)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._look(is_closed=True)

    def _look(self, *, is_closed: bool) -> None:
        """Is the answer at its end?"""
        waiter = self._waiter
        if waiter is None or waiter.done():
            return
        if self._is_plain and not is_closed and not b"".join(self._reads[-len(_END) :]).endswith(_END):
            return
        try:
            answer = read_answer(self._reads, self._times, is_closed=is_closed)
        except Malformed as error:
            waiter.set_exception(error)
            return
        if answer is not None:
            self._is_plain = b"chunked" in answer.headers.get(b"transfer-encoding", b"")
        if answer is not None and (answer.is_whole or is_closed):
            waiter.set_result(answer)
        elif is_closed:
            waiter.set_exception(Malformed(_MIDDLE) if self._reads else _Closed(_CLOSED))


_MIDDLE = "the connection was closed in the middle of the answer's head"
