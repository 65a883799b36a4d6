"""A wrong setting is one sentence: the exception that carries it, and how pydantic's findings become one."""

import reprlib
from typing import Any

from pydantic import ValidationError

# Long enough for a path or a URL, short enough for a line of a log.
_SHOWN_CHARACTERS = 200


class SettingsError(Exception):
    """One sentence that names the setting or the file and says what to do."""


def mistake(error: ValidationError, *inside: str) -> tuple[str, str]:
    """The first mistake: its place, such as `models[0].names`, and the end of a sentence that says what is wrong.

    `inside` is the place of the validated value itself. The text of a `ValueError` stands for itself: the
    value, which may hold a password, is then not shown.
    """
    first = error.errors(include_url=False, include_context=False)[0]
    place = ""
    for step in (*inside, *first["loc"]):
        place += f"[{step}]" if isinstance(step, int) else f".{step}" if place else step
    message = first["msg"].replace("Input should be", "it must be")
    match first["type"]:
        case "value_error":
            return place, message.removeprefix("Value error, ")
        case "extra_forbidden":
            return place, "it does not exist"
        case "missing":
            return place, "it is required"
        case "model_type":
            message = "it must be a mapping"
        case "int_type" | "float_type" | "bool_type" if isinstance(first["input"], str):
            message += ", without quotes"
    return place, f"{message[0].lower()}{message[1:]} (got {shown(first['input'])})"


def shown(value: Any) -> str:
    """A value as it can stand in a sentence: on one line and not endless."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = _SHOWN_CHARACTERS
    return short.repr(value)
