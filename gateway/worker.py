"""One process of several that serve the port: started by `gateway.workers`, which gives it the number of its end of the
socket to the desk, its own number, the folder of the metrics and, if there is one, the number of the Unix-domain socket
as arguments, and on standard input the settings and the desk's state."""

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
from gateway.listening import serve
from gateway.settings import Settings
from service_base import logs
from service_base.errors import SettingsError
from service_base.server import bind


def main() -> int:
    start = orjson.loads(sys.stdin.buffer.read())
    settings = Settings(**start["settings"])
    logs.configure(settings.log_level)
    redact_logs()
    # Without its supervisor a worker would go on for ever with nobody who knows it.
    link = _inherited(sys.argv[1])
    desk = RemoteDesk(settings, start["state"], link, lambda: os.kill(os.getpid(), signal.SIGTERM))
    try:
        gateway = Gateway(settings, remote=desk, worker=int(sys.argv[2]))
        port = bind(settings.host, settings.port, shared=True)
    except SettingsError as error:
        print(f"gateway: {error}", file=sys.stderr)
        return 2
    serve(gateway, [port, *map(_inherited, sys.argv[4:])], settings, desk.serves)
    return 0


def _inherited(number: str) -> socket.socket:
    taken = socket.socket(fileno=int(number))
    # With the checker's processes it would stay open after this one's end.
    taken.set_inheritable(False)
    return taken


if __name__ == "__main__":
    sys.exit(main())
