"""The generate hot path: one HTTP/1.1 connection per open request, spoken by an `asyncio.Protocol`.

`Connections` belongs to one Triton instance and keeps idle connections; `Call` is one request: send,
wait for the head (which Triton sends with the first response), take events as they come, cancel at any
moment. Cancelling closes the connection: Triton then tells the backend within milliseconds, once a
first response has been sent.

Who takes the events either waits until there are some (`change`) or is called when some have come (`listen`): a task's
turn costs as much as all that is done with a token.
"""

import asyncio
import socket
import ssl
import time
from collections.abc import Callable
from typing import Protocol, cast
from urllib.parse import urlsplit

from gateway.triton.limits import EVENTS_AT_ONCE, IDLE_CONNECTIONS, IDLE_SECONDS, READ_AHEAD_BYTES
from gateway.triton.response_parser import ProtocolError, response_parser
from gateway.triton.upstreams import Upstreams

# For the parser of an answer whose head was read elsewhere.
_HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"

_SENT_AT_ONCE = 256 * 1024
"""Bytes of a request. To copy megabytes to the kernel takes some milliseconds."""
_NOTHING = memoryview(b"")


class ConnectError(Exception):
    """No connection to the instance could be made: the request never reached it."""


class BrokenConnection(Exception):
    """The connection died in the middle of a request. `answered`: at least one byte of the answer came."""

    def __init__(self, message: str, *, answered: bool) -> None:
        super().__init__(message)
        self.answered = answered


class Borrower(Protocol):
    """Reads a connection in place of whoever takes its events, until it gives it back or is stopped."""

    @property
    def is_held(self) -> bool:
        """Whether the client keeps it from reading on."""

    def stop(self) -> object:
        """At once, since the connection is closed."""


class Connections:
    """The connections to one Triton instance.

    `url` is its base URL (`http://host:port`, `https://…`, perhaps with a path);
    `connect_timeout` is in seconds. `upstreams` are those of the native relay; None with TLS.
    """

    def __init__(self, url: str, connect_timeout: float) -> None:
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._path = parts.path.rstrip("/")
        self._netloc = parts.netloc
        self._heads: dict[str, bytes] = {}
        """Their first lines, by their paths: a few for each model."""
        self.connect_timeout = connect_timeout
        self._idle: list[_Connection] = []
        self._closing_idle: asyncio.TimerHandle | None = None
        self.upstreams = None if self._tls else Upstreams(self._host, self._port, self._find, connect_timeout)

    def call(self, path: str, body: bytes, headers: bytes = b"", *, is_lasting: bool = False) -> "Call":
        """A `POST` that is sent when its head is awaited; `headers` are further lines of it, each with its end. One
        that is to last gets a connection of its own, which ends with it."""
        head = b"%bContent-Length: %d\r\n%b\r\n" % (self.head(path), len(body), headers)
        is_long = len(body) > _SENT_AT_ONCE
        return Call(self, head if is_long else head + body, body if is_long else b"", is_lasting=is_lasting)

    def head(self, path: str) -> bytes:
        """The first lines of a `POST`, up to its length."""
        head = self._heads.get(path)
        if head is None:
            head = self._heads[path] = (
                f"POST {self._path}{path} HTTP/1.1\r\nHost: {self._netloc}\r\nContent-Type: application/json\r\n"
            ).encode()
        return head

    def take_idle(self) -> "_Connection | None":
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
        return None

    def give_back(self, connection: "_Connection") -> None:
        if len(self._idle) < IDLE_CONNECTIONS:
            connection.idle_since = time.monotonic()
            self._idle.append(connection)
            if self._closing_idle is None:
                self._close_idle_in(IDLE_SECONDS)
        else:
            connection.close()

    def forget(self, connection: "_Connection") -> None:
        if connection in self._idle:
            self._idle.remove(connection)

    async def connect(self) -> "_Connection":
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self.connect_timeout):
                _, connection = await loop.create_connection(
                    lambda: _Connection(self.forget), self._host, self._port, ssl=self._tls
                )
        except (OSError, TimeoutError) as error:
            raise ConnectError(str(error) or type(error).__name__) from None
        return connection

    async def adopt(self, connected: socket.socket, came: bytes) -> "_Connection":
        """A connection that was made elsewhere. `came`: what has been read of the answer on it."""
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: _Connection(self.forget, came), sock=connected
        )
        return connection

    async def _find(self) -> str | None:
        try:
            connection = await self.connect()
        except ConnectError:
            return None
        address = connection.peer
        self.give_back(connection)
        return address

    def close(self) -> None:
        if self.upstreams is not None:
            self.upstreams.close()
        if self._closing_idle is not None:
            self._closing_idle.cancel()
            self._closing_idle = None
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    def _close_idle(self) -> None:
        """Closes what nobody has taken for some time. The first are those that were given back first."""
        oldest = time.monotonic() - IDLE_SECONDS
        kept = [one for one in self._idle if one.idle_since > oldest]
        for connection in self._idle[: len(self._idle) - len(kept)]:
            connection.close()
        self._idle = kept
        self._closing_idle = None
        if kept:
            self._close_idle_in(kept[0].idle_since - oldest)

    def _close_idle_in(self, seconds: float) -> None:
        self._closing_idle = asyncio.get_running_loop().call_later(seconds, self._close_idle)


