"""`python -m metrics_proxy`: settings, logs, the server, and `clean`. Exit code 2 for a wrong setting."""

import gc
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from metrics_proxy.app import MetricsProxy
from metrics_proxy.clean import CleanError, clean
from metrics_proxy.settings import load
from service_base import logs
from service_base.errors import SettingsError
from service_base.flags import Parser
from service_base.server import listen, log_start, serve

_DIRECTORY = "PROMETHEUS_MULTIPROC_DIR"
# Scrapes that run get as long to finish as a scrape may take with Prometheus' defaults.
_DRAIN_SECONDS = 10


def main() -> int:
    try:
        if sys.argv[1:2] == ["clean"]:
            return _clean(sys.argv[2:])
        settings = load()
        logs.configure(settings.log_level)
        listener = listen(settings.host, settings.port)
    except SettingsError as error:
        print(f"metrics_proxy: {error}", file=sys.stderr)
        return 2
    log_start(logging.getLogger("metrics_proxy"), listener, settings.effective())
    proxy = MetricsProxy(settings)
    # What is there now stays: the collector need not look at it again at every scrape.
    gc.freeze()
    serve(proxy, [listener], _DRAIN_SECONDS)
    return 0


def _clean(arguments: Sequence[str]) -> int:
    flags = Parser(
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


if __name__ == "__main__":
    sys.exit(main())
