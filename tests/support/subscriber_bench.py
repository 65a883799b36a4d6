"""Batched egress on a bench: no engine, no Triton, and time is a number that a test sets. The event loop and the
sending thread run when the test says so."""

import json
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vllm_backend.contract import RequestError
from vllm_backend.egress import Registry, Subscriber
from vllm_backend.request import (
    Acknowledgement,
    GenerateRequest,
    Position,
    StreamName,
    SubscriptionRequest,
    parse_request,
)
from vllm_backend.response import RowOutputs


@dataclass
class Output:
    text: str
    token_ids: Sequence[int] = (5,)
    finish_reason: str | None = None
    logprobs: Sequence[dict[int, Any] | None] | None = None
    cumulative_logprob: float | None = None
    stop_reason: int | str | None = None


@dataclass
class Entry:
    logprob: float
    rank: int | None = 1
    decoded_token: str | None = "x"


class Prompt:
    prompt_token_ids = (1, 2)

    def __init__(self) -> None:
        self.logprobs: Any = [None, {2: Entry(-1.0)}]

    def take_prompt_logprobs(self) -> Any:
        taken, self.logprobs = self.logprobs, None
        return taken


@dataclass
class Way:
    """What has been sent on a Triton request's way back."""

    texts: list[Any] = field(default_factory=list)
    is_finished: bool = False

    def send(self, text: bytes) -> None:
        assert not self.is_finished
        self.texts.append(json.loads(text))

    def finish(self, text: bytes | None) -> None:
        assert not self.is_finished
        if text is not None:
            self.texts.append(json.loads(text))
        self.is_finished = True

    def take(self) -> list[Any]:
        taken, self.texts = self.texts, []
        return taken

    def rows(self) -> list[Any]:
        """Those of the messages that have come, which are taken."""
        return [row for text in self.take() for row in text.get("rows", ())]


class Sending:
    """Sends when it is told to, and only if it was woken."""

    def __init__(self, subscriber: Subscriber) -> None:
        self._subscriber = subscriber
        self._is_awake = False

    def wake(self) -> None:
        self._is_awake = True

    def join(self) -> None:
        self.run()
        assert self._subscriber.is_done

    def run(self) -> None:
        if self._is_awake:
            self._is_awake = False
            while (send := self._subscriber.next_send()) is not None:
                send()


class Answer:
    """One request, as the backend serves it."""

    def __init__(self, bench: "Bench", stream_id: int, outputs: RowOutputs | None) -> None:
        self.own = Way()
        self.error: RequestError | None = None
        self.is_aborted = False
        self.stream = bench.registry.open(StreamName(bench.NAME, stream_id), self.own, self._delivered, self._aborted)
        self.stream.outputs = outputs
        self.final: tuple[str | None, int, int] | None = None

    def put(self, *texts: str, finish_reason: str | None = None) -> None:
        for number, text in enumerate(texts, start=1):
            self.stream.put(Output(text, finish_reason=finish_reason if number == len(texts) else None))

    def cancel(self) -> None:
        self.own.finish(None)
        self.stream.close()

    def _delivered(self) -> None:
        self.final = (self.stream.finish_reason, self.stream.tokens, self.stream.characters)
        self.own.finish(None)
        self.stream.close()

    def _aborted(self, error: RequestError | None) -> None:
        self.error = error
        self.is_aborted = True
        self.cancel()


class Bench:
    """A registry, its clock and its event loop."""

    NAME = "0123456789abcdef"
    """The subscriber's."""

    def __init__(self) -> None:
        self.now = 100.0
        self.log: list[str] = []
        self._calls: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._sendings: list[Sending] = []

        def call_soon(function: Callable[..., object], *arguments: Any) -> None:
            self._calls.append((function, arguments))

        def start_sending(subscriber: Subscriber) -> Sending:
            self._sendings.append(Sending(subscriber))
            return self._sendings[-1]

        self.registry = Registry(
            encode=lambda value: json.dumps(value).encode(),
            call_soon=call_soon,
            call_soon_threadsafe=call_soon,
            log=self.log.append,
            clock=lambda: self.now,
            start_sending=start_sending,
        )

    def answer(self, stream_id: int, outputs: RowOutputs | None = None) -> Answer:
        return Answer(self, stream_id, outputs)

    def subscribe(self, *resume: Position) -> Way:
        """A subscription whose hello has come, and nothing else."""
        way = Way()
        self.registry.subscribe(SubscriptionRequest(self.NAME, resume), way)
        return way

    def acknowledge(self, number: int, *resume: Position, cancelled: Sequence[int] = ()) -> None:
        self.registry.acknowledge(Acknowledgement(self.NAME, number, resume, tuple(cancelled)))
        self.run()

    def run(self) -> None:
        """All that is due on the event loop and on the sending threads."""
        while True:
            while self._calls:
                function, arguments = self._calls.popleft()
                function(*arguments)
            for sending in self._sendings:
                sending.run()
            if not self._calls:
                return

    def run_loop_only(self) -> None:
        while self._calls:
            function, arguments = self._calls.popleft()
            function(*arguments)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.registry.tick()
        self.run()


def outputs(**flags: bool) -> RowOutputs:
    inputs = {
        "text_input": np.array([b"a"], dtype=np.object_),
        "sampling_parameters": np.array([b'{"logprobs": 0, "prompt_logprobs": 0}'], dtype=np.object_),
        "return_prompt_logprobs": np.array([True]),
        **{f"return_{name}": np.array([flag]) for name, flag in flags.items()},
    }
    request = parse_request(inputs)
    assert isinstance(request, GenerateRequest)
    found = RowOutputs.of(request, Prompt())
    assert found is not None
    return found
