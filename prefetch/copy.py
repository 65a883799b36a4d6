"""Copies the files of a plan into a staging folder: parts in parallel across files, journalled, verified as they end.

A file's parts are ranged GETs pinned to one state of the object, written in place with `pwrite`. A file no larger than
one part is one GET of the whole object, which brings its checksum along. Tasks are taken in the plan's order, so few
files are open at a time, and one file's verification overlaps the next one's parts.
"""

import contextlib
import functools
import heapq
import itertools
import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from prefetch import disk, lustre, metrics
from prefetch.checksums import ALGORITHMS, DEFAULT, Algorithm, Expected
from prefetch.errors import Cancelled, JobError
from prefetch.journal import Done, FileRecord, Journal
from prefetch.limits import Limits
from prefetch.plan import Plan, PlannedFile, archived, part_bounds
from prefetch.progress import Progress
from prefetch.s3 import S3, Head, Kind, Pin, S3Error
from prefetch.verify import check_index, crc_of, header_problem, sha256_of

_Value = TypeVar("_Value")

# Read, summed and written at a time: what a core's cache holds. Smaller pieces are more calls.
_READ_BYTES = 1024 * 1024
# How often an object may be replaced while it is read before the job gives up.
_RESTARTS = 3
_VERIFYING_THREADS = 2
# Files whose parts are taken in turn: writes to one and the same file wait for each other in the kernel.
_TOGETHER = 4


@dataclass(frozen=True)
class CopySettings:
    part_bytes: int = 32 * 1024 * 1024
    attempts: int = 8  # per part
    backoff: float = 0.2  # seconds; doubles, at random below
    longest_backoff: float = 20


@dataclass
class _Copy:
    """One file being copied from one state of its object. A restart makes another, with a file of its own, so that
    what a late task of the old one still writes goes nowhere."""

    file: PlannedFile
    order: int
    fd: int
    size: int
    pin: Pin
    expected: Expected | None
    algorithm: Algorithm
    bounds: list[tuple[int, int]]
    crcs: dict[int, int] = field(default_factory=dict)
    stale: bool = False

    @property
    def whole(self) -> bool:
        return len(self.bounds) == 1

    def crc(self) -> int:
        return self.algorithm.joined([(self.crcs[i], end - begin) for i, (begin, end) in enumerate(self.bounds)])


