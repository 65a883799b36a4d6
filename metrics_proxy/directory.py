"""A Prometheus multiprocess directory: which files there are, who writes them, what they hold, and their tidying.

| name | what it is |
|---|---|
| `<type>_<pid>.db`, `gauge_<mode>_<pid>.db` | a process's values (`mmap_file.py`), written by prometheus_client |
| `<pid>.alive` | locked by the process as long as it lives (`liveness.py`) |
| `<type>_ended-<place>-p<pid>-<hex>.db` | a dead process's values, where no later process of that pid opens them |
| `<type>_ended-p<pid>-<hex>.db` | the same, put aside by a process that found it under its own pid |
| `compacted.json` | the sums of dead processes whose files are gone (`compacted.py`) |
| `maintenance.lock` | locked shared by who reads the directory, exclusively by who renames or removes files in it |

Files of live processes are read every time: memory-mapped writes may leave a file's time of change as it is.
"""

import contextlib
import fcntl
import os
import re
import stat
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, cast

from metrics_proxy import compacted, liveness
from metrics_proxy.compacted import Compacted
from metrics_proxy.families import Family, Labels, Type, count_samples
from metrics_proxy.liveness import Liveness
from metrics_proxy.mmap_file import BadFile, used_bytes
from metrics_proxy.multiprocess import Combined, GaugeValue, Registry, Totals, combine

LOCK = "maintenance.lock"

_TEMPORARY = f"{compacted.NAME}.tmp"

_MODES = "all|liveall|min|livemin|max|livemax|sum|livesum|mostrecent|livemostrecent"
_OF_PROCESS = re.compile(rf"(?:(counter|histogram|summary)|gauge_({_MODES}))_([0-9]+)\.db")
_ENDED = re.compile(r"(counter|histogram|summary)_ended-(?:([0-9]+)-)?p([0-9]+)-[0-9a-f]+\.db")
_ALIVE = re.compile(r"([0-9]+)\.alive")
# Before it has its name.
_ALIVE_NEW = re.compile(r"[0-9]+\.alive\.new")

# The clock of process starts is exact to a second.
_START_TOLERANCE = 2.0


class DirectoryError(Exception):
    """A sentence: why the directory gives nothing."""


@dataclass
class Report:
    """What a read of the directory found. `bad` is why a file was left out, by its name; `processes` counts by state.
    `tidying` is why dead files are not put together, if they should be."""

    combined: Combined
    processes: Counter[str]
    bad: dict[str, BadFile]
    compactions: int
    tidying: str | None = None

    @property
    def families(self) -> list[Family]:
        return self.combined.families


class _File(NamedTuple):
    name: str
    type: Type
    mode: str = ""


@dataclass
class _Listing:
    """`ended` holds, by name, the type, the place (None: that of the pid) and the pid."""

    processes: dict[str, list[_File]] = field(default_factory=dict)
    ended: dict[str, tuple[Type, int | None, str]] = field(default_factory=dict)
    alive: set[str] = field(default_factory=set)
    foreign: list[str] = field(default_factory=list)
    has_compacted: bool = False


