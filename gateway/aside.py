"""Work on a large body, done beside the event loop.

Parsing and rendering megabytes takes tens of milliseconds, in which no stream would get its tokens. From a thread the
loop gets the interpreter back a switch interval after it has asked for it, once the call that runs then has returned:
so each call is for a piece (`gateway.openai.pieces`, `gateway.openai.giving_way`).
"""

import asyncio
import contextvars
import ctypes
import gc
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from gateway.openai.errors import ApiError, forget_where
from gateway.openai.giving_way import empty, is_aside
from gateway.openai.schema import LARGE_BODY

_T = TypeVar("_T")

_SWITCH_INTERVAL_S = 0.0005
_MIDDLE_COLLECTIONS = 500
"""Between two of all generations: some millions of objects are made meanwhile."""
_YOUNG_OBJECTS = 700
"""Between two of the youngest, while a large body is worked on: a hundred thousand objects that stay are looked at in
parts of a millisecond each."""
_KEPT_S = 5.0
"""Without a large body."""
_libc = ctypes.CDLL(None)
# From malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 32 * 1024 * 1024


def switch_early() -> None:
    """Have threads give way to the loop sooner than Python's 5 ms, and the collector look at all that is alive more
    seldom than whenever a large body has come, which takes it 10 ms. Once, at the start."""
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, _MIDDLE_COLLECTIONS)


def keep_freed_memory() -> None:
    """Have glibc keep what large bodies took for the next ones: memory that is new costs more, by the page, than all
    else that is done with it. Where there is another C library nothing changes. Once, at the start."""
    if hasattr(_libc, "mallopt"):
        _libc.mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES)
        _libc.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


class _Quiet:
    """Gives back what is kept, once no large body has come for a while."""

    def __init__(self) -> None:
        self._ends: asyncio.TimerHandle | None = None

    def begins(self) -> None:
        """Anew."""
        if self._ends is not None:
            self._ends.cancel()
        self._ends = asyncio.get_running_loop().call_later(_KEPT_S, _thread.submit, _give_back)


def _give_back() -> None:
    if hasattr(_libc, "malloc_trim"):
        _libc.malloc_trim(0)


# One for all: of several that have work, any may get the interpreter when one gives it back, ahead of the loop.
_thread = ThreadPoolExecutor(1, "aside")
_quiet = _Quiet()


async def aside(size: int, work: Callable[[], _T]) -> _T:
    """What `work` returns or raises; `size` is that of the request's body."""
    if size < LARGE_BODY:
        return work()
    _quiet.begins()
    context = contextvars.copy_context()
    context.run(is_aside.set, True)
    return await asyncio.get_running_loop().run_in_executor(_thread, context.run, _collecting_often, work)


def _collecting_often(work: Callable[[], _T]) -> _T:
    young, middle, old = gc.get_threshold()
    gc.set_threshold(min(young, _YOUNG_OBJECTS), middle, old)
    try:
        return work()
    except ApiError as error:
        forget_where(error)
        raise error from None
    finally:
        gc.set_threshold(young, middle, old)


def drop(size: int, value: Any) -> None:
    """Free a value of which nobody uses any part any more; `size` as in `aside`."""
    if size >= LARGE_BODY:
        _thread.submit(empty, value)