class Copier:
    """One job's copy. `run` ends with every file verified, or raises JobError or Cancelled."""

    def __init__(
        self,
        s3: S3,
        plan: Plan,
        folder: Path,
        journal: Journal,
        progress: Progress,
        limits: Limits,
        settings: CopySettings,
        stop: threading.Event,
    ) -> None:
        """`folder` takes the files; `stop` ends the copy with Cancelled, and it can be resumed."""
        self._s3 = s3
        self._plan = plan
        self._folder = folder
        self._journal = journal
        self._progress = progress
        self._limits = limits
        self._settings = settings
        self._stop = stop
        self._in_memory = lustre.file_system(folder) == "tmpfs"
        self._ended = threading.Event()  # `stop`, or a failure of this copy: no task goes on
        self._paths = frozenset(file.path for file in plan.files)
        self._done: dict[str, Done] = {}
        self._restarts: Counter[str] = Counter()
        self._refetched: set[str] = set()
        self._failure: BaseException | None = None
        self._open_fds: set[int] = set()
        self._numbers = itertools.count()
        self._tasks: list[tuple[int, int, int, Callable[[], None]]] = []
        self._changed = threading.Condition()  # guards all of the above
        self._of_thread = threading.local()
        self._verifying = ThreadPoolExecutor(_VERIFYING_THREADS, thread_name_prefix="verify")

    def run(self) -> dict[str, Done]:
        """Each path with what is known of its bytes."""
        for order, file in enumerate(self._plan.files):
            self._push(order, -1, functools.partial(self._begin, file, order))
        workers = [
            threading.Thread(target=self._work, name=f"copy-{n}", daemon=True) for n in range(self._limits.concurrency)
        ]
        for worker in workers:
            worker.start()
        try:
            with self._changed:
                while not self._finished():
                    self._changed.wait(0.5)
                    if self._stop.is_set():
                        self._failure = self._failure or Cancelled()
        finally:
            self._ended.set()
            with self._changed:
                self._changed.notify_all()
            for worker in workers:
                worker.join()
            self._verifying.shutdown(cancel_futures=True)
            # Those of a failure, and those of stale copies, to which late tasks may have written until now.
            for fd in self._open_fds:
                os.close(fd)
        if self._failure:
            raise self._failure
        return self._done

    # Tasks.

    def _finished(self) -> bool:
        return self._failure is not None or len(self._done) == len(self._plan.files)

    def _push(self, order: int, part: int, task: Callable[[], None]) -> None:
        with self._changed:
            heapq.heappush(self._tasks, (order // _TOGETHER, part, next(self._numbers), task))
            self._changed.notify()

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            while not self._ended.is_set() and not self._finished():
                if self._tasks:
                    return heapq.heappop(self._tasks)[-1]
                self._changed.wait(0.5)
            return None

    def _work(self) -> None:
        while task := self._next():
            self._guarded(task)

    def _guarded(self, task: Callable[[], None]) -> None:
        """Run a task; its failure is the job's."""
        try:
            task()
        except BaseException as error:
            with self._changed:
                # What the others say after the first failure is its consequence.
                self._failure = self._failure or error
                self._ended.set()
                self._changed.notify_all()

    # One file.

    def _begin(self, file: PlannedFile, order: int) -> None:
        if self._take_done(file):
            return
        self._progress.state(file.path, "copying")
        if file.size <= self._settings.part_bytes:
            # Pinned by the listing; the one GET brings the checksum.
            self._start(file, order, Head(file.size, Pin(file.etag), None))
        else:
            self._begin_as_it_is(file, order)

    def _begin_as_it_is(self, file: PlannedFile, order: int) -> None:
        """From the object's present state, which may be another than the listing's."""
        try:
            head = self._retrying(file.path, lambda: self._s3.head(self._plan.source.bucket, file.key))
        except S3Error as error:
            raise self._sentence(file, error) from None
        self._progress.resized(file.path, head.size)
        self._start(file, order, head)

    def _start(self, file: PlannedFile, order: int, head: Head) -> None:
        """Push the parts that are missing."""
        part_bytes = self._settings.part_bytes
        algorithm = head.checksum.algorithm if head.checksum else DEFAULT
        bounds = part_bounds(head.size, part_bytes)
        with self._disk_trouble(file):
            fd, crcs = self._open(file, head, algorithm, bounds)
        copy = _Copy(file, order, fd, head.size, head.pin, head.checksum, algorithm, bounds, crcs)
        self._progress.has(file.path, sum(bounds[index][1] - bounds[index][0] for index in crcs))
        missing = [index for index in range(len(bounds)) if index not in crcs]
        for index in missing:
            self._push(order, index, functools.partial(self._copy_part, copy, index))
        if not missing:
            self._complete(copy)

    def _open(
        self, file: PlannedFile, head: Head, algorithm: Algorithm, bounds: list[tuple[int, int]]
    ) -> tuple[int, dict[int, int]]:
        """The file and the CRCs of the parts that an earlier run left in it."""
        target = self._folder / file.path
        record = self._journal.files.pop(file.path, None)
        now = FileRecord(
            head.size,
            head.pin.etag,
            head.pin.version,
            self._settings.part_bytes,
            algorithm.name,
            head.checksum.value if head.checksum else None,
        )
        if record and record.is_of_same(now):
            with contextlib.suppress(FileNotFoundError):
                fd = self._opened(target, 0)
                if os.fstat(fd).st_size == head.size:
                    return fd, self._confirmed(fd, record, algorithm, bounds)
                self._close(fd)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        fd = self._opened(target, os.O_CREAT | os.O_EXCL)
        disk.preallocate(fd, head.size, self._in_memory)
        if len(bounds) > 1:
            self._journal.begin(file.path, now)
        return fd, {}

    def _opened(self, path: Path, flags: int) -> int:
        fd = os.open(path, flags | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with self._changed:
            self._open_fds.add(fd)
        return fd

    def _close(self, fd: int) -> None:
        with self._changed:
            self._open_fds.discard(fd)
        os.close(fd)

    def _confirmed(
        self, fd: int, record: FileRecord, algorithm: Algorithm, bounds: list[tuple[int, int]]
    ) -> dict[int, int]:
        return {
            index: crc
            for index, crc in record.parts.items()
            if index not in record.doubtful or crc_of(fd, bounds[index], algorithm) == crc
        }

    def _take_done(self, file: PlannedFile) -> bool:
        """Whether an earlier run has finished this file."""
        record = self._journal.files.get(file.path)
        done = record.done if record else None
        if not done or (done.etag, done.size) != (file.etag, file.size) or (file.sha256 or done.sha256) != done.sha256:
            return False
        try:
            fd = os.open(self._folder / file.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            whole = os.fstat(fd).st_size == done.size
            if whole and done.doubtful:
                whole = crc_of(fd, (0, done.size), ALGORITHMS[done.algorithm]) == done.crc
        finally:
            os.close(fd)
        if whole:
            self._progress.has(file.path, done.size)
            self._finish(file.path, done)
        return whole

    def _finish(self, path: str, done: Done) -> None:
        self._progress.state(path, "done")
        with self._changed:
            self._done[path] = done
            self._changed.notify_all()

    # One part.

    def _copy_part(self, copy: _Copy, index: int) -> None:
        file = copy.file
        if copy.stale:
            return
        try:
            with self._disk_trouble(file):
                crc = self._retrying(file.path, lambda: self._transfer(copy, index))
        except S3Error as error:
            if error.kind is Kind.REPLACED:
                self._restart(copy, "replaced")
                return
            raise self._sentence(file, error) from None
        with self._changed:
            if copy.stale:
                return
            if not copy.whole:
                with self._disk_trouble(file):
                    self._journal.part(file.path, index, crc)
            copy.crcs[index] = crc
            complete = len(copy.crcs) == len(copy.bounds)
        if complete:
            self._complete(copy)

    def _transfer(self, copy: _Copy, index: int) -> int:
        """Read one part into its place; its CRC. Raises S3Error, OSError, Cancelled."""
        begin, end = copy.bounds[index]
        offset, crc = begin, 0
        buffer = self._buffer()
        self._limits.take(self._ended)
        try:
            bounds = None if copy.whole else (begin, end)
            with self._s3.get(self._plan.source.bucket, copy.file.key, copy.pin, bounds) as body:
                if body.size != end - begin:
                    raise S3Error(Kind.REPLACED, "replaced", f"{body.size} bytes came in place of {end - begin}")
                if copy.whole:
                    copy.pin = Pin(copy.pin.etag, body.version)
                    copy.expected = body.checksum
                    copy.algorithm = body.checksum.algorithm if body.checksum else DEFAULT
                while offset < end:
                    amount = min(_READ_BYTES, end - offset)
                    self._limits.pace(amount, self._ended)
                    count = body.read_into(buffer[:amount])
                    if not count:
                        raise S3Error(Kind.AGAIN, "short", f"the answer ended {end - offset} bytes early")
                    data = buffer[:count]
                    crc = copy.algorithm.update(data, crc)
                    disk.write_at(copy.fd, data, offset)
                    offset += count
                    self._progress.read(count, None if copy.stale else copy.file.path)
                    if self._ended.is_set():
                        raise Cancelled
        except BaseException:
            if not copy.stale:
                self._progress.has(copy.file.path, begin - offset)
            raise
        finally:
            self._limits.give_back()
        return crc

    def _buffer(self) -> memoryview:
        """This thread's."""
        try:
            buffer: memoryview = self._of_thread.buffer
        except AttributeError:
            buffer = self._of_thread.buffer = memoryview(bytearray(_READ_BYTES))
        return buffer

    def _retrying(self, path: str, request: Callable[[], _Value]) -> _Value:
        return retrying(self._s3, request, self._settings, self._ended, lambda: self._progress.retried(path))

    def _restart(self, copy: _Copy, reason: str) -> None:
        """Begin the file again, and only it, from the object's present state."""
        path = copy.file.path
        with self._changed:
            if copy.stale:
                return
            copy.stale = True
            self._restarts[path] += 1
            if self._restarts[path] > _RESTARTS:
                raise JobError(f"{path} was replaced in S3 {_RESTARTS + 1} times while it was copied; retry the job.")
        metrics.restarts_total.labels(reason).inc()
        self._progress.restarted(path)
        self._push(copy.order, -1, functools.partial(self._begin_as_it_is, copy.file, copy.order))

    # The end of a file.

    def _complete(self, copy: _Copy) -> None:
        """All its parts are there."""
        self._progress.state(copy.file.path, "verifying")
        if copy.whole:
            # The journal knows it only once it is verified, so until then it counts as in flight.
            self._verify(copy)
            return
        # The pool is shut down once the copy has ended.
        with contextlib.suppress(RuntimeError):
            self._verifying.submit(self._guarded, functools.partial(self._verify, copy))

    def _verify(self, copy: _Copy) -> None:
        path = copy.file.path
        with self._disk_trouble(copy.file):
            sha256 = sha256_of(copy.fd) if copy.file.sha256 else None
            problem = self._problem(copy, sha256)
            if problem:
                metrics.verify_failures_total.inc()
                if path in self._refetched:
                    raise JobError(f"{path} is damaged, also when fetched again: {problem}.")
                self._refetched.add(path)
                self._progress.state(path, "copying")
                self._restart(copy, "damaged")
                return
            check_index(path, self._folder, self._paths, tensors=False)
            if not copy.whole:
                # While others are copied; the small files are synced all at once when the model is published.
                os.fsync(copy.fd)
            done = Done(
                copy.size,
                copy.pin.etag,
                copy.pin.version,
                copy.algorithm.name,
                copy.crc(),
                copy.expected is not None,
                sha256,
            )
            self._journal.done(path, done)
        self._close(copy.fd)
        self._finish(path, done)

    def _problem(self, copy: _Copy, sha256: str | None) -> str | None:
        if (size := os.fstat(copy.fd).st_size) != copy.size:
            return f"it has {size} bytes in place of {copy.size}"
        if os.stat(self._folder / copy.file.path).st_ino != os.fstat(copy.fd).st_ino:
            return "another file is in its place"
        if copy.expected and copy.algorithm.text(copy.crc()) != copy.expected.value:
            return f"its {copy.algorithm.name} is not the one that S3 has for the object"
        if sha256 != copy.file.sha256:
            return "its SHA-256 is not the one in the manifest"
        return header_problem(copy.file.path, copy.fd)

    # Sentences.

    @contextlib.contextmanager
    def _disk_trouble(self, file: PlannedFile) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise disk.trouble(error, self._folder / file.path) from None

    def _sentence(self, file: PlannedFile, error: S3Error) -> JobError:
        return sentence(file.path, f"s3://{self._plan.source.bucket}/{file.key}", error)


def retrying(
    s3: S3, request: Callable[[], _Value], settings: CopySettings, stop: threading.Event, told: Callable[[], None]
) -> _Value:
    """The request's value, after as many attempts as it takes and `settings` allow. `told` hears of each retry.

    Raises S3Error of the last attempt, or Cancelled.
    """
    denied = 0
    for attempt in itertools.count(1):
        client = s3.client
        try:
            return request()
        except S3Error as error:
            denied += error.kind is Kind.DENIED
            again = error.kind in (Kind.AGAIN, Kind.CREDENTIALS) or (error.kind is Kind.DENIED and denied < 2)
            if not again or attempt >= settings.attempts:
                raise
            metrics.retries_total.labels(error.reason).inc()
            told()
            if error.kind is Kind.CREDENTIALS:
                s3.renew_credentials(client)
        # Full jitter: clients that were refused together do not come back together.
        if stop.wait(random.uniform(0, min(settings.longest_backoff, settings.backoff * 2**attempt))):
            raise Cancelled
    raise AssertionError


def sentence(name: str, url: str, error: S3Error) -> JobError:
    """What a request to S3 that failed for good means for people."""
    match error.kind:
        case Kind.GONE:
            return JobError(f"{name} is gone: {url} was deleted after it was listed; upload it, then retry the job.")
        case Kind.ARCHIVED:
            return archived(name, "an archive tier")
        case Kind.DENIED:
            return JobError(f"{name} may not be read: S3 says of {url}: {error}. Grant it, then retry the job.")
        case Kind.CREDENTIALS:
            return JobError(f"{name} cannot be read: the AWS credentials have expired ({error}); renew them.")
        case Kind.AGAIN:
            return JobError(f"{name} could not be read from {url}, also after retries: {error}. Retry the job later.")
        case _:
            return JobError(f"{name} cannot be read from {url}: {error}.")
