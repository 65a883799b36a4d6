"""Waiting for a condition, and no longer: tests depend on no time of the machine, which may pause."""

import time
from collections.abc import Callable
from typing import TypeVar

_Value = TypeVar("_Value")
_LIMIT_SECONDS = 90


def wait_for(
    condition: Callable[[], _Value | None],
    what: str = "what must come to hold",
    seconds: float = _LIMIT_SECONDS,
    pause: float = 0.02,
) -> _Value:
    """The condition's value, once it is true; it is tried again after `pause` seconds."""
    give_up_at = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < give_up_at, f"waited too long for {what}"
        time.sleep(pause)
    return value
