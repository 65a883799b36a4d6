"""The first process of Triton's containers: `triton_entrypoint.py COMMAND...` (tritonserver), or `… --check`.

In this order: the vLLM that is installed is one that the backend is written for; the folder of vLLM's metrics is
emptied, since pids come again in a container; the command runs, with signals forwarded. When it has ended, however it
has, every process that is left is killed: an orphaned Python stub would hold the GPU. A server that has forgotten its
stub (`devtools/stub.py`) is started again, once, as long as it serves no model. `triton_keeper.py` loads what should be
loaded.

Variables: PROMETHEUS_MULTIPROC_DIR (the folder to empty), TRITON_LOAD_MODELS (models to load, separated by commas),
TRITON_KEEP_REPOSITORY (a repository of which every entry is loaded).

The exit code is the command's (128 and the signal's number when a signal ended it); 2 if it was not started.
"""

import importlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from devtools import guard
from devtools.stub import ForgottenStub, StubWatch
from metrics_proxy.clean import CleanError, clean
from triton_keeper import Keeper, entries
from vllm_backend.contract import StartError
from vllm_backend.versions import check_version, installed_version

_INTERVAL = 0.2
_ATTEMPTS = 2
# A stub whose model cannot be loaded ends by itself, and says why: the reason must not be lost to impatience.
_PATIENCE = 60.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_HTTP_PORT = "--http-port="


class _Server:
    """The running command."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)

    def pids(self) -> list[int]:
        """It, then what it has started."""
        return [self._process.pid, *guard.descendants(self._process.pid)]

    def send(self, number: int) -> None:
        os.kill(self._process.pid, number)

    def exit_code(self) -> int | None:
        """None while it runs. Other children that have ended are reaped on the way."""
        try:
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self._process.pid:
                    code = os.waitstatus_to_exitcode(ended[1])
                    self._process.returncode = code
                    return code if code >= 0 else 128 - code
        except ChildProcessError:
            return 1
        return None


def check() -> None:
    """The backend and the installed vLLM fit together: both import. Raises StartError."""
    check_version(installed_version())
    for module in ("vllm_backend.engine", "vllm_backend.reasoning"):
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise StartError(
                f"vLLM {installed_version()} is installed and the backend does not import with it: {error}."
            ) from error


def supervise(command: list[str]) -> int:
    """Runs the command to its end, and leaves nothing behind."""
    guard.become_subreaper()
    asked: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        asked.append(number)

    for number in _SIGNALS:
        signal.signal(number, note)
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return _run(command, asked)
        except ForgottenStub:
            guard.kill_descendants()
            if attempt == _ATTEMPTS:
                break
            _say("tritonserver has forgotten its Python stub: the machine is very busy. It is started once more.")
    _say("tritonserver has forgotten its Python stub again; give the container more CPU, then restart it.")
    return 1


def _run(command: list[str], asked: list[int]) -> int:
    _empty_metrics()
    server = _Server(command)
    keeper = Keeper(_url(command), _wanted(), _say)
    keeper.start()
    watch, stopping = StubWatch(server, _PATIENCE), False
    try:
        while (code := server.exit_code()) is None:
            while asked:
                server.send(asked.pop(0))
                stopping = True
            # One that stops waits for its children, and one that serves is worth more than the model that hangs.
            if not stopping and not keeper.any_ready:
                watch.check()
            time.sleep(_INTERVAL)
    finally:
        keeper.stop()
        guard.kill_descendants()
    return code


def _url(command: list[str]) -> str:
    ports = [argument.removeprefix(_HTTP_PORT) for argument in command if argument.startswith(_HTTP_PORT)]
    return f"http://127.0.0.1:{ports[-1] if ports else 8000}"


def _wanted() -> set[str]:
    named = {name.strip() for name in os.environ.get("TRITON_LOAD_MODELS", "").split(",")} - {""}
    repository = os.environ.get("TRITON_KEEP_REPOSITORY")
    return named | (entries(Path(repository)) if repository else set())


def _empty_metrics() -> None:
    if folder := os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
        clean(Path(folder))


def _say(sentence: str) -> None:
    print(f"entrypoint: {sentence}", file=sys.stderr, flush=True)


def main(arguments: list[str]) -> int:
    if not arguments:
        _say("Give the command to run, or --check.")
        return 2
    try:
        if arguments == ["--check"]:
            check()
            return 0
        check_version(installed_version())
        return supervise(arguments)
    except (StartError, CleanError) as error:
        _say(str(error))
        return 2
    except FileNotFoundError as error:
        _say(f"{error.filename} is not there.")
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
