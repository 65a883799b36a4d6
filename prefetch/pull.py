"""One job from the announcement to the published model. The service's jobs and `pull` on the command line are this.

plan → room → copy (or hydrate) → verify → publish → follow-up. Everything before the publication can be interrupted
at any moment and is resumed by the next run of the same job on the same machine.
"""

import contextlib
import fcntl
import hashlib
import logging
import os
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from prefetch import disk, lustre, metrics, publish, space, verify
from prefetch.announcement import Announcement, Manifest
from prefetch.checksums import ALGORITHMS
from prefetch.copy import Copier, CopySettings, retrying, sentence
from prefetch.errors import JobError
from prefetch.hydrate import Association, Hydrator, covering
from prefetch.journal import Done, Journal, boot_id
from prefetch.limits import Limits
from prefetch.plan import Plan, make_plan
from prefetch.progress import Progress
from prefetch.s3 import S3, S3Config, S3Error
from prefetch.space import Candidate, Policy, Usage
from prefetch.store import Published, Store, remove_tree
from prefetch.triton import Triton, TritonConfig
from service_base import strict_json
from service_base.errors import mistake

_log = logging.getLogger(__name__)

# A manifest object is read into memory.
_MANIFEST_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class EngineConfig:
    target: Path
    state: Path  # local: locks, and who this machine is
    s3: S3Config = field(default_factory=S3Config)
    copy: CopySettings = field(default_factory=CopySettings)
    concurrency: int = 8
    bytes_per_second: int | None = None
    markers: tuple[str, ...] = ()
    associations: tuple[Association, ...] = ()
    hydrate_stall_seconds: float = 300
    policy: Policy = field(default_factory=Policy)
    triton: TritonConfig | None = None


