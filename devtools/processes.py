"""Starting commands under `guard.py`, so that they end with their owner, and watching them."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from devtools import guard

_GUARD = str(Path(guard.__file__).resolve())


def _start(
    command: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None,
    cwd: Path | None,
    stdout: int,
    grace: float,
    leftovers: Iterable[str] = (),
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    arguments = [sys.executable, "-I", _GUARD, str(grace), *leftovers, "--", *map(str, command)]
    return subprocess.Popen(
        arguments,
        env=env,
        cwd=cwd,
        stdin=subprocess.PIPE,
        stdout=stdout,
        stderr=subprocess.STDOUT,
        # A Ctrl-C in the terminal reaches only the owner, which stops the parts in order.
        start_new_session=True,
        pass_fds=pass_fds,
    )


def run_logged(
    command: Sequence[str | Path],
    log: Path,
    *,
    on_line: Callable[[str], None] = lambda _: None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    pass_fds: Sequence[int] = (),
) -> int:
    """Runs a command to its end, its output into `log` and line by line to `on_line`; the exit code.

    `pass_fds` stay open until the last process of the command is gone: a file lock among them is held as long.
    """
    process = _start(command, env=env, cwd=cwd, stdout=subprocess.PIPE, grace=5, pass_fds=pass_fds)
    assert process.stdout is not None
    try:
        with log.open("wb") as file, process.stdout as output:
            for line in output:
                file.write(line)
                file.flush()
                on_line(line.decode(errors="replace").rstrip())
        return process.wait()
    finally:
        _end(process)


class Service:
    """A long-running command with a log file.

    `grace` is how many seconds it may take to stop by itself. `leftovers` are glob patterns of files that its death
    leaves behind, removed after the last of its processes is gone.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        log: Path,
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        grace: float = 10,
        leftovers: Iterable[str] = (),
    ) -> None:
        self.name = name
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as file:
            self._process = _start(command, env=env, cwd=cwd, stdout=file.fileno(), grace=grace, leftovers=leftovers)

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def pids(self) -> list[int]:
        """All processes of this service that live now; the guard is not one of them."""
        return guard.descendants(self._process.pid)

    def ask_to_stop(self) -> None:
        if self.exit_code is None:
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Ends all of its processes without asking them."""
        if self.exit_code is None:
            self._process.send_signal(signal.SIGQUIT)

    def stop(self) -> int:
        """Stops it and returns its exit code; nothing of it is left then."""
        self.ask_to_stop()
        return self.wait()

    def wait(self) -> int:
        code = self._process.wait()
        _end(self._process)
        return code

    def output(self) -> str:
        return self.log.read_text(errors="replace")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Lets go of the guard's lifeline and waits for the guard, which leaves nothing behind."""
    if process.stdin is not None:
        process.stdin.close()
    process.wait()


def service_environment(**changes: str) -> dict[str, str]:
    """This process's environment with changes, without what would leak another Python's modules into the command."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    return kept | changes
