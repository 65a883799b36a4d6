"""uvicorn, with what it leaves open: streams that must end on SIGTERM, exit codes."""

import contextlib
import signal
import socket
from types import FrameType

import uvicorn

from prefetch.app import Service
from prefetch.settings import SettingsError


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._service.stop_streams()
        super().handle_exit(sig, frame)


def serve(service: Service, listener: socket.socket, shutdown_timeout: int) -> None:
    """Serve until SIGTERM or SIGINT. Running jobs are interrupted and taken up at the next start."""
    config = uvicorn.Config(
        service.app,
        # httptools loses the body of a request that asks for HTTP/2 besides, as Java's clients do; h11 does not.
        http="h11",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=shutdown_timeout,
        lifespan="on",
    )
    # uvicorn raises the signal once more when it is done: an orderly end is exit code 0.
    signal.signal(signal.SIGTERM, lambda *_: None)
    with contextlib.suppress(KeyboardInterrupt):
        _Server(config, service).run(sockets=[listener])


def listen(host: str, port: int) -> socket.socket:
    """Raises SettingsError."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        raise SettingsError(
            f"Cannot listen on {host}:{port}: {error.strerror}; give another --port or --host."
        ) from None
    listener.listen(2048)
    listener.set_inheritable(True)
    return listener
