"""What processes have used, from /proc."""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pids: Iterable[int]) -> float:
    """User and system time of all threads of these processes, those that have ended included, and of children that have
    been waited for."""
    total = 0
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
            # utime, stime, cutime and cstime: the fields 14 to 17, counted from the third.
            total += sum(map(int, fields[11:15]))
    return total / _TICKS


def memory_bytes(pids: Iterable[int]) -> int:
    """The memory that is theirs alone, and their part of what they share (Pss)."""
    total = 0
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += 1024 * int(line.split()[1])
    return total
