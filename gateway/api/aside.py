"""Work on a large body, done beside the event loop.

Parsing and rendering megabytes takes tens of milliseconds, in which no stream would get its tokens. From a thread the
loop gets the interpreter back a switch interval after it has asked for it, once the call that runs then has returned:
so each call is for a piece (`gateway.openai.pieces`, `gateway.openai.giving_way`).
"""

import asyncio
import sys
from collections.abc import Callable
from typing import TypeVar

from gateway.openai.schema import LARGE_BODY

_T = TypeVar("_T")

_SWITCH_INTERVAL_S = 0.001


def switch_early() -> None:
    """Have threads give way to the loop sooner than Python's 5 ms. Once, at the start."""
    sys.setswitchinterval(_SWITCH_INTERVAL_S)


async def aside(size: int, work: Callable[[], _T]) -> _T:
    """What `work` returns or raises; `size` is that of the request's body."""
    return work() if size < LARGE_BODY else await asyncio.to_thread(work)
