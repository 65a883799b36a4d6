"""`python -m gateway`: settings, logs, the server. In its place, `python -m gateway check`: the self-check; `python -m
gateway keys`: clients' keys. Exit code 2 for a wrong setting."""

import contextlib
import os
import signal
import sys

# Whoever stops it while it imports wants no trace of that; `main` takes Ctrl-C over.
signal.signal(signal.SIGINT, signal.SIG_DFL)
# transformers is used for its chat-template code alone; it must not tell every start that torch is absent.
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

from gateway.access import command as keys
from gateway.access.authentication import Access, check_exposure
from gateway.access.redaction import redact_logs
from gateway.app import Gateway
from gateway.check import command as check
from gateway.listening import log_start, serve, unix_socket
from gateway.observe.tracing import check_packages
from gateway.reload import Source
from gateway.workers import Supervisor
from service_base import logs
from service_base.errors import SettingsError
from service_base.files import check_written_later
from service_base.server import listen


def main() -> int:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if sys.argv[1:2] == ["check"]:
        return check.main(sys.argv[2:])
    if sys.argv[1:2] == ["keys"]:
        return keys.main(sys.argv[2:])
    with contextlib.ExitStack() as held:
        try:
            source = Source()
            settings = source.load()
            logs.configure(settings.log_level)
            redact_logs()
            if settings.state_file is not None:
                check_written_later("state_file", settings.state_file)
            if settings.workers > 1:
                # What the workers need is judged before there are any.
                Access(settings.keys_file)
                if settings.otlp_endpoint:
                    check_packages()
                supervisor = Supervisor(settings, source)
                check_exposure(supervisor.address, settings)
            else:
                gateway = Gateway(settings, source)
                listener = listen(settings.host, settings.port)
                check_exposure(listener.getsockname()[0], settings)
            unix = held.enter_context(unix_socket(settings.unix_socket)) if settings.unix_socket else None
        except SettingsError as error:
            print(f"gateway: {error}", file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            # Files of models take a while to read, too.
            return 130
        if settings.workers > 1:
            return supervisor.run(unix)
        log_start(listener, unix, settings)
        serve(gateway, [listener, *([unix] if unix else [])], settings)
    return 0


if __name__ == "__main__":
    sys.exit(main())
