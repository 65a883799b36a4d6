"""How the gateway reads HTTP/1.1, with what uvicorn leaves open: requests to upgrade to HTTP/2, heads without end."""

import re

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.api.http import CLIENT

# A proxy's limit is 8 to 16 KiB as a rule; requests here carry nothing of note in their heads.
MAX_HEAD_BYTES = 64 * 1024
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_H2C = re.compile(rb"\r\nupgrade:[ \t]*h2c[ \t]*(?=\r\n)", re.IGNORECASE)


class Protocol(HttpToolsProtocol):
    """Clients such as Java's ask for HTTP/2 over plain TCP on every request. A server may ignore that, but httptools
    stops parsing there and the body is lost; so the header is taken out of the head."""

    _head_bytes = 0
    _in_head = False

    def data_received(self, data: bytes) -> None:
        if b"h2c" in data:
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
        super().on_headers_complete()
