"""A client of batched egress that speaks to Triton itself: one subscription, read by a thread, and what its rows add up
to."""

import contextlib
import json
import threading
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import httpx

from tests.support.backend import Backend
from tests.support.waiting import wait_for

Row = list[Any]


@dataclass
class Answer:
    """What the rows of one stream add up to."""

    text: str = ""
    tokens: int = 0
    finish_reason: str | None = None
    outputs: dict[str, Any] = field(default_factory=dict)
    rows: int = 0

    def apply(self, row: Row) -> None:
        """Trims what is there already; nothing may be missing in front."""
        _, tokens, characters, new_tokens, text, *more = row
        assert tokens <= self.tokens, row
        assert characters <= len(self.text), row
        self.rows += 1
        outputs = more[1] if len(more) > 1 else {}
        for name, value in outputs.items():
            if name in ("logprobs", "token_ids"):
                assert len(value) == new_tokens
                self.outputs.setdefault(name, []).extend(value[self.tokens - tokens :])
            else:
                self.outputs[name] = value
        self.text += text[len(self.text) - characters :]
        self.tokens = max(self.tokens, tokens + new_tokens)
        if more and more[0] is not None:
            self.finish_reason = more[0]


class Subscription:
    """`with Subscription(backend, name) as subscription`: open from its hello on. Each message is acknowledged at
    once."""

    def __init__(self, backend: Backend, name: str, answers: dict[int, Answer] | None = None) -> None:
        """`answers`: what an earlier subscription of the same name has got."""
        self._backend = backend
        self.inputs: dict[str, Any] = {"batched_egress": True, "subscriber": name}
        self.answers: dict[int, Answer] = {} if answers is None else answers
        self.hello: dict[str, Any] | None = None
        self.end: str | None = None
        self.messages: list[int] = []
        self._problem: BaseException | None = None
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._read, name=f"subscription {name}")

    def __enter__(self) -> Self:
        self._thread.start()
        self.wait_for(lambda: self.hello is not None, "the hello")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection, unless the backend has ended it. What was read of it has been applied."""
        self._is_closed.set()
        self._thread.join(60)
        assert not self._thread.is_alive()

    def answer(self, stream_id: int) -> Answer:
        return self.answers.setdefault(stream_id, Answer())

    def positions(self) -> str:
        """The `resume` for all streams."""
        return json.dumps([[number, answer.tokens, len(answer.text)] for number, answer in self.answers.items()])

    def wait_for(self, condition: Any, what: str) -> None:
        wait_for(lambda: self._problem is not None or condition(), what)
        if self._problem is not None:
            raise AssertionError(f"the subscription failed: {self._problem!r}") from self._problem

    def _read(self) -> None:
        resume = {"resume": self.positions()} if self.answers else {}
        try:
            with self._backend.subscription(**self.inputs, **resume) as answer:
                closing = threading.Thread(target=self._close_when_told, args=(answer,))
                closing.start()
                with contextlib.suppress(httpx.HTTPError, OSError):
                    for line in answer.iter_lines():
                        if line.startswith("data: "):
                            self._take(json.loads(json.loads(line[6:])["text_output"]))
                self._is_closed.set()
                closing.join()
        except BaseException as problem:
            self._problem = problem

    def _close_when_told(self, answer: httpx.Response) -> None:
        self._is_closed.wait()
        with contextlib.suppress(OSError):
            # The reading thread sees the end of the connection.
            answer.extensions["network_stream"].get_extra_info("socket").shutdown(2)

    def _take(self, message: dict[str, Any]) -> None:
        if "hello" in message:
            self.hello = message["hello"]
        elif "end" in message:
            self.end = message["end"]
        else:
            self.messages.append(message["message"])
            for row in message["rows"]:
                self.answer(row[0]).apply(row)
            self._backend.generate(**self.inputs, acknowledged=message["message"])
