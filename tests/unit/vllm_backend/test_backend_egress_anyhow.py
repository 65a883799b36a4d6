"""Batched egress without an engine and without Triton, in any order of events, and with a real thread and loop."""

import asyncio
import json
import threading
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.subscriber_bench import Answer, Bench, Output, Way, outputs
from vllm_backend.egress import FINAL_WAIT, GRACE, IDLE, Registry, Stream
from vllm_backend.request import Acknowledgement, Position, StreamName, SubscriptionRequest

NAME = Bench.NAME


class Client:
    """The other end: applies rows, trims what it has, and asks again for what it misses."""

    def __init__(self, bench: Bench, streams: dict[int, Answer]) -> None:
        self.bench = bench
        self.answers = streams
        self.texts = dict.fromkeys(streams, "")
        self.token_ids: dict[int, list[int]] = {number: [] for number in streams}
        self.finish_reasons: dict[int, str] = {}
        self.is_lost: set[int] = set()
        self.way: Way | None = None
        self.last = 0

    def position(self, number: int) -> Position:
        return Position(number, len(self.token_ids[number]), len(self.texts[number]))

    def positions(self) -> list[Position]:
        """Of the streams that are not whole."""
        return [self.position(number) for number in self.texts if number not in self.finish_reasons]

    def apply(self, row: list[Any]) -> bool:
        """False if something in front of the row is missing."""
        number, tokens, characters, new_tokens, text, *more = row
        if more and more[0] == "lost":
            self.is_lost.add(number)
            return True
        have = self.position(number)
        if tokens > have.tokens or characters > have.characters:
            return False
        self.texts[number] += text[have.characters - characters :]
        ids = more[1].get("token_ids", []) if len(more) > 1 else []
        assert len(ids) == new_tokens
        self.token_ids[number] += ids[have.tokens - tokens :]
        if more and more[0] is not None:
            self.finish_reasons[number] = more[0]
        return True

    def subscribe(self, with_positions: bool) -> None:
        self.way = self.bench.subscribe(*(self.positions() if with_positions else ()))

    def drop(self) -> None:
        """Closes its subscription; what is in it is lost."""
        if self.way is not None:
            self.bench.registry.lose(NAME, self.way)
            self.way = None

    def receive(self, most: int = 1000) -> None:
        if self.way is not None:
            taken, self.way.texts = self.way.texts[:most], self.way.texts[most:]
            for text in taken:
                self._take(text)
        for answer in self.answers.values():
            for row in answer.own.rows():
                self.apply(row)

    def miss(self) -> None:
        """One message is lost on its way."""
        if self.way is not None and self.way.texts and "message" in self.way.texts[0]:
            del self.way.texts[0]

    def acknowledge(self, again: bool) -> None:
        if self.way is not None and self.last:
            self.bench.registry.acknowledge(Acknowledgement(NAME, self.last, tuple(self.positions() if again else ())))

    def _take(self, text: dict[str, Any]) -> None:
        if "hello" in text:
            self.last = text["hello"]["next"] - 1
        elif "message" in text:
            applied = [self.apply(row) for row in text["rows"]]
            if text["message"] != self.last + 1 or not all(applied):
                resume = tuple(self.positions())
                self.bench.registry.acknowledge(Acknowledgement(NAME, min(self.last, text["message"] - 1), resume))
            self.last = text["message"]
        else:
            self.way = None


TEXTS = st.sampled_from(["", "a", "bc", "ü", "🌊\r\n", "\n", '"', "long " * 5])
STREAMS = st.integers(1, 3)
STEPS = st.one_of(
    st.tuples(st.just("put"), STREAMS, TEXTS, st.integers(0, 3)),
    st.tuples(st.just("end"), STREAMS),
    st.just(("loop",)),
    st.just(("run",)),
    st.tuples(st.just("receive"), st.integers(1, 3)),
    st.just(("miss",)),
    st.tuples(st.just("acknowledge"), st.booleans()),
    st.just(("drop",)),
    st.tuples(st.just("subscribe"), st.booleans()),
    st.tuples(st.just("wait"), st.sampled_from([0.1, GRACE, FINAL_WAIT])),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(STEPS, max_size=60))
