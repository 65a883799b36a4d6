"""uvicorn, with what it leaves open: requests to upgrade to HTTP/2, heads without end, exit codes."""

import contextlib
import re
import signal
import socket

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.settings import Settings

# A proxy's limit is 8 to 16 KiB as a rule; requests here carry nothing of note in their heads.
MAX_HEAD_BYTES = 64 * 1024
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_H2C = re.compile(rb"\r\nupgrade:[ \t]*h2c[ \t]*(?=\r\n)", re.IGNORECASE)


class _Protocol(HttpToolsProtocol):
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

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()


def serve(app: object, listener: socket.socket, settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT, then let running streams finish for `shutdown_timeout` seconds."""
    config = uvicorn.Config(
        app,  # type: ignore[arg-type]
        http=_Protocol,
        log_config=None,
        access_log=False,
        server_header=False,
        # Longer than the usual 60 s of proxies and SDK pools, so that the client's side closes first.
        timeout_keep_alive=75,
        # Without it one open stream would keep the process alive for ever after SIGTERM.
        timeout_graceful_shutdown=settings.shutdown_timeout,
        lifespan="on",
    )
    # uvicorn raises the signal once more when it is done: an orderly end is exit code 0.
    signal.signal(signal.SIGTERM, lambda *_: None)
    with contextlib.suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listener])