class Call:
    """One request. Await `head()`, then `take()` until it returns None, each time that there is something (`change`,
    `listen`); `cancel` from anywhere.

    It is `request`, and `rest`, which is sent in pieces. `connect_seconds` is how long it took to make a connection;
    0.0 where a kept one was used.
    """

    def __init__(self, connections: Connections, request: bytes, rest: bytes = b"", *, is_lasting: bool) -> None:
        self._connections = connections
        self._is_lasting = is_lasting
        self._request = request
        self._rest = rest
        self._connection: _Connection | None = None
        self._failure: Exception | None = None
        self._is_over = False
        self.connect_seconds = 0.0

    @property
    def waits(self) -> bool:
        """Whether something is to come from the instance; else what came has not been taken yet, or all has."""
        return not self._is_over and (self._connection is None or self._connection.is_awaited)

    async def head(self) -> int:
        """Send the request and wait for the status of the answer.

        Raises `ConnectError`, `BrokenConnection`, or what `cancel` was given. A kept connection may
        have been closed by the server a moment ago: then, if no byte of an answer came, the request is
        sent once more, on a fresh connection.
        """
        kept = None if self._is_lasting else self._connections.take_idle()
        if kept is not None:
            try:
                return await self._send(kept)
            except BrokenConnection as error:
                if error.answered:
                    raise
        return await self._send(await self._connect())

    def begin(self, listener: Callable[[], None]) -> bool:
        """Send the request without waiting, where there is a kept connection; False where there is none. `listener` is
        as in `listen`, and `take` is to be called once `status` is 200."""
        kept = None if self._is_lasting else self._connections.take_idle()
        if kept is None:
            return False
        self._start(kept, listener)
        return True

    async def connect(self, listener: Callable[[], None]) -> None:
        """`begin` on a new connection. Raises `ConnectError`, or what `cancel` was given."""
        connection = await self._connect()
        if self._failure is not None:
            connection.close()
            raise self._failure
        self._start(connection, listener)

    async def adopt(
        self, connected: socket.socket, came: bytes, listener: Callable[[], None], *, has_head: bool, seconds: float
    ) -> None:
        """The request was sent elsewhere, on a connection that it took so long to make. `came`: what has come of its
        answer, behind the head if that `has_head`. Raises what `cancel` was given."""
        self.connect_seconds = seconds
        connection = await self._connections.adopt(connected, _HEAD + came if has_head else came)
        if self._failure is not None:
            connection.close()
            raise self._failure
        self._connection = connection
        connection.listener = listener
        # It is read already.
        listener()

    @property
    def status(self) -> int:
        """Of the answer; 0 before it is there. Raises as `head` does."""
        connection = self._connection
        if connection is None:
            self._raise_failure()
            return 200
        if not connection.parser.status:
            self._raise_broken(connection)
        return connection.parser.status

    def take(self) -> list[bytes] | None:
        """The events that came since the last call, none where none did; None at the end of the answer. Raises as
        `head` does, after what came before the failure."""
        connection = self._connection
        if connection is None:
            self._raise_failure()
            return None
        if events := connection.parser.take(EVENTS_AT_ONCE):
            return events
        if connection.parser.done:
            self._finish(connection)
            return None
        self._raise_broken(connection)
        # Whoever takes has all that is complete: what is held back may be the rest of a long event.
        connection.read_on()
        return events

    async def change(self) -> None:
        """Until there may be something to take."""
        if self._connection is not None:
            await self._connection.wait()

    def listen(self, listener: Callable[[], None] | None) -> None:
        """Have `listener` called whenever there may be something to take, in place of who waits; None: no more."""
        if self._connection is not None:
            self._connection.listener = listener

    def lend(self, borrower: Borrower) -> "_Connection | None":
        """The connection, for who reads it from now on; `give_back` ends that. None where it cannot be lent now."""
        return self._connection if self._connection is not None and self._connection.lend(borrower) else None

    async def error_body(self) -> bytes:
        """The whole body of an answer whose status is not 200."""
        connection = self._connection
        assert connection is not None
        while (body := self.error_body_now()) is None:
            await self._wait(connection)
        return body

    def error_body_now(self) -> bytes | None:
        """The same if it has come."""
        connection = self._connection
        assert connection is not None
        if not connection.parser.done:
            self._raise_broken(connection)
            return None
        body = connection.parser.error_body
        self._finish(connection)
        return body

    def cancel(self, reason: Exception) -> None:
        """Close the connection unless the answer is complete; whoever waits gets `reason`. Idempotent."""
        if self._failure is None:
            self._failure = reason
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
            connection.wake()
            connection.listener = None

    def _start(self, connection: "_Connection", listener: Callable[[], None]) -> None:
        self._connection = connection
        connection.listener = listener
        connection.send(self._request, self._rest)

    async def _connect(self) -> "_Connection":
        started = time.monotonic()
        connection = await self._connections.connect()
        self.connect_seconds = time.monotonic() - started
        return connection

    async def _send(self, connection: "_Connection") -> int:
        if self._failure is not None:
            connection.close()
            raise self._failure
        self._connection = connection
        connection.send(self._request, self._rest)
        while not connection.parser.status:
            await self._wait(connection)
        # It will not be sent again: a long prompt is not kept for as long as its answer takes.
        self._request = self._rest = b""
        return connection.parser.status

    async def _wait(self, connection: "_Connection") -> None:
        # Whoever waits has read all that is complete: what is held back may be the rest of a long event.
        connection.read_on()
        await connection.wait()
        self._raise_failure()
        self._raise_broken(connection)

    def _raise_broken(self, connection: "_Connection") -> None:
        if connection.failure is not None:
            self._connection = None
            raise BrokenConnection(connection.failure, answered=connection.answered)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _finish(self, connection: "_Connection") -> None:
        self._connection = None
        self._is_over = True
        connection.listener = None
        if connection.parser.reusable and connection.is_open and connection.has_sent and not self._is_lasting:
            self._connections.give_back(connection)
        else:
            connection.close()


