"""The kernel's counters of processes, threads and cores, read from /proc. A process may end while it is looked at: then
it is left out."""

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
_TICK = 1 / os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class ThreadCounter:
    """Seconds since its start: on a core, and waiting for one while it could run (0 where the kernel does not say)."""

    name: str
    on_cpu: float
    waited: float


@dataclass(frozen=True)
class ProcessCounter:
    """`command` is its command line, or the title that it gave itself; `program` the file that runs; `rss` bytes."""

    pid: int
    command: str
    program: str
    rss: int
    threads: Mapping[int, ThreadCounter]


@dataclass(frozen=True)
class Snapshot:
    """`at` is monotonic seconds. `cores`: for each core, seconds busy and seconds in all. `totals`: for every process
    of the machine, seconds on a core."""

    at: float
    processes: Mapping[int, ProcessCounter]
    cores: tuple[tuple[float, float], ...]
    totals: Mapping[int, float]


def snapshot(pids: Iterable[int]) -> Snapshot:
    """`pids` are those whose threads are of interest."""
    found = {}
    for pid in pids:
        try:
            found[pid] = process(pid)
        except (OSError, ValueError, IndexError):
            continue
    return Snapshot(time.monotonic(), found, _cores(), _totals())


def process(pid: int) -> ProcessCounter:
    """Raises OSError where it has ended, or is another user's."""
    folder = PROC / str(pid)
    command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    try:
        program = os.readlink(folder / "exe")
    except PermissionError:
        program = ""
    rss = int((folder / "statm").read_text().split()[1]) * _PAGE
    threads = {}
    for task in (folder / "task").iterdir():
        try:
            threads[int(task.name)] = _thread(task)
        except (OSError, ValueError, IndexError):
            continue
    return ProcessCounter(pid, command or (folder / "comm").read_text().strip(), program, rss, threads)


def _thread(task: Path) -> ThreadCounter:
    name = (task / "comm").read_text().strip()
    try:
        on_cpu, waited, _ = map(int, (task / "schedstat").read_text().split())
    except (OSError, ValueError):
        # A kernel without it counts ticks only.
        return ThreadCounter(name, _ticks(task / "stat"), 0.0)
    return ThreadCounter(name, on_cpu / 1e9, waited / 1e9)


def _ticks(stat: Path) -> float:
    """User and system time, in seconds."""
    fields = stat.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK


def _cores() -> tuple[tuple[float, float], ...]:
    cores = []
    for line in (PROC / "stat").read_text().splitlines():
        name, *values = line.split()
        if name.startswith("cpu") and name != "cpu":
            ticks = [int(value) for value in values[:8]]
            # The fourth and fifth are idle, and idle while a disk works.
            cores.append(((sum(ticks) - ticks[3] - ticks[4]) * _TICK, sum(ticks) * _TICK))
    return tuple(cores)


def _totals() -> dict[int, float]:
    totals = {}
    for folder in PROC.iterdir():
        if folder.name.isdecimal():
            try:
                totals[int(folder.name)] = _ticks(folder / "stat")
            except (OSError, IndexError, ValueError):
                continue
    return totals


def descendants(roots: Iterable[int]) -> set[int]:
    """They and all processes below them that live."""
    alive: set[int] = set()
    children: dict[int, list[int]] = {}
    for folder in PROC.iterdir():
        if folder.name.isdecimal():
            try:
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError, ValueError):
                continue
            alive.add(int(folder.name))
            children.setdefault(parent, []).append(int(folder.name))
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        pid = waiting.pop()
        if pid in alive and pid not in found:
            found.add(pid)
            waiting += children.get(pid, [])
    return found


def listeners(port: int) -> tuple[set[int], bool]:
    """The processes that hold a TCP socket which listens on `port`, and whether anybody does at all: a socket whose
    holder is another user's is seen, its holder is not."""
    inodes = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = (PROC / "net" / table).read_text().splitlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, lines):
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    holders = set()
    for folder in PROC.iterdir() if inodes else ():
        if not folder.name.isdecimal():
            continue
        try:
            if any(_points_to(file, inodes) for file in (folder / "fd").iterdir()):
                holders.add(int(folder.name))
        except OSError:
            continue
    return holders, bool(inodes)


def _points_to(file: Path, inodes: set[str]) -> bool:
    try:
        return os.readlink(file) in inodes
    except OSError:
        return False
