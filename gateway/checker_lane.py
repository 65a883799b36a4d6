"""One queue for one child process (`gateway.checker_child`): requests in turn, each within a budget of CPU time.

Knows nothing of what is asked. Whatever goes wrong is one of three exceptions, and the next request finds
a child that works or is started anew.
"""

import asyncio
import os
import signal
import sys
from contextlib import suppress
from typing import Final

from gateway.checker_wire import DIED, HEAD, OVERRUN, message

MAX_WAITING: Final = 64
"""Requests that wait for the child of a lane; one more is refused."""
_START_TIMEOUT: Final = 30.0
"""Seconds; a child needs a quarter of one on a machine at rest."""
_PING: Final = b'{"do":"ping"}'


class Overrun(Exception):
    """The request used up its CPU time."""


class Died(Exception):
    """The request ended two workers, one after the other."""


class Unavailable(Exception):
    """No word on the request; the text says why there is none."""


class Busy(Unavailable):
    """Too many requests wait, or one has waited too long."""


class CannotStart(Unavailable):
    """The child does not start; the text is one sentence with the reason."""


class _Gone(Exception):
    """The child ended, which no request does to it."""


class Lane:
    """`budget` in seconds of CPU for one request, `max_wait` in seconds for the turn of one."""

    def __init__(self, budget: float, max_wait: float) -> None:
        self.budget = budget
        self._max_wait = max_wait
        self._child: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._exchange: asyncio.Task[bytes] | None = None

    async def start(self) -> None:
        """Start the child, which the first request would do too. Raises `CannotStart`."""
        async with self._turn:
            await self._running_child()

    async def close(self) -> None:
        """End the child and the request that it works on."""
        if self._exchange is not None:
            self._exchange.cancel()
            await asyncio.wait([self._exchange])
        await self._stop_child()

    async def ask(self, request: bytes) -> bytes:
        """The child's answer. Raises `Overrun`, `Died`, `Unavailable`."""
        await self._take_turn()
        self._exchange = asyncio.create_task(self._answer(request))
        self._exchange.add_done_callback(lambda _: self._turn.release())
        # Shielded: a client that goes away must not leave half an exchange on the pipes.
        return await asyncio.shield(self._exchange)

    async def _take_turn(self) -> None:
        if self._waiting >= MAX_WAITING:
            raise Busy(f"{self._waiting} requests wait already")
        self._waiting += 1
        try:
            async with asyncio.timeout(self._max_wait):
                await self._turn.acquire()
        except TimeoutError:
            raise Busy(f"{self._max_wait:g} s passed before its turn") from None
        finally:
            self._waiting -= 1

    async def _answer(self, request: bytes) -> bytes:
        try:
            answer = await self._answer_once(request)
            if answer == DIED:  # of the request, or killed by somebody: the second time tells
                answer = await self._answer_once(request)
        except _Gone:
            raise Unavailable("the child ended twice") from None
        except TimeoutError:
            raise Unavailable("the machine is too busy for an answer") from None
        if answer == DIED:
            raise Died
        if answer == OVERRUN:
            raise Overrun
        return answer

    async def _answer_once(self, request: bytes) -> bytes:
        # The child keeps to the budget; this ends one that cannot, on a machine that is far too busy.
        seconds = 10 * self.budget + 5
        try:
            return await self._talk(await self._running_child(), request, seconds)
        except _Gone:
            return await self._talk(await self._running_child(), request, seconds)

    async def _running_child(self) -> asyncio.subprocess.Process:
        if self._child is None or self._child.returncode is not None:
            self._child = await self._started_child()
        return self._child

    async def _started_child(self) -> asyncio.subprocess.Process:
        try:
            self._child = child = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "gateway.checker_child", str(self.budget),
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
                # A group of its own: Ctrl-C in the terminal is for the gateway, which ends the child and its worker.
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise _cannot_start(str(error)) from None
        assert child.stderr is not None
        try:
            answer = await self._talk(child, _PING, _START_TIMEOUT)
        except _Gone:
            said = (await child.stderr.read()).decode(errors="replace").split("\n")
            raise _cannot_start(next((line for line in reversed(said) if line), "it ended at once")) from None
        except TimeoutError:
            raise _cannot_start(f"it did not answer within {_START_TIMEOUT:g} s") from None
        if answer in (DIED, OVERRUN):
            await self._stop_child()
            raise _cannot_start("its worker ended at once")
        return child

    async def _talk(self, child: asyncio.subprocess.Process, request: bytes, seconds: float) -> bytes:
        """One exchange. A child that fails in it is stopped: `_Gone`, `TimeoutError`."""
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            async with asyncio.timeout(seconds):
                child.stdin.write(message(request))
                await child.stdin.drain()
                size = int.from_bytes(await child.stdout.readexactly(HEAD), "big")
                return await child.stdout.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionError):
            await self._stop_child()
            raise _Gone from None
        except BaseException:  # too late or cancelled: the answer would be taken for the next request's
            await self._stop_child()
            raise

    async def _stop_child(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        if child.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
        await child.wait()


def _cannot_start(reason: str) -> CannotStart:
    return CannotStart(f"The schema checker cannot start: {reason.rstrip('.')}.")
