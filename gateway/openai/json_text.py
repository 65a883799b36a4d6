"""JSON text of values that a client wrote, with integers of any size: orjson knows those of 64 bits only. Pure."""

import json
from typing import Any

import orjson
from pydantic_core import from_json

from gateway.openai import pieces


def dumps(value: Any) -> bytes:
    """The value as JSON. Its numbers must be finite, since orjson writes `null` for those that are not."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def loads(text: str | bytes) -> Any:
    """The value of JSON text, read as a request's body is: at most 200 levels, and a number that no double
    can hold becomes infinite. Raises `ValueError`."""
    if len(text) > pieces.PIECE:
        try:
            return pieces.from_json(text.encode() if isinstance(text, str) else text, allow_inf_nan=True)
        except pieces.TooMuch:
            raise
        except ValueError:
            # Also where a name stands twice, of which the last one counts here; another mistake is told in its words.
            pass
    return from_json(text)
