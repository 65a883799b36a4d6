"""`python -m metrics_proxy`: settings, logs, the server, and `clean`. Exit code 2 for a wrong setting."""

import argparse
import errno
import gc
import logging
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from metrics_proxy import logs
from metrics_proxy.app import MetricsProxy
from metrics_proxy.clean import CleanError, clean
from metrics_proxy.server import serve
from metrics_proxy.settings import Settings, SettingsError, load

_DIRECTORY = "PROMETHEUS_MULTIPROC_DIR"


def main() -> int:
    try:
        if sys.argv[1:2] == ["clean"]:
            return _clean(sys.argv[2:])
        settings = load()
        logs.configure(settings.log_level)
        listener = _listen(settings)
    except SettingsError as error:
        print(f"metrics_proxy: {error}", file=sys.stderr)
        return 2
    host, port = listener.getsockname()[:2]
    log = logging.getLogger("metrics_proxy")
    log.info("effective settings", extra={"settings": settings.effective()})
    log.info("listening on http://%s:%d", f"[{host}]" if ":" in host else host, port)
    proxy = MetricsProxy(settings)
    # What is there now stays: the collector need not look at it again at every scrape.
    gc.freeze()
    serve(proxy, listener)
    return 0


def _clean(arguments: Sequence[str]) -> int:
    flags = argparse.ArgumentParser(
        prog="python -m metrics_proxy clean",
        description="Empties the multiprocess directory of a previous run; to be run before tritonserver starts.",
    )
    flags.add_argument("directory", metavar="DIR", nargs="?", help=f"the directory; {_DIRECTORY} unless given")
    directory = flags.parse_args(arguments).directory or os.environ.get(_DIRECTORY, "")
    if not directory.strip():
        raise SettingsError(f"Give the directory to empty: python -m metrics_proxy clean DIR, or set {_DIRECTORY}.")
    try:
        number = clean(Path(directory))
    except CleanError as error:
        print(f"metrics_proxy: {error}", file=sys.stderr)
        return 1
    print(f"{directory} holds nothing of a run; {number} files removed")
    return 0


def _listen(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise SettingsError(f"The port {settings.port} is taken; free it or give another --port.") from None
        raise SettingsError(f"Cannot listen on {settings.host}:{settings.port}: {error.strerror}.") from None
    listener.listen(2048)
    listener.set_inheritable(True)
    return listener


if __name__ == "__main__":
    sys.exit(main())
