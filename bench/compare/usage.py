"""What processes have used, from /proc."""

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class CpuTime:
    """CPU time so far, in two ways: of all threads that ever were, in ticks of 10 ms, and of each that lives, in
    nanoseconds."""

    ticks: int
    threads: dict[int, int]

    def since(self, earlier: "CpuTime") -> float:
        """Seconds of user and system time: exact where no thread has ended meanwhile."""
        if earlier.threads.keys() <= self.threads.keys():
            return sum(now - earlier.threads.get(thread, 0) for thread, now in self.threads.items()) / 1e9
        return (self.ticks - earlier.ticks) / _TICKS


def cpu_time(pids: Iterable[int]) -> CpuTime:
    """Of these processes, and of their children that have been waited for."""
    ticks = 0
    threads: dict[int, int] = {}
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
            # utime, stime, cutime and cstime: the fields 14 to 17, counted from the third.
            ticks += sum(map(int, fields[11:15]))
            for task in Path(f"/proc/{pid}/task").iterdir():
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    threads[int(task.name)] = int((task / "schedstat").read_text().split()[0])
    return CpuTime(ticks, threads)


def memory_bytes(pids: Iterable[int]) -> int:
    """The memory that is theirs alone, and their part of what they share (Pss)."""
    total = 0
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += 1024 * int(line.split()[1])
    return total
