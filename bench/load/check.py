"""Is an answer right, and when did its tokens come? Pure.

Every stream is read to its last byte: a token that is lost, doubled or garbled is an error as a refusal is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import jsonschema_rs
import orjson

from bench.load.stream import Answer
from bench.load.workloads import Format, Request

_SHOWN = 120
_DONE = b"[DONE]"


@dataclass(slots=True)
class Outcome:
    """What came of one request. Times are in seconds, `began` and `ended` by time.perf_counter.

    `error` says what is wrong with the answer, empty where all is right. `ttft` is the time to the first event that
    carries something of the answer, `gaps` those from each of these events to the next; `tokens` are the server's count
    where it tells one, else the number of these events (`chunks`). `joined` counts the events that came in one read
    with the one before.
    """

    kind: str
    began: float
    ended: float = 0.0
    status: int = 0
    error: str = ""
    ttft: float | None = None
    gaps: list[float] = field(default_factory=list)
    chunks: int = 0
    tokens: int = 0
    joined: int = 0
    finish_reason: str | None = None

    @property
    def is_right(self) -> bool:
        return not self.error

    @property
    def seconds(self) -> float:
        return self.ended - self.began


class _Wrong(Exception):
    """One sentence."""


@dataclass(slots=True)
class _Reader:
    """Adds up the events of an answer."""

    outcome: Outcome
    texts: list[str] = field(default_factory=list)
    usage: int | None = None
    is_done: bool = False
    last_time: float = 0.0
    last_read: int = -1

    def carries(self, text: str, time: float, number: int) -> None:
        """An event that holds a part of the answer."""
        outcome = self.outcome
        if outcome.finish_reason is not None:
            raise _Wrong("the answer goes on behind its finish_reason")
        if outcome.chunks == 0:
            outcome.ttft = time - outcome.began
        else:
            outcome.gaps.append(time - self.last_time)
            outcome.joined += number == self.last_read
        outcome.chunks += 1
        self.texts.append(text)
        self.last_time, self.last_read = time, number

    def finishes(self, reason: str) -> None:
        if self.outcome.finish_reason is not None:
            raise _Wrong("the answer has two finish_reasons")
        self.outcome.finish_reason = reason


def judge(request: Request, answer: Answer, began: float, ended: float) -> Outcome:
    """The outcome of an answer that is whole, or will never be."""
    outcome = Outcome(request.kind, began, ended, answer.status)
    try:
        _check(request, answer, outcome)
    except _Wrong as wrong:
        outcome.error = str(wrong)
    return outcome


def _check(request: Request, answer: Answer, outcome: Outcome) -> None:
    if answer.status != 200:
        raise _Wrong(f"status {answer.status}: {_error_text(answer)}")
    if request.format is Format.WHOLE:
        if not answer.is_whole:
            raise _Wrong("the connection was closed in the middle of the answer")
        outcome.ttft = outcome.seconds
        return
    if not answer.is_stream:
        kind = answer.headers.get(b"content-type", b"").decode("latin-1")
        raise _Wrong(f"the answer is no stream but {kind or 'of no type'}")
    reader = _Reader(outcome)
    _READERS[request.format](reader, answer.events)
    outcome.tokens = outcome.chunks if reader.usage is None else reader.usage
    if answer.left_over:
        raise _Wrong(f"behind the last event stands {_shown(answer.left_over)}")
    if not answer.is_whole:
        raise _Wrong("the connection was closed in the middle of the answer")
    if outcome.finish_reason is None:
        raise _Wrong("the stream ends without a finish_reason")
    if request.format is not Format.TRITON and not reader.is_done:
        raise _Wrong("the stream ends without [DONE]")
    _compare(request, outcome, "".join(reader.texts))


def _compare(request: Request, outcome: Outcome, text: str) -> None:
    expected = request.expected
    if expected.chunks is not None and outcome.chunks != expected.chunks:
        raise _Wrong(f"{outcome.chunks} events carry the answer, not {expected.chunks}")
    if expected.tokens is not None and outcome.tokens != expected.tokens:
        raise _Wrong(f"the answer has {outcome.tokens} tokens, not {expected.tokens}")
    if expected.text is not None and text != expected.text:
        raise _Wrong(
            f"the answer's text is not what it should be, from byte {_first_difference(text, expected.text)} on"
        )
    if expected.finish_reason is not None and outcome.finish_reason != expected.finish_reason:
        raise _Wrong(f"the finish_reason is {outcome.finish_reason}, not {expected.finish_reason}")
    if expected.schema is not None:
        _check_schema(expected.schema, text)


def _read_chat(reader: _Reader, events: Sequence[tuple[bytes, float, int]]) -> None:
    for payload, time, number in events:
        choice = _openai_choice(reader, payload)
        if choice is None:
            continue
        delta = choice["delta"]
        text = delta.get("content")
        if text or delta.get("reasoning_content") or delta.get("reasoning") or delta.get("tool_calls"):
            reader.carries(text or "", time, number)
        if (reason := choice.get("finish_reason")) is not None:
            reader.finishes(reason)


def _read_completion(reader: _Reader, events: Sequence[tuple[bytes, float, int]]) -> None:
    for payload, time, number in events:
        choice = _openai_choice(reader, payload)
        if choice is None:
            continue
        if choice["text"]:
            reader.carries(choice["text"], time, number)
        if (reason := choice.get("finish_reason")) is not None:
            reader.finishes(reason)


def _openai_choice(reader: _Reader, payload: bytes) -> dict[str, Any] | None:
    """The event's only choice; None for one that has none."""
    if reader.is_done:
        raise _Wrong("the stream goes on behind [DONE]")
    if payload == _DONE:
        reader.is_done = True
        return None
    event = _parsed(payload)
    if "error" in event:
        raise _Wrong(f"the stream ends in an error: {_message(event['error'])}")
    if usage := event.get("usage"):
        reader.usage = usage["completion_tokens"]
    choices = event.get("choices")
    if choices is None:
        raise _Wrong(f"an event has no choices: {_shown(payload)}")
    return choices[0] if choices else None


