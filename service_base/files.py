"""The files that settings name: those read at start, and whether those can be that are written later. Whatever is wrong
with one is a `SettingsError` that names it."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import yaml

from service_base.errors import SettingsError, shown

_Value = TypeVar("_Value")


def read_text(file: Path) -> str:
    """The text of a UTF-8 file."""
    return asked(file, lambda: file.read_text(encoding="utf-8"))


def read_yaml(file: Path) -> dict[str, Any]:
    """A YAML mapping, empty where the file holds nothing. Every key is text and stands there once."""
    content = parsed(file, read_text(file), "YAML", lambda text: yaml.load(text, _Loader))  # a SafeLoader
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise SettingsError(f"{_name(file)} must hold a YAML mapping.")
    return content


def asked(path: Path, ask: Callable[[], _Value]) -> _Value:
    """What the file system answers to a question about this path."""
    try:
        return ask()
    except UnicodeDecodeError:
        raise SettingsError(f"{_name(path)} cannot be read: it is not UTF-8 text.") from None
    except OSError as error:
        raise SettingsError(f"{_name(path)} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        # A path with a null character.
        raise SettingsError(f"{_name(path)} cannot be read: {error}.") from None


def unwritable(folder: Path) -> str | None:
    """Why no file can be made in this folder, and what to do, as a part of a sentence; `None` where one can. It is
    tried, since permissions are not all that may be in the way."""
    try:
        if not folder.is_dir():
            return f"there is no folder {_name(folder)}; make it"
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        return f"the folder {_name(folder)} cannot be written: {error.strerror}; let this user write there"
    return None


def check_written_later(setting: str, file: Path) -> None:
    """For the setting of a file that is not written before something has happened."""
    if why := unwritable(file.parent):
        raise SettingsError(f"The setting {setting!r} is wrong: {why}, or give another file.")


def parsed(file: Path, text: str, language: str, parse: Callable[[str], Any]) -> Any:
    """What the text of a file says in its language."""
    try:
        return parse(text)
    except RecursionError:
        raise SettingsError(f"{_name(file)} is nested too deeply.") from None
    except (ValueError, yaml.YAMLError) as error:
        raise SettingsError(f"{_name(file)} is not valid {language}: {_reason(error)}.") from None


def _reason(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
        return f"line {error.problem_mark.line + 1}: {error.problem}"
    return " ".join(str(error).split())


def _name(path: Path) -> str:
    text = str(path)
    return text if text.isprintable() and len(text) < 500 else shown(text)


class _Loader(yaml.SafeLoader):
    """YAML's own rules let the last of two equal keys win, and a key be a number."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                continue
            if key.tag != "tag:yaml.org,2002:str":
                raise yaml.constructor.ConstructorError(None, None, "a key must be text", key.start_mark)
            if key.value in seen:
                problem = f"the key {shown(key.value)} stands there twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)
