"""Ids of calls, in the forms that the families' templates take back in the next turn."""

import secrets
import string
from typing import Final

_ALPHANUMERICS: Final = string.ascii_letters + string.digits


def _random(length: int) -> str:
    return "".join(secrets.choice(_ALPHANUMERICS) for _ in range(length))


def make_call_id(name: str, index: int) -> str:
    return "call_" + _random(24)


def make_mistral_id(name: str, index: int) -> str:
    return _random(9)


def make_kimi_id(name: str, index: int) -> str:
    """`index` counts the calls of the whole conversation."""
    return f"functions.{name}:{index}"