class Directory:
    """One directory over many reads. Not for two threads at a time.

    `compact_after` dead files are put together in one; with 0 nothing in the directory is ever changed.
    """

    def __init__(
        self,
        path: Path,
        labels: Labels = (),
        *,
        shared_pid_namespace: bool = False,
        with_places: bool = False,
        compact_after: int = 0,
        max_bytes: int = 1 << 24,
        max_samples: int | None = None,
    ) -> None:
        self._path = path
        self._labels = labels
        self._shared_pid_namespace = shared_pid_namespace
        self._with_places = with_places
        self._compact_after = compact_after
        self._max_bytes = max_bytes
        self._max_samples = max_samples
        self._registry = Registry()
        self._compacted = Compacted()
        # Of the file that `_compacted` was read from.
        self._compacted_id: tuple[int, ...] | None = None
        self._saved_places: dict[str, int] = {}
        # Dead files that are still there, by name: what told their state when they were read.
        self._frozen_files: dict[str, tuple[int, ...]] = {}
        self._frozen = Totals()
        self._compactions = 0
        self._bad: dict[str, BadFile] = {}
        self._tidying: str | None = None
        self._fd = -1

    def read(self) -> Report:
        """Raises `DirectoryError`."""
        try:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise DirectoryError(f"{self._path} cannot be read: {error.strerror}") from None
        try:
            return self._read()
        except OSError as error:
            raise DirectoryError(f"{self._path} cannot be read: {error.strerror}") from None
        finally:
            os.close(self._fd)

    def _read(self) -> Report:
        self._bad = {}
        self._tidying = None
        with self._locked() as lock:
            listing = self._list()
            self._load(listing)
            states = {pid: self._state(pid) for pid in listing.processes}
            if self._compact_after and self._is_untidy(listing, states):
                self._tidy(listing, states, lock)
                listing = self._list()
                self._load(listing)
                states = {pid: states.get(pid) or self._state(pid) for pid in listing.processes}
            for name in listing.foreign:
                self._bad[name] = BadFile("foreign", "prometheus_client names no file so")
            places = self._places(states)
            self._freeze(listing, states, places)
            live, gauges = self._live(listing, states, places)
        totals = (self._compacted.totals, self._frozen, live)
        combined = combine(totals, gauges, self._labels, with_places=self._with_places)
        if self._max_samples is not None and count_samples(combined.families) > self._max_samples:
            raise DirectoryError(f"{self._path} holds more samples than max_samples")
        processes: Counter[str] = Counter(known.state for known in states.values())
        return Report(combined, processes, dict(self._bad), self._compactions, self._tidying)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int | None]:
        """Holds the lock, shared; None where it is not there and cannot be made, so that nobody tidies either."""
        lock = self._lock_file()
        if lock is None:
            yield None
            return
        try:
            fcntl.flock(lock, fcntl.LOCK_SH)
            yield lock
        finally:
            os.close(lock)

    def _lock_file(self) -> int | None:
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            with contextlib.suppress(FileNotFoundError):
                return os.open(LOCK, flags, dir_fd=self._fd)
            if self._compact_after:
                return os.open(LOCK, flags | os.O_CREAT, 0o644, dir_fd=self._fd)
        except OSError as error:
            self._tidying = f"{LOCK} cannot be opened: {error.strerror}"
        return None

    def _list(self) -> _Listing:
        listing = _Listing()
        with os.scandir(self._fd) as entries:
            for entry in entries:
                name = entry.name
                if found := _OF_PROCESS.fullmatch(name):
                    type_ = cast(Type, found[1] or "gauge")
                    listing.processes.setdefault(found[3], []).append(_File(name, type_, found[2] or ""))
                elif found := _ENDED.fullmatch(name):
                    place = None if found[2] is None else int(found[2])
                    listing.ended[name] = (cast(Type, found[1]), place, found[3])
                elif found := _ALIVE.fullmatch(name):
                    listing.alive.add(found[1])
                elif name == compacted.NAME:
                    listing.has_compacted = True
                elif name.endswith(".db"):
                    listing.foreign.append(name)
        return listing

    def _load(self, listing: _Listing) -> None:
        """Reads `compacted.json` if it is another one than last time."""
        if not listing.has_compacted:
            self._compacted, self._compacted_id = Compacted(places=self._compacted.places), None
            self._saved_places = {}
            return
        try:
            data, identity = self._bytes(compacted.NAME, self._compacted_id)
            if data is not None:
                self._compacted_id = None
                self._compacted = Compacted()
                self._compacted = compacted.decode(data, self._registry)
                self._compacted_id = identity
                self._saved_places = dict(self._compacted.places)
        except BadFile as problem:
            self._compacted, self._compacted_id = Compacted(), None
            self._bad[compacted.NAME] = problem

    def _state(self, pid: str) -> Liveness:
        known = liveness.by_lock(pid, self._fd)
        if known is liveness.UNKNOWN and self._shared_pid_namespace:
            return liveness.by_process_table(pid)
        return known

    def _places(self, states: dict[str, Liveness]) -> dict[str, int]:
        """By pid. Those of processes that have none yet are not in `compacted.json`, if that cannot be written."""
        if not self._with_places:
            return dict.fromkeys(states, 0)
        places = self._compacted.places
        for pid in sorted(states, key=int):
            if pid not in places:
                taken = {places[other] for other, known in states.items() if other in places and known.state != "dead"}
                places[pid] = next(place for place in range(len(taken) + 1) if place not in taken)
        return places

    def _freeze(self, listing: _Listing, states: dict[str, Liveness], places: dict[str, int]) -> None:
        """Reads the counters and histograms of dead processes that it has not read before."""
        wanted: dict[str, tuple[Type, int, tuple[int, ...]]] = {}
        for name, (type_, place, pid) in listing.ended.items():
            if name not in self._compacted.absorbed:
                # Nobody writes to a file of this name, and no other will have it.
                wanted[name] = (type_, places.get(pid, 0) if place is None else place, ())
        for pid, known in states.items():
            if known.state == "dead":
                for file in listing.processes[pid]:
                    if file.type != "gauge" and (identity := self._identity(file.name)):
                        wanted[file.name] = (file.type, places[pid], identity)
        if any(name not in wanted or wanted[name][2] != known for name, known in self._frozen_files.items()):
            self._frozen_files = {}
            self._frozen = Totals()
        is_changed = False
        for name, (type_, place, identity) in wanted.items():
            if name not in self._frozen_files and self._add(name, type_, place, self._frozen):
                self._frozen_files[name] = identity
                is_changed = True
        if is_changed:
            self._frozen.condense()

    def _live(
        self, listing: _Listing, states: dict[str, Liveness], places: dict[str, int]
    ) -> tuple[Totals, list[GaugeValue]]:
        """The values of the processes that are not known to be dead."""
        live = Totals()
        gauges: list[GaugeValue] = []
        for pid, known in states.items():
            if known.state == "dead":
                continue
            for file in listing.processes[pid]:
                if file.type == "gauge":
                    gauges += self._gauges(file, pid, known, places[pid])
                else:
                    self._add(file.name, file.type, places[pid], live)
        return live, gauges

    def _add(self, name: str, type_: Type, place: int, totals: Totals) -> bool:
        """Adds a file's values; False if it could not be read, which is then in `_bad`."""
        try:
            data, _ = self._bytes(name)
            assert data is not None
            if used := used_bytes(data):
                layout, values, _ = self._registry.read(data, used)
                totals.add(place, self._registry.view(layout, type_), values)
        except BadFile as problem:
            self._bad[name] = problem
            return False
        return True

    def _gauges(self, file: _File, pid: str, known: Liveness, place: int) -> Iterator[GaugeValue]:
        is_certain = known.state == "live"
        try:
            data, identity = self._bytes(file.name)
            assert data is not None
            if not (used := used_bytes(data)):
                return
            layout, values, timestamps = self._registry.read(data, used)
        except BadFile as problem:
            self._bad[file.name] = problem
            return
        is_most_recent = file.mode.endswith("mostrecent")
        # A process of the same pid may have written the file before this one began.
        since = known.started - _START_TOLERANCE
        if not is_most_recent and identity[2] < since * 1e9:
            return
        for plain, value, at in zip(self._registry.view(layout, "gauge").plain, values, timestamps, strict=True):
            # One that was never set has no time.
            if not is_most_recent or (at > 0 and at >= since):
                yield GaugeValue(plain, file.mode, pid, place, value, at, is_certain)

    def _identity(self, name: str) -> tuple[int, ...] | None:
        try:
            return _identity(os.stat(name, dir_fd=self._fd, follow_symlinks=False))
        except FileNotFoundError:
            return None

    def _bytes(self, name: str, known: tuple[int, ...] | None = None) -> tuple[bytes | None, tuple[int, ...]]:
        """A file's content, None if it is as `known`; and what tells. Raises `BadFile`."""
        try:
            file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self._fd)
        except OSError as error:
            raise BadFile("unreadable", f"it cannot be opened: {error.strerror}") from None
        try:
            status = os.fstat(file)
            identity = _identity(status)
            if not stat.S_ISREG(status.st_mode):
                raise BadFile("foreign", "it is no regular file")
            if status.st_size > self._max_bytes:
                raise BadFile("too_large", f"it has {status.st_size} bytes, more than max_body_bytes")
            if identity == known:
                return None, identity
            return os.read(file, status.st_size), identity
        except OSError as error:
            raise BadFile("unreadable", f"it cannot be read: {error.strerror}") from None
        finally:
            os.close(file)

    # Tidying, all of it under the exclusive lock.

    def _is_untidy(self, listing: _Listing, states: dict[str, Liveness]) -> bool:
        dead = [pid for pid, known in states.items() if known.state == "dead"]
        return bool(
            dead
            or any(liveness.by_lock(pid, self._fd) is liveness.DEAD for pid in listing.alive - states.keys())
            or any(place is None for _, place, _ in listing.ended.values())
            or len(listing.ended) >= self._compact_after
            or (self._compacted.absorbed & listing.ended.keys())
            or (self._with_places and not states.keys() <= self._saved_places.keys())
        )

    def _tidy(self, listing: _Listing, states: dict[str, Liveness], lock: int | None) -> None:
        """Puts dead files aside, and together when there are many. What cannot be done now is left for later."""
        if lock is None or compacted.NAME in self._bad:
            return
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(lock, fcntl.LOCK_SH)
            return
        try:
            # Changing the lock lets go of it for a moment.
            listing = self._list()
            self._load(listing)
            states = {pid: self._state(pid) for pid in listing.processes}
            places = self._places(states)
            self._put_aside(listing, states, places)
            if self._with_places:
                for pid in [pid for pid, known in states.items() if known.state == "dead"]:
                    del places[pid]
            listing = self._list()
            for name in self._compacted.absorbed & listing.ended.keys():
                os.unlink(name, dir_fd=self._fd)
            waiting = [name for name in listing.ended if name not in self._compacted.absorbed]
            if len(waiting) >= self._compact_after:
                self._compact(listing, waiting)
            elif self._with_places and places != self._saved_places:
                self._write(self._compacted)
        except OSError as error:
            self._tidying = f"{self._path} cannot be tidied: {error.strerror}"
        finally:
            fcntl.flock(lock, fcntl.LOCK_SH)

    def _put_aside(self, listing: _Listing, states: dict[str, Liveness], places: dict[str, int]) -> None:
        """Renames the files of dead processes, so that no process of the same pid goes on writing to them."""
        now = time.time_ns()
        for name, (type_, place, pid) in listing.ended.items():
            if place is None:
                self._rename(name, f"{type_}_ended-{places.get(pid, 0)}-{name.partition('_ended-')[2]}")
        for pid, known in states.items():
            if known.state != "dead":
                continue
            for file in listing.processes[pid]:
                if file.type == "gauge":
                    os.unlink(file.name, dir_fd=self._fd)
                else:
                    self._rename(file.name, f"{file.type}_ended-{places[pid]}-p{pid}-{now:x}.db")
        for pid in listing.alive:
            if states.get(pid, liveness.DEAD).state == "dead" and liveness.by_lock(pid, self._fd) is liveness.DEAD:
                os.unlink(liveness.alive_file(pid), dir_fd=self._fd)

    def _rename(self, old: str, new: str) -> None:
        os.rename(old, new, src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def _compact(self, listing: _Listing, waiting: list[str]) -> None:
        """One file in place of many. A crash at any point leaves each dead file counted exactly once: either
        `compacted.json` is still the old one, or it names the files that it has absorbed."""
        totals = Totals()
        totals.update(self._compacted.totals)
        absorbed = []
        for name in waiting:
            type_, place, _ = listing.ended[name]
            assert place is not None
            if self._add(name, type_, place, totals):
                absorbed.append(name)
        # Files that cannot be read stay; they alone are no reason to write.
        if not absorbed:
            return
        totals.condense()
        self._write(Compacted(totals, frozenset(absorbed), self._compacted.places))
        self._compactions += 1
        for name in absorbed:
            os.unlink(name, dir_fd=self._fd)

    def _write(self, content: Compacted) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        file = os.open(_TEMPORARY, flags, 0o644, dir_fd=self._fd)
        with open(file, "wb") as output:
            output.write(content.encode())
            output.flush()
            os.fsync(output.fileno())
        self._rename(_TEMPORARY, compacted.NAME)
        os.fsync(self._fd)
        self._compacted = content
        self._saved_places = dict(content.places)
        self._compacted_id = self._identity(compacted.NAME)


def is_of_a_run(name: str) -> bool:
    """Whether it is the name of a file that processes leave in such a directory, or this service; not the lock."""
    patterns = (_OF_PROCESS, _ENDED, _ALIVE, _ALIVE_NEW)
    return any(pattern.fullmatch(name) for pattern in patterns) or name in (compacted.NAME, _TEMPORARY)


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return status.st_ino, status.st_size, status.st_mtime_ns
