"""Triton's HTTP/1.1 responses, parsed without I/O: bytes in, events out, for every cut of the bytes.

Knows just what a generate stream needs: a status line, `Content-Length`, chunked coding or
read-to-close, and, in a 200 body, server-sent events of one `data:` line each (a JSON text holds no
raw line break, so a line is an event).

`response_parser()` makes one: in C++ where `gateway_relay` is installed, else `PlainParser`, which the other follows.
"""

import re
from typing import TYPE_CHECKING

from gateway.triton.limits import EVENTS_AT_ONCE, MAX_EVENT_BYTES, MAX_HEAD_BYTES

if TYPE_CHECKING:
    from gateway_relay import ResponseParser as NativeParser

_SIZE = re.compile(rb"[0-9a-fA-F]+")


class PlainProtocolError(Exception):
    """The peer does not speak HTTP/1.1 as a generate stream does."""


class PlainParser:
    """One response. `feed` every read; then `status` (0 until the head is there), `take()`, `done`.

    `error_body` collects a body whose status is not 200. `reusable` says whether the connection can
    carry another request after `done`.
    """

    def __init__(self) -> None:
        self.status = 0
        self.done = False
        self.reusable = False
        self.error_body = b""
        self.events: list[bytes] = []
        self._raw = b""  # not yet decoded: the head, or chunked coding
        self._line = b""  # decoded: the tail of a line that is not complete
        self._chunked = False
        self._left: int | None = 0  # bytes left in this chunk or body; None: until the connection closes
        self._in_trailer = False

    def feed(self, data: bytes) -> None:
        """Raises `PlainProtocolError`; the connection is then of no use."""
        if self.done:
            raise PlainProtocolError("bytes after the end of the response")
        if self.is_between_chunks and self.status == 200 and self._take_one(data):
            return
        self._raw = self._raw + data if self._raw else data
        if not self.status and not self._parse_head():
            return
        if self._chunked:
            self._parse_chunks()
        else:
            self._parse_plain()

    def eof(self) -> None:
        """The peer closed the connection. Raises `PlainProtocolError` unless that ends the response."""
        if self.status and not self._chunked and self._left is None:
            self.done = True
        elif not self.done:
            raise PlainProtocolError("the connection was closed in the middle of the response")

    def take(self, most: int = EVENTS_AT_ONCE) -> list[bytes]:
        """The payloads that are complete and not taken yet; of a great many the first."""
        events = self.events
        self.events = events[most:]
        return events[:most] if self.events else events

    @property
    def has_events(self) -> bool:
        """Whether `take` has any."""
        return bool(self.events)

    def _parse_head(self) -> bool:
        status = 0
        # Ahead of the response there may be interim ones.
        while status < 200:
            end = self._raw.find(b"\r\n\r\n")
            if end < 0:
                if len(self._raw) > MAX_HEAD_BYTES:
                    raise PlainProtocolError("the response head is too long")
                return False
            lines = self._raw[:end].split(b"\r\n")
            self._raw = self._raw[end + 4 :]
            version, _, rest = lines[0].partition(b" ")
            status = int(rest[:3]) if rest[:3].isdigit() else 0
            if not version.startswith(b"HTTP/1.") or status < 100:
                raise PlainProtocolError("the response has no HTTP/1.1 status line")
        headers: dict[bytes, bytes] = {}
        for line in lines[1:]:
            name, _, value = line.partition(b":")
            headers[name.strip().lower()] = value.strip()
        self.status = status
        self.reusable = version == b"HTTP/1.1" and headers.get(b"connection", b"").lower() != b"close"
        self._chunked = b"chunked" in headers.get(b"transfer-encoding", b"").lower()
        if not self._chunked:
            length = headers.get(b"content-length")
            if length is None:
                self._left, self.reusable = None, False
            elif length.isdigit():
                self._left = int(length)
            else:
                raise PlainProtocolError("the response has a Content-Length that is no number")
        return True

    @property
    def is_between_chunks(self) -> bool:
        return self._chunked and not (self._raw or self._left or self._line or self._in_trailer)

    def _take_one(self, data: bytes) -> bool:
        """Whether this is what nearly every read is: one chunk that is one event. Then it is taken; else the state is
        as it was."""
        begin = data.find(b"\r\n") + 2
        if data[begin : begin + 6] != b"data: " or data[-4:] != b"\n\n\r\n" or data.find(b"\n", begin) != len(data) - 4:
            return False
        size = data[: begin - 2]
        if not _SIZE.fullmatch(size):
            return False
        is_whole = int(size, 16) == len(data) - begin - 2 <= MAX_EVENT_BYTES
        if is_whole:
            self.events.append(data[begin + 6 : -4].strip())
        return is_whole

    def _parse_plain(self) -> None:
        data, self._raw = self._raw, b""
        if self._left is None:
            self._body(data)
            return
        if len(data) > self._left:
            raise PlainProtocolError("bytes after the end of the response")
        self._left -= len(data)
        self._body(data)
        self.done = self._left == 0

    def _parse_chunks(self) -> None:
        raw, at, size = self._raw, 0, len(self._raw)
        parts: list[bytes] = []
        while at < size and not self.done:
            if self._left:
                # `_left` counts the chunk's closing CRLF too.
                part = raw[at : at + self._left]
                at += len(part)
                self._left -= len(part)
                framing = max(0, 2 - self._left)
                parts.append(part[: max(0, len(part) - framing)])
                continue
            end = raw.find(b"\r\n", at)
            if end < 0:
                if size - at > MAX_HEAD_BYTES:
                    raise PlainProtocolError("a chunk's size line is too long")
                break
            line = raw[at:end]
            at = end + 2
            if self._in_trailer:
                self.done = not line
            else:
                self._start_chunk(line)
        self._raw = raw[at:]
        if parts:
            self._body(b"".join(parts))
        if self.done and self._raw:
            raise PlainProtocolError("bytes after the end of the response")

    def _start_chunk(self, line: bytes) -> None:
        text = line.partition(b";")[0].strip()
        if not _SIZE.fullmatch(text):
            raise PlainProtocolError("a chunk has no size")
        size = int(text, 16)
        if size > MAX_EVENT_BYTES:
            raise PlainProtocolError("a chunk is too long")
        if size:
            self._left = size + 2
        else:
            self._in_trailer = True

    def _body(self, data: bytes) -> None:
        if self.status != 200:
            self.error_body += data
            if len(self.error_body) > MAX_EVENT_BYTES:
                raise PlainProtocolError("the error body is too long")
            return
        lines = (self._line + data if self._line else data).split(b"\n")
        self._line = lines.pop()
        if len(self._line) > MAX_EVENT_BYTES:
            raise PlainProtocolError("an event is too long")
        for line in lines:
            if line.startswith(b"data:"):
                self.events.append(line[5:].strip())


# The same in C++ (gateway_relay/src/response.cpp), where it is installed. By name: where it is not, the folder of its
# source can be imported in the checkout, as a package with nothing in it.
try:
    from gateway_relay import ProtocolError as _NativeError
    from gateway_relay import ResponseParser as _NativeParser
except ImportError:
    ProtocolError: type[Exception] = PlainProtocolError

    def response_parser() -> "NativeParser | PlainParser":
        return PlainParser()
else:
    ProtocolError = _NativeError

    def response_parser() -> "NativeParser | PlainParser":
        return _NativeParser(MAX_EVENT_BYTES, MAX_HEAD_BYTES)
