"""The files that settings name, read at start. Whatever is wrong with one is a `SettingsError` that names it."""

from pathlib import Path
from typing import Any

import yaml

from prefetch.settings_error import SettingsError, shown


def read_text(file: Path) -> str:
    """The text of a UTF-8 file."""
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise SettingsError(f"{file} cannot be read: it is not UTF-8 text.") from None
    except OSError as error:
        raise SettingsError(f"{file} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        # A path with a null character.
        raise SettingsError(f"{str(file)!r} cannot be read: {error}.") from None


def read_yaml(file: Path) -> dict[str, Any]:
    """A YAML mapping, empty where the file holds nothing. Every key is text and stands there once."""
    try:
        value = yaml.load(read_text(file), _Loader)  # a SafeLoader
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise SettingsError(f"{file} is not valid YAML: {line}{error.problem}.") from None
    except yaml.YAMLError as error:
        raise SettingsError(f"{file} is not valid YAML: {' '.join(str(error).split())}.") from None
    except RecursionError:
        raise SettingsError(f"{file} is nested too deeply.") from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise SettingsError(f"{file} must hold a YAML mapping.")
    return value


class _Loader(yaml.SafeLoader):
    """YAML's own rules let the last of two equal keys win, and a key be a number."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if key.tag != "tag:yaml.org,2002:str":
                raise yaml.constructor.ConstructorError(None, None, "a key must be text", key.start_mark)
            if key.value in seen:
                problem = f"the key {shown(key.value)} stands there twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)
