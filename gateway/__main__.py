"""`python -m gateway`: settings, logs, the server; `python -m gateway check`: the self-check in its place. Exit code 2
for a wrong setting."""

import errno
import logging
import os
import socket
import sys

# transformers is used for its chat-template code alone; it must not tell every start that torch is absent.
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

from gateway import logs
from gateway.app import Gateway
from gateway.check import command as check
from gateway.server import serve
from gateway.settings import Settings, SettingsError, load


def main() -> int:
    if sys.argv[1:2] == ["check"]:
        return check.main(sys.argv[2:])
    try:
        settings = load()
        logs.configure(settings.log_level)
        gateway = Gateway(settings)
        listener = _listen(settings)
    except SettingsError as error:
        print(f"gateway: {error}", file=sys.stderr)
        return 2
    host, port = listener.getsockname()[:2]
    log = logging.getLogger("gateway")
    log.info("effective settings", extra={"settings": settings.effective()})
    log.info("listening on http://%s:%d", f"[{host}]" if ":" in host else host, port)
    serve(gateway, listener, settings)
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
