"""The command line: one flag per setting. What is wrong with it is a `SettingsError`."""

import argparse
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from service_base.errors import SettingsError


@dataclass(frozen=True)
class Flag:
    """How a setting is written on the command line: part of its annotation, or of that of a list's items."""

    metavar: str
    name: str = ""
    """Without dashes; the setting's own unless given."""
    default: str = ""
    """As the help shows it, where the default is no plain value."""


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SettingsError(f"{message[0].upper()}{message[1:]}; `{self.prog} --help` shows what can be given.")


def add_flags(flags: argparse.ArgumentParser, settings: type[BaseModel], names: Iterable[str] | None = None) -> None:
    """A flag for each of these settings, or for all, and `--config`. What was not given is `None`."""
    flags.add_argument("--config", metavar="FILE", help="YAML file with settings")
    for name in settings.model_fields if names is None else names:
        field = settings.model_fields[name]
        mark = _mark(field)
        options: dict[str, Any] = {"dest": name, "help": _help(field), "default": None}
        if field.annotation is bool:
            options["action"] = argparse.BooleanOptionalAction
        elif get_origin(field.annotation) is Literal:
            options["metavar"] = "{" + ",".join(get_args(field.annotation)) + "}"
        else:
            options["metavar"] = mark.metavar
            # JSON holds the whole list.
            if get_origin(field.annotation) is list and mark.metavar != "JSON":
                options["action"] = "append"
        flags.add_argument(flag_name(settings, name), **options)


def flag_name(settings: type[BaseModel], name: str) -> str:
    """The flag of a setting, such as `--log-level`."""
    return "--" + (_mark(settings.model_fields[name]).name or name).replace("_", "-")


def _mark(field: FieldInfo) -> Flag:
    return next(_marks(field), Flag("VALUE"))


def _marks(field: FieldInfo) -> Iterator[Flag]:
    inner = (mark for kind in get_args(field.annotation) for mark in getattr(kind, "__metadata__", ()))
    return (mark for mark in (*field.metadata, *inner) if isinstance(mark, Flag))


def _help(field: FieldInfo) -> str:
    default = field.default
    text = _mark(field).default or (", ".join(default) if isinstance(default, list) else default)
    is_nothing = default is None or default is False or default in ([], {})
    said = "" if is_nothing else f" (default: {text})"
    return f"{field.description}{said}".replace("%", "%%")
