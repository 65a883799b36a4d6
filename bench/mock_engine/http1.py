"""HTTP/1.1 on the wire, as Triton's server speaks it, with full control of what leaves when. Knows nothing of
Triton's routes.

Own code in place of an ASGI server, since tests need the exact bytes: chunk borders, cuts at arbitrary places, a
connection that is dropped in the middle. Like tritonserver it never waits for a slow reader.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import unquote

MAX_HEAD = 64 * 1024
_PAUSE_BETWEEN_PIECES = 0.001

_REASONS = {405: "Not Allowed"}


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes

    @property
    def keep_alive(self) -> bool:
        return self.headers.get("connection", "").lower() != "close"


class ConnectionDropped(Exception):
    """A fault asked for the connection to be dropped here."""


Handler = Callable[[Request, "Response"], Awaitable[None]]


class Response:
    """Writes one response: `send_whole`, or `begin`, `chunk`…, `end`."""

    def __init__(self, connection: "Http1Connection", keep_alive: bool) -> None:
        self._connection = connection
        self._keep_alive = keep_alive
        self._sizes: Iterator[int] | None = None
        self._size = 0
        self._waiting = bytearray()
        self._sent = 0
        self._drop_at: int | None = None
        self.begun = False

    @property
    def closed(self) -> asyncio.Event:
        """Set when the client has closed or half-closed the connection."""
        return self._connection.closed

    @property
    def closed_at(self) -> float | None:
        """`time.monotonic()` of that moment."""
        return self._connection.closed_at

    def split_writes(self, sizes: Iterator[int]) -> None:
        """From here on the bytes leave in pieces of these sizes, each full but the last."""
        self._sizes = sizes
        self._size = next(sizes)

    def drop_after(self, count: int) -> None:
        """The connection is dropped after so many bytes of this response."""
        self._drop_at = count

    async def send_whole(self, status: int, body: bytes = b"", content_type: str = "text/plain") -> None:
        await self._write(self._head(status, content_type, f"Content-Length: {len(body)}") + body)
        await self._flush()

    async def begin(self, status: int, content_type: str, first_chunk: bytes) -> None:
        self.begun = True
        await self._write(self._head(status, content_type, "Transfer-Encoding: chunked") + _chunk(first_chunk))

    async def chunk(self, data: bytes) -> None:
        await self._write(_chunk(data))

    async def end(self) -> None:
        await self._write(b"0\r\n\r\n")
        await self._flush()

    async def drop(self) -> None:
        """Closes the connection in the middle of the response. Raises ConnectionDropped."""
        await self._flush()
        self._connection.close()
        raise ConnectionDropped

    def _head(self, status: int, content_type: str, length: str) -> bytes:
        reason = _REASONS.get(status) or HTTPStatus(status).phrase
        connection = "" if self._keep_alive else "Connection: close\r\n"
        return f"HTTP/1.1 {status} {reason}\r\nContent-Type: {content_type}\r\n{length}\r\n{connection}\r\n".encode()

    async def _write(self, data: bytes) -> None:
        if self._sizes is None:
            self._send(data)
            return
        self._waiting += data
        while len(self._waiting) >= self._size:
            self._send(bytes(self._waiting[: self._size]))
            del self._waiting[: self._size]
            self._size = next(self._sizes)
            await asyncio.sleep(_PAUSE_BETWEEN_PIECES)

    async def _flush(self) -> None:
        self._send(bytes(self._waiting))
        self._waiting.clear()

    def _send(self, data: bytes) -> None:
        if self._drop_at is not None and self._sent + len(data) >= self._drop_at:
            self._connection.write(data[: self._drop_at - self._sent])
            self._connection.close()
            raise ConnectionDropped
        self._sent += len(data)
        self._connection.write(data)


def _chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


class Http1Connection(asyncio.Protocol):
    """One client connection; requests are answered one after the other."""

    def __init__(self, handle: Handler) -> None:
        self._handle = handle
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._task: asyncio.Task[None] | None = None
        self.closed = asyncio.Event()
        self.closed_at: float | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._next()

    def eof_received(self) -> bool:
        self._note_closed()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._note_closed()

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _note_closed(self) -> None:
        if self.closed_at is None:
            self.closed_at = time.monotonic()
            self.closed.set()

    def _next(self) -> None:
        if self._task is not None or self.closed.is_set():
            return
        try:
            request = self._read()
        except ValueError:
            self.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            self.close()
            return
        if request is not None:
            self._task = asyncio.get_running_loop().create_task(self._serve(request))

    async def _serve(self, request: Request) -> None:
        try:
            await self._handle(request, Response(self, request.keep_alive))
        except ConnectionDropped:
            pass
        finally:
            self._task = None
        if not request.keep_alive:
            self.close()
        self._next()

    def _read(self) -> Request | None:
        """The next whole request in the buffer, or None. Raises ValueError for what is no HTTP."""
        end = self._buffer.find(b"\r\n\r\n")
        if end == -1:
            if len(self._buffer) > MAX_HEAD:
                raise ValueError("head too long")
            return None
        line, *fields = self._buffer[:end].decode("latin-1").split("\r\n")
        method, target, _version = line.split(" ")
        headers = {}
        for line in fields:
            name, value = line.split(":", 1)
            headers[name.strip().lower()] = value.strip()
        if headers.get("transfer-encoding", "").lower() == "chunked":
            body, after = self._read_chunks(end + 4)
        else:
            after = end + 4 + int(headers.get("content-length", "0"))
            body = bytes(self._buffer[end + 4 : after]) if len(self._buffer) >= after else None
        if body is None:
            return None
        del self._buffer[:after]
        return Request(method, unquote(target.split("?")[0]), headers, body)

    def _read_chunks(self, at: int) -> tuple[bytes | None, int]:
        body = bytearray()
        while True:
            line_end = self._buffer.find(b"\r\n", at)
            if line_end == -1:
                return None, at
            size = int(self._buffer[at:line_end].split(b";")[0], 16)
            data = line_end + 2
            if len(self._buffer) < data + size + 2:
                return None, at
            body += self._buffer[data : data + size]
            at = data + size + 2
            if size == 0:
                return bytes(body), at
