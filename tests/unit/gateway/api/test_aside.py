"""A large body is worked on in a thread, a small one at once; either way the result and the failure come through."""

import asyncio
import threading

import pytest

from gateway.api.aside import aside
from gateway.openai.schema import LARGE_BODY


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
