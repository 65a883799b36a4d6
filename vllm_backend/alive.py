"""The backend's part in the metrics directory: nothing of an earlier process counts as this one's, and whoever reads
the directory can tell whether this process lives. No vLLM here, and no Triton.

vLLM writes its metrics to files named by pid. In a container the pid of a model's process is often the same at each
start, and in another container it means nothing, so that files alone do not tell whose values they hold. What is agreed
with the reader:

- `<pid>.alive`: locked (flock, exclusive) by the process of that pid as long as it lives.
- `<type>_ended-p<pid>-<hex>.db`: the counters of an earlier process of that pid, which still count.
- `maintenance.lock`: locked exclusively by who renames or removes files in the directory.
"""

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from vllm_backend.contract import StartError

VARIABLE = "PROMETHEUS_MULTIPROC_DIR"

_LOCK = "maintenance.lock"
_LOCK_TIMEOUT = 10.0
"""Seconds to wait for who tidies the directory; it takes milliseconds."""

_held: list[int] = []
"""File descriptors whose locks last as long as the process."""


def claim(directory: Path) -> None:
    """Puts aside what an earlier process of this pid has left. Before vLLM is imported. Raises StartError."""
    pid = os.getpid()
    try:
        with _maintenance(directory):
            if _is_locked(directory / f"{pid}.alive"):
                raise StartError(
                    f"{VARIABLE}: a process of another container has the same pid {pid} and writes the same files in "
                    f"{directory}; give each container a directory of its own."
                )
            now = time.time_ns()
            for file in directory.iterdir():
                found = re.fullmatch(rf"(counter|histogram|summary|gauge_[a-z]+)_{pid}\.db", file.name)
                if found and found[1].startswith("gauge_"):
                    file.unlink()
                elif found:
                    file.rename(directory / f"{found[1]}_ended-p{pid}-{now:x}.db")
            # Last: a file that is there and not locked says that this process is dead.
            (directory / f"{pid}.alive").unlink(missing_ok=True)
    except OSError as error:
        raise StartError(_cannot(directory, error)) from None


def hold(directory: Path) -> str | None:
    """Says that this process lives; a sentence if it cannot. After the engine has started: a forked child would hold
    the lock on."""
    name = directory / f"{os.getpid()}.alive"
    # Locked before it has its name, so that it is never seen unlocked.
    temporary = name.with_suffix(".alive.new")
    try:
        with _maintenance(directory):
            file = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
            # The reader may be another user.
            os.fchmod(file, 0o644)
            fcntl.flock(file, fcntl.LOCK_EX)
            temporary.rename(name)
    except OSError as error:
        return f"{_cannot(directory, error)} Until then nobody knows whose gauges are there."
    _held.append(file)
    return None


@contextlib.contextmanager
def _maintenance(directory: Path) -> Iterator[None]:
    file = os.open(directory / _LOCK, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        give_up_at = time.monotonic() + _LOCK_TIMEOUT
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > give_up_at:
                    raise
                time.sleep(0.01)
        yield
    finally:
        os.close(file)


def _is_locked(path: Path) -> bool:
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


def _cannot(directory: Path, error: OSError) -> str:
    return f"{VARIABLE}: {directory} cannot be used: {error.strerror}; make it writable or unset the variable."
