"""Several generations as one: the choices of a request, each a request of its own to the engine.

One that fails ends them all, with an error that says which; all are cancelled together. A client that
reads slowly pauses every one of them.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from gateway.openai.errors import ApiError
from gateway.triton.contract import Delta
from gateway.triton.generate import Borrower
from gateway.triton.generation import Generation, Lent

News = list[tuple[int, list[Delta] | None]]
"""(number of the generation, what came of it; None: it has ended), in the order in which it came."""


class FanOut:
    """`open()`, then `each()`, and `close()` always. With one generation it adds nothing: no task, no queue."""

    def __init__(self, generations: Sequence[Generation]) -> None:
        self._generations = generations
        self._unfinished = len(generations)
        self._cancelled: Exception | None = None
        self._failure: Exception | None = None
        self._pumps: list[asyncio.Task[None]] = []
        self._queue: asyncio.Queue[tuple[int, list[Delta] | Exception | None]]

    @property
    def waits(self) -> bool:
        """Whether something is to come from the engine; else the client keeps it from coming."""
        return any(generation.waits for generation in self._generations)

    @property
    def connect_seconds(self) -> float:
        """The longest of them, once open; 0.0 where kept connections were used."""
        return max(generation.connect_seconds for generation in self._generations)

    async def open(self) -> None:
        """Send all requests and wait until each is admitted. Until then a refusal is a real status."""
        if len(self._generations) == 1:
            await self._generations[0].open()
            return
        # One entry each: a generation waits until its last one has been taken.
        self._queue = asyncio.Queue(len(self._generations))
        opening = [asyncio.create_task(generation.open()) for generation in self._generations]
        try:
            await asyncio.wait(opening, return_when=asyncio.FIRST_EXCEPTION)
            for number, task in enumerate(opening):
                if task.done() and (error := task.exception()) is not None:
                    raise self._named(error, number)
        finally:
            for task in opening:
                task.cancel()
            await asyncio.gather(*opening, return_exceptions=True)
        self._pumps = [asyncio.create_task(self._pump(*numbered)) for numbered in enumerate(self._generations)]

    async def each(self, take: Callable[[News], Awaitable[None] | None]) -> None:
        """Have `take` called with what came, until all have ended; what it returns is waited for before it gets more.
        A failure is raised after what came before it."""
        if len(self._generations) == 1:
            await self._generations[0].each(lambda deltas: take([(0, deltas)]))
            return
        while news := await self._next():
            if (wait := take(news)) is not None:
                await wait

    async def _next(self) -> News:
        if self._failure is not None:
            raise self._failure
        if not self._unfinished:
            return []
        news: News = []
        entry = await self._queue.get()
        while True:
            number, what = entry
            if isinstance(what, Exception):
                self._failure = self._named(what, number)
                break
            self._unfinished -= what is None
            news.append((number, what))
            if self._queue.empty():
                return news
            entry = self._queue.get_nowait()
        if not news:
            raise self._failure
        return news

    @property
    def can_lend(self) -> bool:
        return len(self._generations) == 1 and self._generations[0].can_lend

    def lend(self, borrower: Borrower) -> Lent | None:
        """`Generation.lend` of the only one."""
        return self._generations[0].lend(borrower)

    def cancel(self, reason: Exception) -> None:
        """Stop the engine's work; whoever waits in `open` or `next` gets `reason`."""
        self._cancelled = self._cancelled or reason
        for generation in self._generations:
            generation.cancel(reason)

    def close(self) -> None:
        for pump in self._pumps:
            pump.cancel()
        for generation in self._generations:
            generation.close()

    async def _pump(self, number: int, generation: Generation) -> None:
        try:
            while (deltas := await generation.deltas()) is not None:
                await self._queue.put((number, deltas))
            await self._queue.put((number, None))
        except Exception as error:
            await self._queue.put((number, error))

    def _named(self, error: BaseException, number: int) -> Exception:
        """The error as the client sees it: a choice's own failure says whose it is."""
        if self._cancelled is not None:
            return self._cancelled
        if isinstance(error, ApiError):
            return error.of(f"Choice {number}")
        assert isinstance(error, Exception)
        return error
