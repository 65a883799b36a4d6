"""How the gateway reads HTTP/1.1, with what uvicorn leaves open: requests to upgrade to HTTP/2, heads without end. And
past uvicorn's parser, requests that are all that came and whose form is known (`gateway.api.forms`)."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from gateway.api.direct import Direct
from gateway.api.forms import Known
from gateway.api.http import CLIENT, Header, Receive, Scope, Send, head_lines

# A proxy's limit is 8 to 16 KiB as a rule; requests here carry nothing of note in their heads.
MAX_HEAD_BYTES = 64 * 1024
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_H2C = re.compile(rb"\r\nupgrade:[ \t]*h2c[ \t]*(?=\r\n)", re.IGNORECASE)
# For the rest of a request that may be of a known form; of one that comes more slowly nothing is gained. Nor of one in
# many pieces, of which each would be read anew.
_REST_S = 0.5
_MOST_PIECES = 16

_CHUNKED = b"transfer-encoding: chunked\r\n"


class Protocol(HttpToolsProtocol):
    """Clients such as Java's ask for HTTP/2 over plain TCP on every request. A server may ignore that, but httptools
    stops parsing there and the body is lost; so the header is taken out of the head."""

    _head_bytes = 0
    _in_head = False
    _in_body = False
    _begun = b""
    """Of a request that may be of a known form, in so many `_pieces`."""
    _pieces = 0
    _rest_ends: asyncio.TimerHandle | None = None
    _idle_since: float | None = None
    """By the loop's clock; None while a request is under way."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._current: _Exchange | None = None
        direct: Direct | None = getattr(self.app, "direct", None)
        self._direct = direct

    def data_received(self, data: bytes) -> None:
        if self._direct is None or not (self._is_between_requests or self._is_over_now()):
            self._read(data)
            return
        data = self._begun + data if self._begun else data
        found = self._direct.recognize(data)
        if isinstance(found, Known):
            self._end_rest()
            if not self._direct.answer(self._exchange, found):
                self._read(data)
        elif found and self._pieces < _MOST_PIECES:
            self._unset_keepalive_if_required()
            self._begun = data
            self._pieces += 1
            if self._rest_ends is None:
                self._rest_ends = self.loop.call_later(_REST_S, self._read_begun)
        else:
            self._end_rest()
            self._read(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_rest()
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
        super().connection_lost(exc)
        # Of several that wait for their turn uvicorn tells the last only.
        if (exchange := self._current) is not None and not exchange.response_complete:
            exchange.disconnected = True
            exchange.set()
            exchange.message_event = _NOBODY  # type: ignore[assignment]
        # They know this protocol in turn, and only the collector would find that nobody else does.
        self._current = None
        self.cycle = None  # type: ignore[assignment]

    def shutdown(self) -> None:
        self._read_begun()
        super().shutdown()

    # uvicorn sets a timer at the end of every request and cancels it at the next, which costs as much as to parse one.
    # Here the timer goes on, and looks when it ends.

    def _unset_keepalive_if_required(self) -> None:
        self._idle_since = None

    def on_response_complete(self) -> None:
        if self.pipeline:
            super().on_response_complete()
            return
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        self._idle_since = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self._look_in(self.timeout_keep_alive)

    def timeout_keep_alive_handler(self) -> None:
        self.timeout_keep_alive_task = None
        if self._idle_since is None:
            # Set again when the request that came has been answered.
            return
        left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self._look_in(left)
        else:
            super().timeout_keep_alive_handler()

    def _look_in(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def resume_writing(self) -> None:
        super().resume_writing()
        exchange = self._current
        if exchange is not None and exchange.on_ready is not None:
            exchange.on_ready()

    @property
    def _is_between_requests(self) -> bool:
        """Whether nothing of a request has come that is not answered."""
        cycle = self.cycle
        return not self._in_head and (cycle is None or (cycle.response_complete and not cycle.more_body))

    def _is_over_now(self) -> bool:
        """Whether the answer has ended elsewhere, where the client has seen that first."""
        if (exchange := self._current) is not None and exchange.on_more is not None:
            exchange.on_more()
        return self._is_between_requests

    def _end_rest(self) -> None:
        if self._begun:
            self._begun = b""
            self._pieces = 0
            assert self._rest_ends is not None
            self._rest_ends.cancel()
            self._rest_ends = None

    def _read_begun(self) -> None:
        """The usual way for what has come."""
        data = self._begun
        self._end_rest()
        if data:
            self._read(data)

    def _exchange(self) -> "_Exchange":
        """A request begins."""
        self._unset_keepalive_if_required()
        exchange = self.cycle = self._current = _Exchange(self)
        return exchange

    def _read(self, data: bytes) -> None:
        if not self._in_body and b"h2c" in data:
            head, separator, rest = data.partition(b"\r\n\r\n")
            data = _H2C.sub(b"", head + b"\r\n")[:-2] + separator + rest
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES and self.transport is not None:
                self.transport.write(_TOO_LARGE)
                self.transport.close()

    def on_message_begin(self) -> None:
        self._head_bytes = 0
        self._in_head = True
        super().on_message_begin()
        if self.scheme == "http":
            self.scope[CLIENT] = self.transport  # type: ignore[literal-required]

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._in_body = True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_body = False
        super().on_message_complete()


class _Common:
    """What all heads have in common: the server makes a new list of it each second."""

    def __init__(self) -> None:
        self._headers: list[Header] | None = None
        self._lines = b""

    def lines(self, headers: list[Header]) -> bytes:
        if headers is not self._headers:
            self._headers, self._lines = headers, head_lines(headers)
        return self._lines


_common = _Common()


class _Nobody:
    def set(self) -> None:
        """Nobody waits for what happens to an exchange that is over."""


_NOBODY = _Nobody()


class _Exchange(RequestResponseCycle):
    """A request that was read past uvicorn's parser, so that its body is not to be received; for uvicorn it is one like
    all others."""

    def __init__(self, protocol: Protocol) -> None:
        super().__init__(
            scope={"method": "POST"},  # type: ignore[typeddict-item]
            transport=protocol.transport,
            flow=protocol.flow,
            logger=protocol.logger,
            access_logger=protocol.access_logger,
            access_log=False,
            default_headers=protocol.server_state.default_headers,
            message_event=self,  # type: ignore[arg-type]
            expect_100_continue=False,
            keep_alive=True,
            on_response=protocol.on_response_complete,
        )
        self.more_body = False
        self.loop = protocol.loop
        self.client = protocol.transport if protocol.scheme == "http" else None
        self.on_gone: Callable[[], None] | None = None
        self.on_ready: Callable[[], None] | None = None
        self.on_more: Callable[[], None] | None = None
        self._protocol = protocol
        self._head = b""

    def set(self) -> None:
        """Something has happened to it: uvicorn sets an event there."""
        if self.disconnected and self.on_gone is not None:
            self.on_gone()

    @property
    def is_held(self) -> bool:
        return self.flow.write_paused

    def reply(self, status: int, headers: Iterable[Header], body: bytes) -> None:
        self._write(self._head_of(status, head_lines(headers)) + body)
        self._complete()

    def head(self, lines: bytes) -> bytes:
        return self._head_of(200, lines + _CHUNKED)

    def begin(self, head: bytes = b"") -> None:
        self._head = head
        # For an application that goes on with it.
        self.response_started = self.chunked_encoding = True

    def done(self) -> None:
        self._complete()

    def write(self, data: bytes) -> None:
        head, self._head = self._head, b""
        self._write(b"%b%x\r\n%b\r\n" % (head, len(data), data))

    def end(self, data: bytes) -> None:
        head, self._head = self._head, b""
        self._write(b"%b%x\r\n%b\r\n0\r\n\r\n" % (head, len(data), data))
        self._complete()

    def abort(self) -> None:
        self.transport.abort()

    def _head_of(self, status: int, lines: bytes) -> bytes:
        end = b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n"
        return b"".join((STATUS_LINE[status], _common.lines(self.default_headers), lines, end))

    def _write(self, data: bytes) -> None:
        if not self.disconnected:
            self.transport.write(data)

    def _complete(self) -> None:
        self.response_started = self.response_complete = True
        # Without a reference to itself it goes when the last one to it does; else the collector would have to find it.
        self.message_event = _NOBODY  # type: ignore[assignment]
        if not self.disconnected:
            if not self.keep_alive:
                self.transport.close()
            self.on_response()

    def serve(self, application: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        head, self._head = self._head, b""
        if head:
            self._write(head)
        self._protocol._start_asgi_task(self, application)  # type: ignore[arg-type]
