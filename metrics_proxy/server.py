"""uvicorn, with what it leaves open: an orderly end is exit code 0."""

import contextlib
import signal
import socket

import uvicorn

# Scrapes that run get as long to finish as a scrape may take with Prometheus' defaults.
_DRAIN_SECONDS = 10


def serve(app: object, listener: socket.socket) -> None:
    """Serve until SIGTERM or SIGINT, then let running scrapes finish."""
    config = uvicorn.Config(
        app,  # type: ignore[arg-type]
        log_config=None,
        access_log=False,
        server_header=False,
        # Longer than the minute between two scrapes that is usual, so that the scraper's side closes first.
        timeout_keep_alive=75,
        # Without it one client that does not read would keep the process alive for ever.
        timeout_graceful_shutdown=_DRAIN_SECONDS,
        lifespan="on",
    )
    # uvicorn raises the signal once more when it is done.
    signal.signal(signal.SIGTERM, lambda *_: None)
    with contextlib.suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listener])
