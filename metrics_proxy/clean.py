"""`python -m metrics_proxy clean`: empties a multiprocess directory before a run, for an image's entrypoint.

vLLM wants it empty: a process whose pid was used before would go on with the old values."""

import fcntl
import os
from pathlib import Path

from metrics_proxy import compacted, directory, liveness


class CleanError(Exception):
    """One sentence: why the directory is not clean."""


def clean(path: Path) -> int:
    """Makes the directory if need be and removes what a run leaves in it; how many files that were. Other files stay.

    Raises `CleanError` if a process writes to it.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise CleanError(f"{path} cannot be emptied: {error.strerror}.") from None
    try:
        return _clean(path, folder)
    except OSError as error:
        raise CleanError(f"{path} cannot be emptied: {error.strerror}.") from None
    finally:
        os.close(folder)


def _clean(path: Path, folder: int) -> int:
    lock = os.open(directory.LOCK, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644, dir_fd=folder)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        names = [name for name in os.listdir(folder) if directory.is_of_a_run(name)]
        for name in names:
            pid = name.removesuffix(".alive")
            if pid != name and liveness.by_lock(pid, folder) is liveness.LIVE:
                raise CleanError(f"{path} is in use: the process {pid} of a running model writes to it; stop it first.")
        # The sums last: as long as they are there, no file that they hold is counted twice.
        for name in sorted(names, key=lambda name: name == compacted.NAME):
            try:
                os.unlink(name, dir_fd=folder)
            except IsADirectoryError:
                raise CleanError(f"{path / name} is a folder, which no run leaves; remove it.") from None
        return len(names)
    finally:
        os.close(lock)