class Engine:
    """Runs jobs; several at a time share its limits."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.store = Store(config.target)
        self.limits = Limits(config.concurrency, config.bytes_per_second)
        self.triton = Triton(config.triton) if config.triton else None
        self._room = threading.Lock()
        self._promised: dict[str, int] = {}  # bytes that running jobs will still write
        self._busy: set[Path] = set()  # versions that jobs are making now
        self._s3_lock = threading.Lock()
        self._s3: S3 | None = None
        self._worker_id = _worker_id(config.state)

    @property
    def s3(self) -> S3:
        with self._s3_lock:
            self._s3 = self._s3 or S3(self.config.s3)
            return self._s3

    def run(self, announcement: Announcement, announced: float, progress: Progress, stop: threading.Event) -> Published:
        """Raises JobError, or Cancelled when `stop` is set; what is staged then stays for the next run.

        `announced` (Unix time) decides between versions which of them `current` names.
        """
        model, version = announcement.model, announcement.version
        identity = "\0".join((self._worker_id, model, version, announcement.source))
        staging_id = hashlib.sha256(identity.encode()).hexdigest()[:24]
        staging = self.store.staging(staging_id)
        try:
            with self._locked(staging_id), self._working_on(self.store.folder(model, version)):
                published = publish.resume(self.store, model, version, staging)
                published = published or self._make(announcement, announced, staging, progress, stop)
                if announcement.pin:
                    self.store.pin(model, version)
                publish.set_current(self.store, model, version, announced)
                self.store.use(model, version)
                if self.triton:
                    progress.enter("loading")
                    self.triton.deploy(published, stop)
                progress.enter("ready")
                return published
        except OSError as error:
            raise disk.trouble(error, error.filename or self.config.target) from None

    def _make(
        self, announcement: Announcement, announced: float, staging: Path, progress: Progress, stop: threading.Event
    ) -> Published:
        plan = self._plan(announcement, progress, stop)
        there = self.store.published(announcement.model, announcement.version)
        if there:
            publish.check_same(there, {file.path: (file.size, file.etag) for file in plan.files})
            return there
        files = staging / "files"
        files.mkdir(parents=True, exist_ok=True)
        shown = covering(plan.source, self.config.associations)
        if shown:
            progress.enter("hydrating")
            done = Hydrator(
                self.s3, plan, shown, progress, self.limits, self.config.copy, stop, self.config.hydrate_stall_seconds
            ).run(files)
        else:
            done = self._copy(plan, staging, progress, stop)
        _leave_only(files, done)
        progress.enter("verifying")
        verify.check_model(files, done)
        progress.enter("publishing")
        ready = self._ready(announcement, announced, plan, done, files)
        return publish.publish(self.store, announcement.model, announcement.version, staging, ready)

    def _plan(self, announcement: Announcement, progress: Progress, stop: threading.Event) -> Plan:
        source = announcement.where
        try:
            listing = retrying(self.s3, lambda: list(self.s3.list(source)), self.config.copy, stop, lambda: None)
        except S3Error as error:
            raise sentence("The list of objects", str(source), error) from None
        manifest = announcement.manifest
        if announcement.manifest_key:
            manifest = self._manifest(announcement, announcement.manifest_key, stop)
        plan = make_plan(source, listing, manifest, self.config.markers)
        progress.plan((file.path, file.size) for file in plan.files)
        return plan

    def _manifest(self, announcement: Announcement, key: str, stop: threading.Event) -> Manifest:
        bucket = announcement.where.bucket

        def read() -> bytes:
            with self.s3.get(bucket, key, None, None) as body:
                if body.size > _MANIFEST_BYTES:
                    raise JobError(f"The manifest s3://{bucket}/{key} has {body.size} bytes; that is no manifest.")
                return body.read()

        try:
            return strict_json.model_of(Manifest, retrying(self.s3, read, self.config.copy, stop, lambda: None))
        except S3Error as error:
            raise sentence("The manifest", f"s3://{bucket}/{key}", error) from None
        except ValidationError as error:
            place, what = mistake(error)
            raise JobError(
                f"The manifest s3://{bucket}/{key} is wrong at {place or 'its beginning'}: {what}."
            ) from None
        except ValueError as error:
            raise JobError(f"The manifest s3://{bucket}/{key} is not valid JSON: {error}.") from None

    def _copy(self, plan: Plan, staging: Path, progress: Progress, stop: threading.Event) -> dict[str, Done]:
        files = staging / "files"
        with self._room_for(plan, files):
            progress.enter("copying")
            lustre.stripe(files)
            journal = Journal(staging / "journal", boot_id())
            try:
                return Copier(self.s3, plan, files, journal, progress, self.limits, self.config.copy, stop).run()
            finally:
                journal.close()

    def _ready(
        self, announcement: Announcement, announced: float, plan: Plan, done: dict[str, Done], files: Path
    ) -> dict[str, Any]:
        kind, shards = verify.model_format(files, done)
        return {
            "model": announcement.model,
            "version": announcement.version,
            "source": announcement.source,
            "announced": announced,
            "published": time.time(),
            "format": kind,
            "shards": shards,
            "bytes": sum(file.size for file in done.values()),
            "load": {"safetensors_load_strategy": lustre.load_strategy(lustre.file_system(files))},
            "files": {path: _described(path, file) for path, file in sorted(done.items())},
        }

    # Room.

    def candidates(self) -> list[Candidate]:
        """Every published version, and why it may not be removed."""
        loaded = self.triton.loaded() if self.triton else {}
        found = []
        for one in self.store.all():
            # Another machine may be removing it.
            with contextlib.suppress(FileNotFoundError):
                used, kept = self.store.last_used(one), self._kept(one, loaded)
                found.append(Candidate(one.model, one.version, _removable_bytes(one), used, kept))
        return found

    def removable(self, needed: int = 0) -> list[Candidate]:
        """What the policy removes now, or for a job that needs so many bytes."""
        return space.to_remove(self._usage(), self.candidates(), self.config.policy, needed)

    def make_room(self, needed: int = 0) -> list[Candidate]:
        """Remove it."""
        removed = self.removable(needed)
        for candidate in removed:
            published = self.store.published(candidate.model, candidate.version)
            # Another machine may be removing it too.
            if published:
                with contextlib.suppress(FileNotFoundError):
                    self.store.remove(published)
            metrics.removed_total.inc()
            extra = {"bytes": candidate.bytes}
            _log.info("removed %s %s to make room", candidate.model, candidate.version, extra=extra)
        return removed

    def remove_stale_staging(self, older_than: float) -> list[Path]:
        """What failed or was abandoned; not what a job of this machine works in."""
        removed = []
        for folder in self.store.stale_staging(older_than):
            with contextlib.suppress(JobError, FileNotFoundError), self._locked(folder.name):
                remove_tree(folder)
                removed.append(folder)
        return removed

    def _kept(self, one: Published, loaded: dict[Path, str]) -> str | None:
        if self.store.current(one.model) == one.version:
            return "current"
        if self.store.is_pinned(one.model, one.version):
            return "pinned"
        if holders := self.store.holders(one.model, one.version):
            return f"leased by {', '.join(holders)}"
        return "being announced" if one.folder in self._busy else loaded.get(one.folder)

    @contextlib.contextmanager
    def _working_on(self, folder: Path) -> Iterator[None]:
        self._busy.add(folder)
        try:
            yield
        finally:
            self._busy.discard(folder)

    def _usage(self) -> Usage:
        target = self.config.target
        return Usage(disk.total_bytes(target), disk.free_bytes(target))

    @contextlib.contextmanager
    def _room_for(self, plan: Plan, files: Path) -> Iterator[None]:
        """Checks, before anything is written, that the plan fits; room is made if that helps. Raises JobError."""
        key = str(files)
        with self._room:
            needed = plan.bytes - _allocated(files)
            promised = sum(self._promised.values())
            if needed > 0:
                self.make_room(needed + promised)
                if not space.fits(self._usage(), needed + promised, self.config.policy):
                    raise JobError(
                        f"{space.text(needed)} are needed below {self.config.target}, where "
                        f"{space.text(self._usage().free)} are free, {space.text(promised)} of that for other jobs and "
                        f"{space.text(self.config.policy.reserve_bytes)} as the reserve ('reserve_bytes'); nothing "
                        "more can be removed. Free space, unpin versions or take a larger file system."
                    )
            self._promised[key] = max(needed, 0)
        try:
            yield
        finally:
            with self._room:
                del self._promised[key]

    @contextlib.contextmanager
    def _locked(self, staging_id: str) -> Iterator[None]:
        """The lock is local: a staging folder belongs to one machine. Raises JobError where it is held."""
        folder = self.config.state / "locks"
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / staging_id, "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise JobError("Another process on this machine is copying this model; wait for it.") from None
            yield


def _worker_id(state: Path) -> str:
    """Who this machine is among those that share the target: written once into the local state folder."""
    file = state / "worker-id"
    try:
        state.mkdir(parents=True, exist_ok=True)
        # Whoever links first has named it; everybody reads that.
        new = state / f".worker-id.{uuid.uuid4().hex}"
        new.write_text(uuid.uuid4().hex)
        with contextlib.suppress(FileExistsError):
            os.link(new, file)
        new.unlink()
        return file.read_text()
    except OSError as error:
        raise disk.trouble(error, state) from None


def _allocated(folder: Path) -> int:
    return sum(
        os.lstat(os.path.join(path, name)).st_blocks * 512 for path, _, names in os.walk(folder) for name in names
    )


def _removable_bytes(published: Published) -> int:
    return sum(
        file["size"] for path, file in published.ready["files"].items() if not (published.folder / path).is_symlink()
    )


def _leave_only(files: Path, done: dict[str, Done]) -> None:
    """What an earlier run staged and the source does not hold any more."""
    for path, folders, names in os.walk(files, topdown=False):
        for name in names:
            file = Path(path, name)
            if str(file.relative_to(files)) not in done:
                file.unlink()
        for name in folders:
            with contextlib.suppress(OSError):  # not empty
                Path(path, name).rmdir()


def _described(path: str, file: Done) -> dict[str, Any]:
    checked = ["size"]
    if file.checked:
        checked.append(file.algorithm.lower())
    if file.sha256:
        checked.append("sha256")
    if path.endswith(".safetensors"):
        checked.append("safetensors")
    described: dict[str, Any] = {
        "size": file.size,
        "etag": file.etag,
        file.algorithm.lower(): ALGORITHMS[file.algorithm].text(file.crc),
        "checked": checked,
    }
    if file.sha256:
        described["sha256"] = file.sha256
    if file.version:
        described["version_id"] = file.version
    return described
