"""A source that a data repository association covers is on the file system already, as names whose contents come when
they are read. They are read through in parallel, which brings and verifies them in one pass; the model's folder then
holds links to them.
"""

import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from prefetch import lustre, metrics
from prefetch.checksums import DEFAULT, Algorithm
from prefetch.copy import CopySettings, retrying, sentence
from prefetch.errors import Cancelled, JobError
from prefetch.journal import Done
from prefetch.limits import Limits
from prefetch.plan import Plan, PlannedFile, part_bounds
from prefetch.progress import Progress
from prefetch.s3 import S3, Head, S3Error
from prefetch.source import Source
from prefetch.verify import crc_of, header_problem, sha256_of


@dataclass(frozen=True)
class Association:
    """`path` shows what is below `source`; with `auto_export` what is written below `path` goes back to S3."""

    path: Path
    source: Source
    auto_export: bool = False


def covering(source: Source, associations: Sequence[Association]) -> Path | None:
    """Where the association that holds `source` shows it."""
    for association in associations:
        if association.source.holds(source):
            return association.path / source.prefix[len(association.source.prefix) :]
    return None


class Hydrator:
    """Reads every file of the plan through; `run` gives what Copier.run gives. Raises JobError or Cancelled."""

    def __init__(
        self,
        s3: S3,
        plan: Plan,
        shown: Path,
        progress: Progress,
        limits: Limits,
        settings: CopySettings,
        stop: threading.Event,
        stall_seconds: float,
    ) -> None:
        """`shown` is the folder in which the association shows the source."""
        self._s3 = s3
        self._plan = plan
        self._shown = shown
        self._progress = progress
        self._limits = limits
        self._settings = settings
        self._stop = stop
        self._stall_seconds = stall_seconds

    def run(self, links: Path) -> dict[str, Done]:
        """Also makes `links`, the folder of links to the files."""
        lustre.restore([self._shown / file.path for file in self._plan.files], self._stall_seconds, self._stop.is_set)
        done = {}
        with ThreadPoolExecutor(self._limits.concurrency, thread_name_prefix="hydrate") as pool:
            for file in self._plan.files:
                done[file.path] = self._read_through(file, pool)
        for path in done:
            link = links / path
            link.parent.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)
            link.symlink_to(self._shown / path)
        return done

    def _read_through(self, file: PlannedFile, pool: ThreadPoolExecutor) -> Done:
        place = self._shown / file.path
        self._progress.state(file.path, "verifying")
        try:
            head = retrying(
                self._s3,
                lambda: self._s3.head(self._plan.source.bucket, file.key),
                self._settings,
                self._stop,
                lambda: self._progress.retried(file.path),
            )
        except S3Error as error:
            raise sentence(file.path, f"s3://{self._plan.source.bucket}/{file.key}", error) from None
        try:
            fd = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise JobError(
                f"{place} cannot be read: {error.strerror}; is the association's import up to date?"
            ) from None
        try:
            whole = self._read_parts(fd, place, file, head, pool)
            sha256 = sha256_of(fd) if file.sha256 else None
            if sha256 != file.sha256:
                raise self._damaged(file, "its SHA-256 is not the one in the manifest")
            if problem := header_problem(file.path, fd):
                raise self._damaged(file, problem)
        finally:
            os.close(fd)
        self._progress.state(file.path, "done")
        return Done(
            head.size,
            head.pin.etag,
            head.pin.version,
            _algorithm(head).name,
            whole,
            head.checksum is not None,
            sha256,
        )

    def _read_parts(self, fd: int, place: Path, file: PlannedFile, head: Head, pool: ThreadPoolExecutor) -> int:
        """The CRC of the whole file, which is right."""
        if (size := os.fstat(fd).st_size) != head.size:
            raise self._damaged(file, f"it has {size} bytes on the file system and {head.size} in S3")
        algorithm = _algorithm(head)
        parts = part_bounds(head.size, self._settings.part_bytes)
        tasks = [pool.submit(self._read_part, fd, part, algorithm, file) for part in parts]
        try:
            crcs = [task.result() for task in tasks]
        except OSError as error:
            raise JobError(f"{place} cannot be read: {error.strerror}; retry the job.") from None
        finally:
            # Nobody may still read when the file is closed.
            for task in tasks:
                task.cancel()
            wait(tasks)
        known = [(crc, end - begin) for crc, (begin, end) in zip(crcs, parts, strict=True) if crc is not None]
        if len(known) < len(parts):
            raise self._damaged(file, "it ended while it was read")
        whole = algorithm.joined(known)
        if head.checksum and algorithm.text(whole) != head.checksum.value:
            raise self._damaged(file, f"its {algorithm.name} is not the one that S3 has for the object")
        return whole

    def _read_part(self, fd: int, part: tuple[int, int], algorithm: Algorithm, file: PlannedFile) -> int | None:
        if self._stop.is_set():
            raise Cancelled
        self._limits.take(self._stop)
        try:
            self._limits.pace(part[1] - part[0], self._stop)
            crc = crc_of(fd, part, algorithm)
        finally:
            self._limits.give_back()
        self._progress.has(file.path, part[1] - part[0])
        return crc

    def _damaged(self, file: PlannedFile, problem: str) -> JobError:
        # The file system's copy is the association's: only importing it again can mend it.
        metrics.verify_failures_total.inc()
        return JobError(f"{file.path} is damaged in the data repository association: {problem}. Import it again.")


def _algorithm(head: Head) -> Algorithm:
    return head.checksum.algorithm if head.checksum else DEFAULT
