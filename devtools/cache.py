"""Folders that are made once and kept: an environment, the unpacked server, a model.

A folder counts as there only if its marker is, and the marker is written last. Whoever makes it holds a file lock that
the kernel releases when the last process of the making is gone, so an interrupted making is begun anew and two commands
at the same time make one folder.
"""

import fcntl
import hashlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from devtools.progress import step

_MARKER = ".complete"

Say = Callable[[str], None]


@dataclass(frozen=True)
class Making:
    """What a maker is given: where to make it, how to say how far it is, a log, and the lock to hand to children."""

    folder: Path
    say: Say
    log: Path
    lock: int


def is_made(folder: Path) -> bool:
    return (folder / _MARKER).exists()


def ensure(folder: Path, title: str, make: Callable[[Making], None]) -> Path:
    """Makes `folder` with `make` unless it is there; returns it."""
    if is_made(folder):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with step(title) as say, open(folder.with_name(f"{folder.name}.lock"), "wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another ./dev that makes it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_made(folder):
            if folder.exists():
                shutil.rmtree(folder)
            folder.mkdir()
            make(Making(folder, say, folder.with_name(f"{folder.name}.log"), lock.fileno()))
            (folder / _MARKER).touch()
    return folder


def key(*parts: str | bytes) -> str:
    """A short name for a folder's inputs: change one and another folder is made."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()[:12]
