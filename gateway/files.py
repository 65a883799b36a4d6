"""The files of a model and of the model repository, read once, at start: what is absent has a default, what cannot be
read is never taken for absent. Whatever is wrong with one is a `SettingsError` that names it."""

import json
from pathlib import Path
from typing import Any

from service_base.errors import SettingsError
from service_base.files import asked, parsed


def read_text(file: Path) -> str | None:
    """The text of a UTF-8 file; `None` where it is not there."""
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
    return asked(path, path.is_dir)


def entries(folder: Path) -> list[Path]:
    """What lies in a folder, by name."""
    return asked(folder, lambda: sorted(folder.iterdir()))


def _text(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        # A link that leads nowhere is a mistake, not an absent file.
        if file.is_symlink():
            raise
        return None
