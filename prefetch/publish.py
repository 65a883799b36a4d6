"""Makes a verified staging folder the published one. A reader sees the whole model or nothing of it.

    .staging/<id>/READY.json is written → all is synced and made read-only → .staging/<id>/files is renamed to
    <model>/<version> → READY.json is moved into it → <model>/current is set

Each step is one rename; after a crash between two of them, the next run goes on with the one that is missing.
"""

import contextlib
import json
import os
import shutil
import threading
import time
import uuid
from pathlib import Path
from typing import Any

from prefetch import disk
from prefetch.errors import JobError
from prefetch.names import CURRENT, READY
from prefetch.store import Published, Store, write_durably

# Of the jobs of one process, one at a time finds its place: the model `a/1` must not slip into version 1 of `a`.
_PLACING = threading.Lock()
# How long another machine may take between its rename and its READY.json.
_OTHER_SECONDS = 30


def publish(store: Store, model: str, version: str, staging: Path, ready: dict[str, Any]) -> Published:
    """`staging` holds `files`, verified. Raises JobError, OSError.

    A version that is there already is never changed: the same contents are taken as done, others are an error.
    """
    files, final = staging / "files", store.folder(model, version)
    write_durably(staging / READY, json.dumps(ready, indent=1, ensure_ascii=False).encode() + b"\n")
    _make_read_only(files)
    disk.sync_all(files)
    with _PLACING:
        _check_place(store, model)
        final.parent.mkdir(parents=True, exist_ok=True)
        try:
            files.rename(final)
        except OSError:
            if not final.exists():
                raise
        else:
            disk.sync(final.parent)
            return _finish(store, model, version, staging)
    return _already_there(store, model, version, staging, ready)


def resume(store: Store, model: str, version: str, staging: Path) -> Published | None:
    """Finish what a crash interrupted after the rename; None if there is nothing of that kind."""
    if (staging / READY).exists() and not (staging / "files").exists() and store.folder(model, version).exists():
        return _finish(store, model, version, staging)
    return None


def set_current(store: Store, model: str, version: str, announced: float) -> bool:
    """Let `current` name this version, unless it names one that was announced later; whether it does.

    The link's own time of change holds when its version was announced.
    """
    link = store.target / model / CURRENT
    with contextlib.suppress(FileNotFoundError):
        if os.readlink(link) != version and link.lstat().st_mtime > announced:
            return False
    new = link.with_name(f".{CURRENT}.{uuid.uuid4().hex[:8]}")
    new.symlink_to(version)
    os.utime(new, (announced, announced), follow_symlinks=False)
    new.rename(link)
    disk.sync(link.parent)
    return True


def check_same(published: Published, contents: dict[str, tuple[int, str]]) -> None:
    """Raises JobError if what is published is something else than the objects that are announced."""
    if published.contents != contents:
        changed = sorted(
            path for path in published.contents.keys() | contents.keys()
            if published.contents.get(path) != contents.get(path)
        )  # fmt: skip
        raise JobError(
            f"{published.folder} is published with other contents ({changed[0]} differs); a version does not change: "
            "announce another version, or remove that folder."
        )


def _finish(store: Store, model: str, version: str, staging: Path) -> Published:
    final = store.folder(model, version)
    (staging / READY).chmod(0o444)
    (staging / READY).rename(final / READY)
    disk.sync(final)
    final.chmod(0o555)
    shutil.rmtree(staging)
    published = store.published(model, version)
    assert published
    return published


def _already_there(store: Store, model: str, version: str, staging: Path, ready: dict[str, Any]) -> Published:
    final = store.folder(model, version)
    until = time.monotonic() + _OTHER_SECONDS
    while (there := store.published(model, version)) is None:
        if time.monotonic() > until:
            raise JobError(f"{final} is there and is no published model: it has no {READY}. Remove it, then retry.")
        time.sleep(0.2)
    check_same(there, {path: (file["size"], file["etag"]) for path, file in ready["files"].items()})
    shutil.rmtree(staging)
    return there


def _check_place(store: Store, model: str) -> None:
    folder = store.target
    for part in model.split("/"):
        folder = folder / part
        if (folder / READY).exists():
            raise JobError(f"The model {model!r} would lie inside the published {folder}; give it another name.")


def _make_read_only(folder: Path) -> None:
    """Files and folders below `folder`; itself it stays writable until it is in its place."""
    for path, _, names in os.walk(folder, topdown=False):
        for name in names:
            file = os.path.join(path, name)
            if not os.path.islink(file):
                os.chmod(file, 0o444)
        os.chmod(path, 0o755 if Path(path) == folder else 0o555)
