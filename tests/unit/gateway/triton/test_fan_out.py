"""Several generations as one, for every order in which things can come: each choice's own order is kept, nothing is
lost, a failure comes after what came before it."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.openai.errors import ApiError, internal_error, unavailable
from gateway.triton.contract import Delta
from gateway.triton.fan_out import FanOut, News
from gateway.triton.generation import Generation

Step = str | Exception
"""What a generation gives next: a text, or how it fails. After the last one it ends."""


class Scripted:
    """A generation whose next thing comes when the test lets it: first the admission, then its steps, then the end."""

    def __init__(self, steps: Sequence[Step] = ()) -> None:
        self._steps = list(steps)
        self._allowed = asyncio.Semaphore(0)
        self._cancelled: Exception | None = None
        self.taken = 0
        self.is_open = False
        self.closed = 0

    def go_on(self) -> None:
        self._allowed.release()

    async def _wait(self) -> None:
        await self._allowed.acquire()
        if self._cancelled is not None:
            raise self._cancelled

    async def open(self) -> None:
        await self._wait()
        if self._steps and isinstance(self._steps[0], _Refused):
            raise self._steps[0].error
        self.is_open = True

    async def deltas(self) -> list[Delta] | None:
        self.taken += 1
        await self._wait()
        if not self._steps:
            return None
        step = self._steps.pop(0)
        if isinstance(step, Exception):
            self.cancel(step)
            raise step
        return [Delta(step, None, 0, 1)]

    async def each(self, take: Callable[[list[Delta] | None], Awaitable[None] | None]) -> None:
        deltas: list[Delta] | None = []
        while deltas is not None:
            deltas = await self.deltas()
            if (wait := take(deltas)) is not None:
                await wait

    def cancel(self, reason: Exception) -> None:
        self._cancelled = self._cancelled or reason
        self.go_on()

    def close(self) -> None:
        self.closed += 1


class _Refused(Exception):
    """Fails before its admission."""

    def __init__(self, error: Exception) -> None:
        self.error = error


def fan_out(*generations: Scripted) -> FanOut:
    return FanOut(cast(list[Generation], list(generations)))


async def opened(*generations: Scripted) -> FanOut:
    one = fan_out(*generations)
    for generation in generations:
        generation.go_on()
    await one.open()
    return one


async def settled() -> None:
    """Let every task go as far as it can."""
    for _ in range(20):
        await asyncio.sleep(0)


class Reader:
    """Reads a fan-out to its end, and keeps what came per choice."""

    def __init__(self, source: FanOut, count: int) -> None:
        self._source = source
        self.texts: list[list[str]] = [[] for _ in range(count)]
        self.ended: list[int] = []
        self.failure: Exception | None = None

    async def read(self) -> None:
        try:
            await self._source.each(self._take)
        except ApiError as error:
            self.failure = error

    def _take(self, news: News) -> None:
        for number, deltas in news:
            assert number not in self.ended
            if deltas is None:
                self.ended.append(number)
            else:
                assert deltas
                self.texts[number] += [delta.text for delta in deltas]


async def play(scripts: list[list[str]], failing: int | None, order: list[tuple[int, bool]]) -> None:
    """`order`: whose next thing comes, and whether the reader gets a turn after it. The generation `failing` fails at
    its end."""
    steps: list[list[Step]] = [list(script) for script in scripts]
    if failing is not None:
        steps[failing].append(unavailable("gone"))
    generations = [Scripted(script) for script in steps]
    source = await opened(*generations)
    reader = Reader(source, len(scripts))
    reading = asyncio.create_task(reader.read())
    came: list[list[str]] = [[] for _ in scripts]
    left = [[*script, None] for script in scripts]
    failed = False
    for number, pauses in order:
        if not left[number] or failed:
            continue
        thing = left[number].pop(0)
        generations[number].go_on()
        if pauses:
            await settled()
        if thing is not None:
            came[number].append(thing)
        elif number == failing:
            failed = True
    if failing is None or failed:
        async with asyncio.timeout(10):
            await reading
    source.close()
    await settled()
    assert [generation.closed for generation in generations] == [1] * len(generations)
    if failing is None:
        assert reader.texts == scripts
        assert sorted(reader.ended) == list(range(len(scripts)))
        assert reader.failure is None
        return
    assert isinstance(reader.failure, ApiError)
    assert reader.failure.status == 503
    expected = "gone" if len(scripts) == 1 else f"Choice {failing}: gone"
    assert reader.failure.message == expected
    assert reader.texts[failing] == scripts[failing]
    for got, sent in zip(reader.texts, came, strict=True):
        assert got == sent[: len(got)]


@st.composite
def plays(draw: st.DrawFn) -> tuple[list[list[str]], int | None, list[tuple[int, bool]]]:
    counts = draw(st.lists(st.integers(0, 5), min_size=1, max_size=5))
    scripts = [[f"{choice}.{number}" for number in range(count)] for choice, count in enumerate(counts)]
    failing = draw(st.none() | st.integers(0, len(counts) - 1))
    # Everyone's steps and its end, in any order.
    turns = [choice for choice, count in enumerate(counts) for _ in range(count + 1)]
    order = [(choice, draw(st.booleans())) for choice in draw(st.permutations(turns))]
    return scripts, failing, order


@given(plays())
def test_any_order_loses_nothing(drawn: tuple[list[list[str]], int | None, list[tuple[int, bool]]]) -> None:
    asyncio.run(play(*drawn))


async def test_what_others_said_before_a_failure_is_given_first() -> None:
    talking, failing = Scripted(["a", "b"]), Scripted([internal_error("it broke")])
    source = await opened(talking, failing)
    for generation in (talking, talking, failing):
        generation.go_on()
        await settled()
    came: News = []
    for _ in range(2):
        with pytest.raises(ApiError, match=r"Choice 1: The engine failed: it broke\."):
            await source.each(came.extend)
    assert [(number, [delta.text for delta in deltas or ()]) for number, deltas in came] == [(0, ["a"]), (0, ["b"])]


async def test_all_are_admitted_before_any_is_read() -> None:
    generations = [Scripted(["a"]) for _ in range(3)]
    source = fan_out(*generations)
    opening = asyncio.create_task(source.open())
    for generation in generations[:2]:
        generation.go_on()
    await settled()
    assert not opening.done()
    generations[2].go_on()
    await opening
    assert all(generation.is_open for generation in generations)


@pytest.mark.parametrize("failing", [0, 1, 2])
async def test_a_refusal_before_admission_names_its_choice(failing: int) -> None:
    """The others wait for ever: their admission is not waited for."""
    generations = [Scripted(), Scripted(), Scripted()]
    generations[failing] = Scripted([_Refused(ApiError(400, "no such seed.", param="seed", code="invalid_value"))])
    source = fan_out(*generations)
    generations[failing].go_on()
    with pytest.raises(ApiError) as caught:
        await source.open()
    error = caught.value
    assert (error.status, error.message) == (400, f"Choice {failing}: no such seed.")
    assert (error.param, error.code) == ("seed", "invalid_value")
    source.close()
    assert [generation.closed for generation in generations] == [1, 1, 1]


async def test_a_single_one_is_not_named() -> None:
    refused = Scripted([_Refused(ApiError(400, "no such seed."))])
    source = fan_out(refused)
    refused.go_on()
    with pytest.raises(ApiError, match=r"^no such seed\.$"):
        await source.open()
    broken = Scripted([unavailable("gone")])
    source = await opened(broken)
    broken.go_on()
    with pytest.raises(ApiError, match=r"^gone$"):
        await source.each(lambda _: None)


class Gone(Exception):
    pass


@pytest.mark.parametrize("count", [1, 3])
async def test_a_cancel_while_opening_and_while_reading_is_what_the_waiter_gets(count: int) -> None:
    generations = [Scripted(["a"]) for _ in range(count)]
    source = fan_out(*generations)
    opening = asyncio.create_task(source.open())
    await settled()
    source.cancel(Gone())
    with pytest.raises(Gone):
        await opening

    source = await opened(*[Scripted(["a"]) for _ in range(count)])
    reading = asyncio.create_task(source.each(lambda _: None))
    await settled()
    source.cancel(Gone())
    source.cancel(RuntimeError("the first reason counts"))
    with pytest.raises(Gone):
        await reading


async def test_a_reader_that_pauses_pauses_everyone() -> None:
    generations = [Scripted([str(number) for number in range(100)]) for _ in range(3)]
    source = await opened(*generations)
    for generation in generations:
        for _ in range(101):
            generation.go_on()
    await settled()
    # What is read ahead is one entry per generation and what each one holds in its hand.
    assert sum(generation.taken for generation in generations) <= 2 * len(generations)
    reader = Reader(source, 3)
    await reader.read()
    assert reader.texts == [[str(number) for number in range(100)]] * 3


async def test_closing_ends_every_task() -> None:
    before = asyncio.all_tasks()
    source = await opened(Scripted(["a"]), Scripted(["b"]))
    await settled()
    assert len(asyncio.all_tasks() - before) == 2
    source.close()
    await settled()
    assert asyncio.all_tasks() == before
