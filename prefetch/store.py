"""The target folder: what is published in it, what is pinned, leased and used, what is being staged.

    <target>/<model>/<version>/           a published version: read-only, with READY.json
    <target>/<model>/current              link to the version in use
    <target>/.staging/<id>/               a job's files, journal and READY.json before they are published
    <target>/.prefetch/pins/<name>        a pinned version
    <target>/.prefetch/leases/<name>/<holder>   a lease: JSON with the time at which it ends
    <target>/.prefetch/used/<name>        its time of change is when the version was used last

A version counts as published when its READY.json is there. <name> is `<model>@<version>`, each percent-encoded; a long
one is cut and ends in its digest.
"""

import contextlib
import hashlib
import json
import os
import shutil
import stat
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from prefetch import disk
from prefetch.errors import JobError
from prefetch.names import CURRENT, READY

# Below what a file system takes, with room for the suffix of a new file.
_NAME_CHARACTERS = 200


@dataclass(frozen=True)
class Published:
    model: str
    version: str
    folder: Path
    ready: dict[str, Any]

    @property
    def contents(self) -> dict[str, tuple[int, str]]:
        """Each path with its size and ETag: equal for two copies of the same objects."""
        return {path: (file["size"], file["etag"]) for path, file in self.ready["files"].items()}


class Store:
    """`target` is the folder that the models' folders are in."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self._own = target / ".prefetch"

    def folder(self, model: str, version: str) -> Path:
        return self.target / model / version

    def staging(self, staging_id: str) -> Path:
        return self.target / ".staging" / staging_id

    def published(self, model: str, version: str) -> Published | None:
        folder = self.folder(model, version)
        try:
            ready = json.loads((folder / READY).read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except ValueError:
            raise JobError(f"{folder / READY} is not valid JSON; remove that folder, then retry the job.") from None
        return Published(model, version, folder, ready)

    def all(self) -> list[Published]:
        found = []
        for path in sorted(_ready_files(self.target)):
            model, version = str(path.parent.parent.relative_to(self.target)), path.parent.name
            if published := self.published(model, version):
                found.append(published)
        return found

    def current(self, model: str) -> str | None:
        """The version that the link names."""
        try:
            return os.readlink(self.target / model / CURRENT)
        except OSError:
            return None

    # Pins, leases, use.

    def pin(self, model: str, version: str) -> None:
        _write(self._own / "pins" / _name(model, version), b"")

    def unpin(self, model: str, version: str) -> bool:
        """Whether it was pinned."""
        with contextlib.suppress(FileNotFoundError):
            (self._own / "pins" / _name(model, version)).unlink()
            return True
        return False

    def is_pinned(self, model: str, version: str) -> bool:
        return (self._own / "pins" / _name(model, version)).exists()

    def lease(self, model: str, version: str, holder: str, seconds: float) -> float:
        """Until when (Unix time) the holder uses the version; again prolongs it."""
        until = time.time() + seconds
        _write(
            self._own / "leases" / _name(model, version) / quote(holder, safe=""), json.dumps({"until": until}).encode()
        )
        self.use(model, version)
        return until

    def release(self, model: str, version: str, holder: str) -> bool:
        with contextlib.suppress(FileNotFoundError):
            (self._own / "leases" / _name(model, version) / quote(holder, safe="")).unlink()
            return True
        return False

    def holders(self, model: str, version: str) -> list[str]:
        """Who holds a lease now."""
        now, found = time.time(), []
        with contextlib.suppress(FileNotFoundError):
            for file in (self._own / "leases" / _name(model, version)).iterdir():
                # One that cannot be read is being written.
                try:
                    until = json.loads(file.read_bytes())["until"]
                except (OSError, ValueError):
                    until = now + 1
                if until > now:
                    found.append(unquote(file.name))
        return sorted(found)

    def use(self, model: str, version: str) -> None:
        _write(self._own / "used" / _name(model, version), b"")

    def last_used(self, published: Published) -> float:
        """The latest of: published, leased or announced again, and read, as far as the file system notes that."""
        times = [published.folder.stat().st_ctime]
        with contextlib.suppress(FileNotFoundError):
            times.append((self._own / "used" / _name(published.model, published.version)).stat().st_mtime)
        for path in published.ready["files"]:
            with contextlib.suppress(OSError):
                times.append((published.folder / path).stat().st_atime)
        return max(times)

    # Changes.

    def remove(self, published: Published) -> None:
        """Out of the readers' sight at once, then for good. Raises OSError."""
        grave = self.staging(f"removed-{uuid.uuid4().hex}")
        grave.parent.mkdir(parents=True, exist_ok=True)
        # A folder that cannot be written cannot be moved to another one.
        published.folder.chmod(0o755)
        published.folder.rename(grave)
        remove_tree(grave)
        self.unpin(published.model, published.version)
        shutil.rmtree(self._own / "leases" / _name(published.model, published.version), ignore_errors=True)
        (self._own / "used" / _name(published.model, published.version)).unlink(missing_ok=True)

    def stale_staging(self, older_than: float) -> list[Path]:
        """Staging folders in which nothing was written for so many seconds."""
        limit = time.time() - older_than
        found = []
        with contextlib.suppress(FileNotFoundError):
            for folder in (self.target / ".staging").iterdir():
                if max(path.stat().st_mtime for path in (folder, *folder.glob("*"))) < limit:
                    found.append(folder)
        return sorted(found)


def remove_tree(folder: Path) -> None:
    """Also a read-only one. Raises OSError."""
    for path, _, _ in os.walk(folder):
        os.chmod(path, stat.S_IRWXU)
    shutil.rmtree(folder)


def _ready_files(folder: Path) -> Iterator[Path]:
    """READY.json of each published version; nothing is looked for below one."""
    try:
        entries = list(os.scandir(folder))
    except FileNotFoundError:
        return
    if any(entry.name == READY for entry in entries):
        yield folder / READY
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
            yield from _ready_files(Path(entry.path))


def _name(model: str, version: str) -> str:
    # Each for itself: both may hold "@".
    name = f"{quote(model, safe='')}@{quote(version, safe='')}"
    if len(name) <= _NAME_CHARACTERS:
        return name
    return f"{name[:100]}~{hashlib.sha256(name.encode()).hexdigest()}"


def _write(file: Path, content: bytes) -> None:
    """Whole or not at all; the time of change is now."""
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_name(f".{file.name[:200]}.{uuid.uuid4().hex[:8]}")
    new.write_bytes(content)
    new.rename(file)


def write_durably(file: Path, content: bytes) -> None:
    with open(file, "wb") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())
    disk.sync(file.parent)
