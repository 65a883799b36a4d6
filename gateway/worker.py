"""One process of several that serve the port: started by `gateway.workers`, which gives it the number of its end of the
socket to the desk, its own number, and the folder of the metrics as arguments, and on standard input the settings and
the desk's state."""

import os
import signal
import socket
import sys
from pathlib import Path

# transformers is used for its chat-template code alone; it must not tell every start that torch is absent.
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

from gateway.observe import multiprocess

if __name__ == "__main__":
    # Until it can read anything again.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # Ahead of whatever makes a metric.
    multiprocess.join(Path(sys.argv[3]))

import orjson

from gateway.access.redaction import redact_logs
from gateway.app import Gateway
from gateway.desk.link import RemoteDesk
from gateway.server import Protocol
from gateway.settings import Settings
from service_base import logs
from service_base.errors import SettingsError
from service_base.server import bind, serve


def main() -> int:
    start = orjson.loads(sys.stdin.buffer.read())
    settings = Settings(**start["settings"])
    logs.configure(settings.log_level)
    redact_logs()
    # Without its supervisor a worker would go on for ever with nobody who knows it.
    link = socket.socket(fileno=int(sys.argv[1]))
    desk = RemoteDesk(settings, start["state"], link, lambda: os.kill(os.getpid(), signal.SIGTERM))
    try:
        gateway = Gateway(settings, remote=desk, worker=int(sys.argv[2]))
        listener = bind(settings.host, settings.port, shared=True)
    except SettingsError as error:
        print(f"gateway: {error}", file=sys.stderr)
        return 2

    def serves() -> None:
        gateway.reload_on_signal()
        desk.serves()

    serve(
        gateway,
        listener,
        settings.shutdown_timeout,
        http=Protocol,
        at_signal=gateway.shut_down,
        at_start=serves,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
