"""The files of a model and of the model repository: what is absent has a default, what cannot be read is never taken
for absent. Whatever is wrong with one is a `SettingsError` that names it.

What was looked at can be noted, so that it is known when another look would see something else.
"""

import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple

from service_base.errors import SettingsError
from service_base.files import asked, parsed


class Look(NamedTuple):
    """What was looked at: the whole of a file or folder, or only what kind of thing is there."""

    path: Path
    whole: bool


State = tuple[int, ...]
"""What differs when another look would see something else: a file was written or replaced (a link's is its target's),
became readable, or is gone."""

_noted: ContextVar[dict[Look, State] | None] = ContextVar("noted", default=None)


@contextmanager
def noting() -> Iterator[dict[Look, State]]:
    """Notes what is looked at meanwhile, whatever comes of it, each with its state just before."""
    looks: dict[Look, State] = {}
    token = _noted.set(looks)
    try:
        yield looks
    finally:
        _noted.reset(token)


def state(look: Look) -> State:
    """Its state now. Reads nothing, so that it costs little on a network's file system."""
    try:
        found = os.stat(look.path)
    except OSError as error:
        return (error.errno or 0,)
    except ValueError:
        return (0,)
    if not look.whole:
        return (stat.S_IFMT(found.st_mode),)
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def read_text(file: Path) -> str | None:
    """The text of a UTF-8 file; `None` where it is not there."""
    _note(file, whole=True)
    return asked(file, lambda: _text(file))


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object; an empty one where the file is not there."""
    text = read_text(file)
    if text is None:
        return {}
    value = parsed(file, text, "JSON", json.loads)
    if not isinstance(value, dict):
        raise SettingsError(f"{file} must hold a JSON object.")
    return value


def is_folder(path: Path) -> bool:
    _note(path, whole=False)
    return asked(path, path.is_dir)


def entries(folder: Path) -> list[Path]:
    """What lies in a folder, by name."""
    _note(folder, whole=True)
    return asked(folder, lambda: sorted(folder.iterdir()))


def _note(path: Path, *, whole: bool) -> None:
    looks = _noted.get()
    if looks is not None:
        look = Look(path, whole)
        looks.setdefault(look, state(look))


def _text(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        # A link that leads nowhere is a mistake, not an absent file.
        if file.is_symlink():
            raise
        return None