def _read_triton(reader: _Reader, events: Sequence[tuple[bytes, float, int]]) -> None:
    for payload, time, number in events:
        event = _parsed(payload)
        if "error" in event:
            raise _Wrong(f"the stream ends in an error: {_message(event['error'])}")
        if event.get("text_output"):
            reader.carries(event["text_output"], time, number)
        if (reason := event.get("finish_reason")) not in (None, "None"):
            reader.finishes(reason)


_READERS = {Format.CHAT: _read_chat, Format.COMPLETION: _read_completion, Format.TRITON: _read_triton}


def _parsed(payload: bytes) -> dict[str, Any]:
    try:
        event = orjson.loads(payload)
    except ValueError:
        raise _Wrong(f"an event is no JSON: {_shown(payload)}") from None
    if not isinstance(event, dict):
        raise _Wrong(f"an event is no object: {_shown(payload)}")
    return event


def _check_schema(schema: Mapping[str, Any], text: str) -> None:
    try:
        value = orjson.loads(text)
    except ValueError:
        raise _Wrong(f"the answer is no JSON: {_shown(text.encode())}") from None
    if not _validator(orjson.dumps(schema)).is_valid(value):
        raise _Wrong(f"the answer does not obey the schema: {_shown(text.encode())}")


@lru_cache(maxsize=16)
def _validator(schema: bytes) -> jsonschema_rs.Validator:
    return jsonschema_rs.validator_for(orjson.loads(schema))


def _error_text(answer: Answer) -> str:
    body = answer.events[0][0] if answer.events else answer.body
    try:
        return _message(orjson.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return _shown(body)


def _message(error: Any) -> str:
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)


def _shown(data: bytes) -> str:
    text = data.decode("utf-8", "replace")
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "…")


def _first_difference(text: str, expected: str) -> int:
    return next(
        (at for at, (a, b) in enumerate(zip(text, expected, strict=False)) if a != b), min(len(text), len(expected))
    )