def test_whatever_happens_the_rows_are_the_text(steps: list[tuple[Any, ...]]) -> None:
    """In any order of tokens, sends, losses, acknowledgements, reconnections and pauses."""
    bench = Bench()
    answers = {number: bench.answer(number, outputs(token_ids=True)) for number in (1, 2, 3)}
    texts, ids = dict.fromkeys(answers, ""), {number: list[int]() for number in answers}
    client = Client(bench, answers)
    began = bench.now

    def put(number: int, text: str, tokens: int, finish_reason: str | None = None) -> None:
        if answers[number].stream.finish_reason is None:
            new = range(len(ids[number]), len(ids[number]) + tokens)
            texts[number] += text
            ids[number] += new
            answers[number].stream.put(Output(text, list(new), finish_reason))

    for step, *arguments in steps:
        match step:
            case "put":
                put(*arguments)
            case "end":
                put(arguments[0], "", 1, "stop")
            case "loop":
                bench.run_loop_only()
            case "run":
                bench.run()
            case "receive":
                client.receive(*arguments)
            case "miss":
                client.miss()
            case "acknowledge":
                client.acknowledge(*arguments)
            case "drop":
                client.drop()
            case "subscribe":
                client.subscribe(*arguments)
            case "wait":
                # Who says nothing for too long has lost.
                if bench.now - began < 10:
                    bench.wait(*arguments)
    for number in answers:
        put(number, "the end", 1, "length")
    client.drop()
    bench.run()
    client.receive()
    client.subscribe(True)
    for _ in range(10):
        bench.run()
        client.receive()
        client.acknowledge(False)
    bench.run()
    assert client.texts == texts
    assert client.token_ids == ids
    assert {number: (answer.final or ())[1:] for number, answer in answers.items()} == {
        number: (len(ids[number]), len(text)) for number, text in texts.items()
    }
    assert client.finish_reasons.keys() == answers.keys()
    assert not client.is_lost
    bench.wait(IDLE + 0.1)
    assert len(bench.registry) == 0


STREAM_COUNT = 100


async def test_with_a_real_thread_and_a_real_loop() -> None:
    """Many streams at once, whose client acknowledges from the event loop, on a way that takes its time."""
    loop = asyncio.get_running_loop()
    registry = Registry(
        encode=lambda value: json.dumps(value).encode(),
        call_soon=loop.call_soon,
        call_soon_threadsafe=loop.call_soon_threadsafe,
        log=lambda text: None,
    )
    texts: dict[int, str] = {}
    finished: set[int] = set()
    numbers: list[int] = []
    threads: set[int] = set()

    def apply(message: dict[str, Any]) -> None:
        if "message" not in message:
            return
        numbers.append(message["message"])
        for number, _, characters, _, text, *more in message["rows"]:
            assert characters == len(texts.setdefault(number, ""))
            texts[number] += text
            if more:
                finished.add(number)
        registry.acknowledge(Acknowledgement(NAME, message["message"], ()))

    class Pipe(Way):
        def send(self, text: bytes) -> None:
            threads.add(threading.get_ident())
            loop.call_soon_threadsafe(apply, json.loads(text))

    registry.subscribe(SubscriptionRequest(NAME, ()), Pipe())
    delivered: set[int] = set()
    all_delivered = asyncio.Event()

    def open_stream(number: int) -> Stream:
        def on_delivered() -> None:
            delivered.add(number)
            stream.close()
            if len(delivered) == STREAM_COUNT:
                all_delivered.set()

        stream = registry.open(StreamName(NAME, number), Way(), on_delivered, lambda error: None)
        return stream

    streams = [open_stream(number) for number in range(1, STREAM_COUNT + 1)]
    for step in range(200):
        for stream in streams:
            stream.put(Output(f"{step},", finish_reason="stop" if step == 199 else None))
        await asyncio.sleep(0)
    await all_delivered.wait()
    whole = "".join(f"{step}," for step in range(200))
    assert texts == dict.fromkeys(range(1, STREAM_COUNT + 1), whole)
    assert finished == set(texts)
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(threads) == 1
    assert threads != {threading.get_ident()}
    before = threading.active_count()
    registry.unload()
    assert threading.active_count() == before - 1


async def test_a_way_that_fails_is_given_up() -> None:
    loop = asyncio.get_running_loop()
    log: list[str] = []
    registry = Registry(
        encode=lambda value: json.dumps(value).encode(),
        call_soon=loop.call_soon,
        call_soon_threadsafe=loop.call_soon_threadsafe,
        log=log.append,
    )

    class Broken(Way):
        def send(self, text: bytes) -> None:
            if b"message" in text:
                raise RuntimeError("no such request")

    registry.subscribe(SubscriptionRequest(NAME, ()), Broken())
    stream = registry.open(StreamName(NAME, 1), own := Way(), lambda: None, lambda error: None)
    stream.put(Output("a"))
    while not own.texts:
        await asyncio.sleep(0.01)
        registry.tick()
    assert own.texts == [{"rows": [[1, 0, 0, 1, "a"]]}]
    assert any("could not be sent: no such request" in line for line in log)
    stream.close()
    registry.unload()
