"""The listening socket, and uvicorn with what it leaves open: streams that must end on SIGTERM, an orderly end."""

import asyncio
import contextlib
import errno
import logging
import signal
import socket
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, Literal

import uvicorn

from service_base.errors import SettingsError

BACKLOG = 2048
"""Connections that may wait to be taken; the kernel's own limit (net.core.somaxconn) may be lower."""


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, at_signal: Callable[[], None], at_start: Callable[[], None]) -> None:
        super().__init__(config)
        self._at_signal = at_signal
        self._at_start = at_start

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._at_start()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._at_signal()
        super().handle_exit(sig, frame)


def listen(host: str, port: int) -> socket.socket:
    """Raises `SettingsError`."""
    listener = bind(host, port)
    listener.listen(BACKLOG)
    return listener


def bind(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """A socket that does not listen yet. `shared`: other processes of this user may listen on the same port. Raises
    `SettingsError`."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise SettingsError(f"The port {port} is taken; free it or give another --port.") from None
        raise SettingsError(
            f"Cannot listen on {host}:{port}: {error.strerror}; give another --port or --host."
        ) from None
    return listener


def log_start(log: logging.Logger, listener: socket.socket, effective: dict[str, Any]) -> None:
    """The settings without secrets, and the port that was taken for 0."""
    host, port = listener.getsockname()[:2]
    log.info("effective settings", extra={"settings": effective})
    log.info("listening on http://%s:%d", f"[{host}]" if ":" in host else host, port)


def serve(
    app: Any,
    listeners: Sequence[socket.socket],
    drain_seconds: int,
    *,
    http: type[asyncio.Protocol] | Literal["auto", "h11"] = "auto",
    at_signal: Callable[[], None] = lambda: None,
    at_start: Callable[[], None] = lambda: None,
) -> None:
    """Serve until SIGTERM or SIGINT, then let running requests finish for `drain_seconds`. `at_signal` runs first;
    `at_start` runs in the event loop when connections are taken. The listeners are closed before requests finish."""
    config = uvicorn.Config(
        app,
        http=http,
        log_config=None,
        access_log=False,
        server_header=False,
        # Nothing asks for the client's address, nor for the scheme that it used.
        proxy_headers=False,
        # Longer than the usual 60 s of proxies, SDK pools and scrapers, so that the client's side closes first.
        timeout_keep_alive=75,
        # Without it one client that does not read would keep the process alive for ever after SIGTERM.
        timeout_graceful_shutdown=drain_seconds,
        lifespan="on",
    )
    # uvicorn raises the signal once more when it is done: an orderly end is exit code 0.
    signal.signal(signal.SIGTERM, lambda *_: None)
    with contextlib.suppress(KeyboardInterrupt):
        _Server(config, at_signal, at_start).run(sockets=list(listeners))
