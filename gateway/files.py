"""The files that settings name, read once, at start. Whatever is wrong with one is a `SettingsError` that names it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import yaml

from gateway.settings_error import SettingsError, shown

_Value = TypeVar("_Value")


def read_text(file: Path) -> str | None:
    """The text of a UTF-8 file; `None` where it is not there."""
    return _asked(file, lambda: _text(file))


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object; an empty one where the file is not there."""
    text = read_text(file)
    return {} if text is None else _mapping(file, text, "JSON", json.loads)


def read_yaml(file: Path) -> dict[str, Any]:
    """A YAML mapping, empty where the file holds nothing. Every key is text and stands there once."""
    text = read_text(file)
    if text is None:
        raise SettingsError(f"{_name(file)} cannot be read: it does not exist.")
    return _mapping(file, text, "YAML", _yaml)


def is_folder(path: Path) -> bool:
    return _asked(path, path.is_dir)


def entries(folder: Path) -> list[Path]:
    """What lies in a folder, by name."""
    return _asked(folder, lambda: sorted(folder.iterdir()))


def _asked(path: Path, ask: Callable[[], _Value]) -> _Value:
    try:
        return ask()
    except UnicodeDecodeError:
        raise SettingsError(f"{_name(path)} cannot be read: it is not UTF-8 text.") from None
    except OSError as error:
        raise SettingsError(f"{_name(path)} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        # A path with a null character.
        raise SettingsError(f"{_name(path)} cannot be read: {error}.") from None


def _text(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        # A link that leads nowhere is a mistake, not an absent file.
        if file.is_symlink():
            raise
        return None


def _mapping(file: Path, text: str, language: str, parse: Callable[[str], Any]) -> dict[str, Any]:
    try:
        value = parse(text)
    except RecursionError:
        raise SettingsError(f"{_name(file)} is nested too deeply.") from None
    except (ValueError, yaml.YAMLError) as error:
        raise SettingsError(f"{_name(file)} is not valid {language}: {_reason(error)}.") from None
    if not isinstance(value, dict):
        kind = "object" if language == "JSON" else "mapping"
        raise SettingsError(f"{_name(file)} must hold a {language} {kind}.")
    return value


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


def _yaml(text: str) -> Any:
    content = yaml.load(text, _Loader)  # a SafeLoader
    return {} if content is None else content
