"""A batched generation for every order in which things can come, by either way: its text is the answer's beginning at
every moment; in the end it is all of it, with its finish reason, or there is an error."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.openai.errors import ApiError
from gateway.triton import batched
from gateway.triton.batched import BatchedGeneration
from gateway.triton.contract import Backend, Delta, ModelContract
from gateway.triton.egress import Row
from gateway.triton.generate import BrokenConnection, Connections
from gateway.triton.subscription import Stream, Subscription
from tests.unit.gateway.triton.test_egress import Answer, answers

ADMISSION = {"text_output": "", "finish_reason": "None", "num_input_tokens": 3, "num_output_tokens": 0}


class OwnStream:
    """The request's own stream, as a call; what comes by it comes when the test says."""

    connect_seconds = 0.0
    waits = True

    def __init__(self) -> None:
        self._events: list[bytes] = [json.dumps(ADMISSION).encode()]
        self._listener: Callable[[], None] | None = None
        self._is_over = False
        self._is_broken = False
        self.is_cancelled = False

    async def head(self) -> int:
        return 200

    def take(self) -> list[bytes] | None:
        events, self._events = self._events, []
        if events:
            return events
        if self._is_broken:
            raise BrokenConnection("it broke", answered=True)
        return None if self._is_over else []

    async def change(self) -> None:
        raise AssertionError("the admission is there")

    def listen(self, listener: Callable[[], None] | None) -> None:
        self._listener = listener

    def cancel(self, reason: Exception) -> None:
        self.is_cancelled = True

    def come(self, event: dict[str, Any]) -> None:
        self._events.append(json.dumps(event).encode())
        self._tell()

    def end(self, *, is_broken: bool = False) -> None:
        self._is_over, self._is_broken = True, is_broken
        self._tell()

    def _tell(self) -> None:
        if self._listener is not None and not self.is_cancelled:
            self._listener()


class Way(Subscription):
    """One that is open or not, as the test has it, and notes who misses something."""

    def __init__(self, connections: Connections, *, is_open: bool) -> None:
        super().__init__("t", connections, "m")
        self.is_usable = True
        self._says_open = is_open
        self.missing: list[Stream] = []

    @property
    def is_open(self) -> bool:
        return self._says_open

    def want(self, contract: ModelContract) -> None:
        pass

    def repair(self, stream: Stream, kind: str) -> None:
        self.missing.append(stream)


class Source(Connections):
    def __init__(self, own: OwnStream) -> None:
        super().__init__("http://nowhere:1", 1)
        self._own = own

    def call(self, path: str, body: bytes, headers: bytes = b"", *, is_lasting: bool = False) -> Any:
        return self._own


class Counter:
    tokens = 0


class Reader:
    def __init__(self, generation: BatchedGeneration, answer: Answer) -> None:
        self._generation = generation
        self._answer = answer
        self.deltas: list[Delta] = []
        self.is_over = False
        self.failure: Exception | None = None

    async def read(self) -> None:
        try:
            await self._generation.each(self._take)
        except ApiError as error:
            self.failure = error
        finally:
            self._generation.close()

    def _take(self, deltas: list[Delta] | None) -> None:
        assert not self.is_over
        self.is_over = deltas is None
        self.deltas += deltas or ()
        assert self._answer.text.startswith(self.text)

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)


Step = tuple[str, int, int]
"""What comes: by which way, and of a row from which step of the answer to which."""


@st.composite
def plays(draw: st.DrawFn) -> tuple[Answer, bool, list[Step]]:
    answer = draw(answers())
    last = len(answer.pieces)
    row = st.tuples(st.sampled_from(["row", "row", "own row"]), st.integers(0, last), st.integers(0, last))
    word = st.sampled_from([("final", 0, 0), ("error", 0, 0), ("broken", 0, 0), ("pause", 0, 0), ("lost", 0, 0)])
    # Mostly rows in their order, of which each may be missing or come twice; and anything in between.
    steps: list[Step] = []
    for number in range(last):
        steps += [("row", number, number + 1)] * draw(st.sampled_from([0, 1, 1, 1, 1, 2]))
        steps += draw(st.lists(row, max_size=1))
        steps += draw(st.lists(word, max_size=1)) if draw(st.integers(0, 5)) == 0 else []
    steps += draw(st.sampled_from([[], [("final", 0, 0)]]))
    return answer, draw(st.booleans()), steps


async def play(answer: Answer, is_open: bool, steps: list[Step]) -> None:
    own = OwnStream()
    source = Source(own)
    way = Way(source, is_open=is_open)
    contract = ModelContract(Backend.OURS, frozenset())
    counter = Counter()
    generation = BatchedGeneration(
        "t", source, "m", contract, b"{}", (), {"prompt": "prompt"}, counter, b"", way, 1, 1_000_000
    )
    await generation.open()
    reader = Reader(generation, answer)
    reading = asyncio.create_task(reader.read())
    await asyncio.sleep(0)
    own_is_over = has_failed = False

    def put(row: Row) -> None:
        touched: list[Stream] = []
        way.apply([row], touched)
        for stream in touched:
            stream.wake()

    for what, begin, end in steps:
        begin, end = sorted((begin, end))
        if what == "row":
            put(answer.row(begin, end))
        elif what == "lost":
            put([1, 0, 0, 0, "", "lost"])
            has_failed = True
        elif what == "pause":
            await asyncio.sleep(0.001)
        elif not own_is_over:
            own_is_over = what != "own row"
            if what == "own row":
                own.come({"text_output": json.dumps({"rows": [answer.row(begin, end)]})})
            elif what == "final":
                totals = {"num_output_tokens": answer.tokens, "num_output_characters": len(answer.text)}
                own.come({"text_output": "", "finish_reason": "stop", **totals})
                own.end()
            elif what == "error":
                own.come({"error": "INTERNAL: it broke."})
                own.end()
            else:
                own.end(is_broken=True)
    if not own_is_over and not reading.done():
        # Without a word more, who waits is cancelled by its deadline; here the backend says the end.
        totals = {"num_output_tokens": answer.tokens, "num_output_characters": len(answer.text)}
        own.come({"text_output": "", "finish_reason": "stop", **totals})
        own.end()
    async with asyncio.timeout(30):
        await reading
    if reader.failure is None:
        assert reader.is_over
        assert reader.text == answer.text
        assert sum(delta.new_tokens for delta in reader.deltas) == counter.tokens == answer.tokens
        assert [delta.finish_reason for delta in reader.deltas if delta.finish_reason] == ["stop"]
        token_ids = [token for delta in reader.deltas for token in delta.outputs.get("token_ids", ())]
        assert token_ids == list(range(answer.tokens))
    else:
        assert not reader.is_over
        assert isinstance(reader.failure, ApiError)
        assert has_failed or own.is_cancelled


@pytest.mark.parametrize("repair_seconds", [0.002])
def test_the_text_is_exact_or_there_is_an_error(repair_seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batched, "REPAIR_S", repair_seconds)
    monkeypatch.setattr(batched, "_OTHER_WAY_S", repair_seconds / 2)

    @settings(max_examples=300)
    @given(plays())
    def check(drawn: tuple[Answer, bool, list[Step]]) -> None:
        asyncio.run(play(*drawn))

    check()
