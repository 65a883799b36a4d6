"""A large body is worked on in a thread, a small one at once; either way the result and the failure come through."""

import asyncio
import gc
import subprocess
import sys
import threading
import time
import weakref

import pytest

from gateway import aside as aside_module
from gateway.aside import aside
from gateway.openai.errors import ApiError, bad_request
from gateway.openai.giving_way import is_aside
from gateway.openai.schema import LARGE_BODY


class Held:
    """What a frame holds."""


async def where(size: int) -> int:
    return await aside(size, threading.get_ident)


async def test_a_small_body_is_worked_on_at_once() -> None:
    assert await where(LARGE_BODY - 1) == threading.get_ident()


async def test_the_loop_goes_on_while_a_large_body_is_worked_on() -> None:
    assert await where(LARGE_BODY) != threading.get_ident()
    released = threading.Event()
    working = asyncio.create_task(aside(LARGE_BODY, lambda: released.wait(60)))
    await asyncio.sleep(0)
    # Had the work the loop, nothing would ever release it.
    released.set()
    assert await working


@pytest.mark.parametrize("size", [0, LARGE_BODY])
async def test_a_failure_comes_through(size: int) -> None:
    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await aside(size, fail)


async def test_who_works_beside_the_loop_knows() -> None:
    assert not await aside(LARGE_BODY - 1, is_aside.get)
    assert await aside(LARGE_BODY, is_aside.get)
    assert not is_aside.get()


async def test_the_collector_looks_often_at_what_a_large_body_leaves() -> None:
    before = gc.get_threshold()
    gc.set_threshold(20_000)
    try:
        assert (await aside(LARGE_BODY, gc.get_threshold))[0] <= 700
        assert gc.get_threshold()[0] == 20_000
    finally:
        gc.set_threshold(*before)


def test_memory_that_large_bodies_took_is_kept() -> None:
    script = """
import resource
from gateway.aside import _give_back, keep_freed_memory

def new_pages():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    assert len(b"x" * 8_000_000) == 8_000_000
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

keep_freed_memory()
new_pages()
print(new_pages())
_give_back()
print(new_pages())
"""
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    kept, given_back = map(int, said.stdout.split())
    assert kept < 100
    assert given_back > 1000


async def test_it_is_given_back_once_no_large_body_has_come_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    given_back: list[float] = []
    monkeypatch.setattr(aside_module, "_KEPT_S", 0.2)
    monkeypatch.setattr(aside_module, "_give_back", lambda: given_back.append(time.monotonic()))
    for _ in range(3):
        await asyncio.sleep(0.05)
        await aside(LARGE_BODY, int)
        last = time.monotonic()
    await aside(LARGE_BODY - 1, int)
    await asyncio.sleep(1)
    (at,) = given_back
    assert at - last >= 0.15


async def test_a_refusal_keeps_nothing_of_the_body() -> None:
    def refuse() -> None:
        value = Held()
        held.append(weakref.ref(value))
        try:
            raise ValueError("of the parser")
        except ValueError:
            raise bad_request("no") from None

    held: list[weakref.ref[Held]] = []
    gc.disable()
    try:
        with pytest.raises(ApiError, match="no"):
            await aside(LARGE_BODY, refuse)
        assert held[0]() is None
    finally:
        gc.enable()
