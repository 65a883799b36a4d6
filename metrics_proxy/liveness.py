"""Whether the process of a multiprocess file still lives. Pids mean nothing in another container, locks do.

A process of this project's backend holds an exclusive flock on `<pid>.alive` in the directory. For others the kernel's
process table tells, but only where both share a pid namespace; nobody can find out whether that is so.
"""

import errno
import fcntl
import os
from dataclasses import dataclass
from typing import Literal

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Liveness:
    """`started` is when a live process did, in seconds since the epoch, where that can be known."""

    state: Literal["live", "dead", "unknown"]
    started: float = 0.0


LIVE = Liveness("live")
DEAD = Liveness("dead")
UNKNOWN = Liveness("unknown")


def alive_file(pid: str) -> str:
    return f"{pid}.alive"


def by_lock(pid: str, directory: int) -> Liveness:
    """What the lock in the directory (a file descriptor) says; unknown without one that can be probed."""
    try:
        file = os.open(alive_file(pid), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    except OSError:
        return UNKNOWN
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return LIVE if error.errno in (errno.EWOULDBLOCK, errno.EACCES) else UNKNOWN
    finally:
        os.close(file)
    return DEAD


def by_process_table(pid: str) -> Liveness:
    """What this pid namespace says."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            stat = file.read()
    except FileNotFoundError:
        return DEAD
    except OSError:
        # A process that ends while it is asked for.
        return DEAD
    # After the command in parentheses, which may hold anything: field 3 is the state, 22 the start in ticks since boot.
    fields = stat.rpartition(")")[2].split()
    if fields[0] in "ZXx":
        return DEAD
    return Liveness("live", _boot_time() + int(fields[19]) / _TICKS)


def _boot_time() -> float:
    with open("/proc/stat", encoding="utf-8") as file:
        for line in file:
            if line.startswith("btime "):
                return float(line.split()[1])
    return 0.0