class _Connection(asyncio.Protocol):
    """A connection, used by one call at a time. Reading pauses while nobody waits for more. `came`: what has been read
    on it already, of the answer to a request that was sent already."""

    def __init__(self, on_lost: Callable[["_Connection"], None], came: bytes = b"") -> None:
        self.parser = response_parser()
        self.failure: str | None = None
        self.answered = False
        self._on_lost = on_lost
        self._came = came
        self._transport: asyncio.Transport | None = None
        self.listener: Callable[[], None] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._unread = 0
        self._paused = False
        self._unsent: memoryview = _NOTHING
        self._is_full = False
        self._borrower: Borrower | None = None
        self.idle_since = 0.0
        """`time.monotonic()`, while it is among the idle ones."""

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def peer(self) -> str | None:
        """Its address."""
        if self._transport is None:
            return None
        address: str = self._transport.get_extra_info("peername")[0]
        return address

    @property
    def has_sent(self) -> bool:
        """All of its request."""
        return not self._unsent

    @property
    def is_awaited(self) -> bool:
        if self._borrower is not None:
            return not self._borrower.is_held
        return self._waiter is not None or self.listener is not None

    def send(self, request: bytes, rest: bytes) -> None:
        self.parser = response_parser()
        self.answered = False
        self._unread = 0
        assert self._transport is not None
        self._transport.write(request)
        if rest:
            self._unsent = memoryview(rest)
            self._send_on()

    def _send_on(self) -> None:
        """The next piece of a long request, each in a turn of the loop."""
        if self._transport is None or self._is_full or not self._unsent:
            return
        piece, self._unsent = self._unsent[:_SENT_AT_ONCE], self._unsent[_SENT_AT_ONCE:]
        self._transport.write(piece)
        if self._unsent:
            asyncio.get_running_loop().call_soon(self._send_on)

    async def wait(self) -> None:
        """Until something changed. A failure that is already known returns at once."""
        if self.failure is not None:
            return
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def wake(self) -> None:
        if self.listener is not None:
            self.listener()
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def read_on(self) -> None:
        self._unread = 0
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()

    def lend(self, borrower: Borrower) -> bool:
        transport, parser = self._transport, self.parser
        # Nothing that came may be left behind, and what comes must be the bytes of the answer themselves.
        if transport is None or transport.is_closing() or self._paused or transport.get_extra_info("sslcontext"):
            return False
        if parser.status != 200 or not parser.is_between_chunks or parser.has_events:
            return False
        transport.pause_reading()
        self._borrower = borrower
        return True

    def fileno(self) -> int:
        """Of the socket."""
        assert self._transport is not None
        number: int = self._transport.get_extra_info("socket").fileno()
        return number

    def give_back(self, data: bytes) -> None:
        """It is read here again. `data`: what the borrower has read and made nothing of, from the beginning of a chunk
        on."""
        self._borrower = None
        if self._transport is not None:
            self._transport.resume_reading()
            if data:
                self.data_received(data)

    def close(self) -> None:
        self._unsent = _NOTHING
        borrower, self._borrower = self._borrower, None
        if borrower is not None:
            borrower.stop()
        # abort, not close: a request body that is still being written must not keep the socket open.
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have asyncio's methods without being its classes.
        self._transport = cast(asyncio.Transport, transport)
        # Ahead of all that is read from here on.
        came, self._came = self._came, b""
        if came:
            self.data_received(came)

    def data_received(self, data: bytes) -> None:
        self.answered = True
        try:
            self.parser.feed(data)
        except ProtocolError as error:
            self._fail(str(error))
            self.close()
            return
        self._unread += len(data)
        if self._unread > READ_AHEAD_BYTES and not self._paused and not self.parser.done:
            self._paused = True
            assert self._transport is not None
            self._transport.pause_reading()
        self.wake()

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self._send_on()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._unsent = _NOTHING
        self._on_lost(self)
        if not self.parser.done:
            try:
                self.parser.eof()
            except ProtocolError as reason:
                self._fail(str(error or reason))
        self.wake()

    def _fail(self, reason: str) -> None:
        self.failure = reason
        self.wake()
