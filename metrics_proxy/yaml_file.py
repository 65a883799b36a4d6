"""The YAML file with settings. Whatever is wrong with it is a `SettingsError` that names it."""

from pathlib import Path
from typing import Any

import yaml

from metrics_proxy.settings_error import SettingsError, shown


def read_yaml(file: Path) -> dict[str, Any]:
    """A YAML mapping, empty where the file holds nothing. Every key is text and stands there once."""
    name = str(file) if str(file).isprintable() and len(str(file)) < 500 else shown(str(file))
    try:
        content = yaml.load(file.read_text(encoding="utf-8"), _Loader)  # a SafeLoader
    except UnicodeDecodeError:
        raise SettingsError(f"{name} cannot be read: it is not UTF-8 text.") from None
    except OSError as error:
        raise SettingsError(f"{name} cannot be read: {error.strerror}.") from None
    except RecursionError:
        raise SettingsError(f"{name} is nested too deeply.") from None
    except (ValueError, yaml.YAMLError) as error:
        raise SettingsError(f"{name} is not valid YAML: {_reason(error)}.") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise SettingsError(f"{name} must hold a YAML mapping.")
    return content


def _reason(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
        return f"line {error.problem_mark.line + 1}: {error.problem}"
    return " ".join(str(error).split())


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
