"""Batched egress as the gateway speaks it: the bodies of its requests, messages, rows, offsets. Pure: values in, values
out.

The deltas of all requests of one subscriber come in one message per engine step, a row for each. A row says where it
stands in its answer, so that one that is doubled, re-sent or has come another way too is told from one that is missing.
The wire format is defined by `vllm_backend`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from gateway.triton.contract import Backend, Delta, ModelContract, UpstreamError

VERSION = 1
"""Of the messages. A backend that says another one in its hello is not understood."""

Row = list[Any]
"""`[stream, tokens, characters, new tokens, text]`, perhaps followed by the finish reason and outputs. `tokens` and
`characters` (code points) are what came before it."""

Point = tuple[int, int, int]
"""Up to where a stream has come: its number, tokens, characters."""

_NOTHING: Mapping[str, Any] = {}
# Of these a row has one for each new token.
_PER_TOKEN = ("logprobs", "token_ids")
_LOST = "lost"


class Hello(NamedTuple):
    """A subscription is open. `next` is the number of its first message."""

    version: int
    next: int


class Message(NamedTuple):
    """One engine step, or several. Numbers rise by 1."""

    number: int
    rows: list[Row]


class End(NamedTuple):
    """The backend ends a subscription, and why."""

    reason: str


class Final(NamedTuple):
    """The end of a request's own stream: what its answer comes to in all."""

    tokens: int
    characters: int


class Gap(Exception):
    """Something before this row is missing."""


class Lost(Exception):
    """The backend cannot send the rest of an answer any more."""


def is_offered(contract: ModelContract) -> bool:
    """Whether a model has batched egress; which version, only a hello says."""
    return contract.backend is Backend.OURS and "batched_egress" in contract.inputs


def answer_inputs(subscriber: str, stream: int) -> dict[str, Any]:
    """The inputs of a request for an answer whose rows are to come by `subscriber`."""
    return {"batched_egress": True, "subscriber": subscriber, "stream_id": stream}


def subscription_body(subscriber: str, resume: Iterable[Point] = ()) -> bytes:
    """`resume`: streams whose rows are to be sent again from there."""
    return orjson.dumps({"batched_egress": True, "subscriber": subscriber, **_resume(resume)})


def acknowledgement_body(
    subscriber: str, number: int, resume: Iterable[Point] = (), cancelled: Sequence[int] = ()
) -> bytes:
    """All messages up to `number` have come and been applied; `cancelled` are streams that nobody wants any more."""
    inputs = {"batched_egress": True, "subscriber": subscriber, "acknowledged": number}
    named = {"cancelled": orjson.dumps(cancelled).decode()} if cancelled else {}
    return orjson.dumps(inputs | _resume(resume) | named)


def _resume(points: Iterable[Point]) -> dict[str, str]:
    named = list(points)
    return {"resume": orjson.dumps(named).decode()} if named else {}


def parse_event(payload: bytes) -> Hello | Message | End:
    """One event of a subscription. Raises `UpstreamError` with the text of an error event, `ValueError`, `TypeError` or
    `KeyError` for what is no event of one. Rows are looked at when they are applied."""
    said = orjson.loads(_text(orjson.loads(payload)))
    if (rows := said.get("rows")) is not None:
        return Message(_count(said["message"]), _list(rows))
    if (hello := said.get("hello")) is not None:
        return Hello(_count(hello["version"]), _count(hello.get("next", 0)))
    return End(str(said["end"]))


def parse_own(payload: bytes) -> list[Row] | Final:
    """One event of a request's own stream, after its admission: rows where there is no subscription for them to come
    by, or the end. Raises as `parse_event` does."""
    response = orjson.loads(payload)
    text = _text(response)
    if text:
        return _list(orjson.loads(text)["rows"])
    if response.get("finish_reason") in (None, "None"):
        return []
    return Final(_count(response["num_output_tokens"]), _count(response["num_output_characters"]))


class Position:
    """How far an answer has come, in tokens and characters, and how far it has been seen to go (`need`)."""

    __slots__ = ("_needed", "characters", "tokens")

    def __init__(self) -> None:
        self.tokens = self.characters = 0
        self._needed = (0, 0)

    def take(self, row: Row) -> Delta | None:
        """What a row adds to the answer; None for nothing. A reason to finish is given only where all before it is
        there.

        Raises `Gap`, `Lost`, and `ValueError` or `TypeError` for what is no row.
        """
        is_plain = len(row) == 5
        _, tokens, characters, new_tokens, text = row if is_plain else row[:5]
        if type(text) is not str or type(new_tokens) is not int or new_tokens < 0:
            raise ValueError("a row holds a value of the wrong type")
        if is_plain and tokens == self.tokens and characters == self.characters:
            self.tokens = tokens + new_tokens
            self.characters = characters + len(text)
            return Delta(text, None, 0, new_tokens) if new_tokens or text else None
        reason = row[5] if len(row) > 5 else None
        outputs = (row[6] if len(row) > 6 else None) or _NOTHING
        if reason == _LOST:
            raise Lost
        return self._take_new(tokens, characters, new_tokens, text, reason, outputs)

    def _take_new(
        self,
        tokens: int,
        characters: int,
        new_tokens: int,
        text: str,
        reason: str | None,
        outputs: Mapping[str, Any],
    ) -> Delta | None:
        """The part of a row that is new. Rows end where others begin: one that is ahead in tokens and behind in
        characters belongs to another answer than this one, and is never a part of it."""
        end_tokens, end_characters = tokens + new_tokens, characters + len(text)
        if end_tokens <= self.tokens and end_characters <= self.characters:
            is_end = (end_tokens, end_characters) == (self.tokens, self.characters)
            if reason is None and not (is_end and not new_tokens and outputs):
                return None
            if not is_end:
                raise Gap
        elif not (tokens <= self.tokens <= end_tokens and characters <= self.characters <= end_characters):
            self.need(end_tokens, end_characters)
            raise Gap
        known = self.tokens - tokens
        text = text[self.characters - characters :]
        for name in _PER_TOKEN:
            if (values := outputs.get(name)) is None:
                continue
            if len(values) != new_tokens:
                raise ValueError("a row has not one entry for each token")
            if known:
                outputs = {**outputs, name: values[known:]}
        self.tokens, self.characters = end_tokens, end_characters
        return Delta(text, reason, 0, new_tokens - known, outputs)

    def need(self, tokens: int, characters: int) -> None:
        """The answer goes at least up to there."""
        needed_tokens, needed_characters = self._needed
        self._needed = max(tokens, needed_tokens), max(characters, needed_characters)

    @property
    def is_whole(self) -> bool:
        """Whether all has come that is known of."""
        tokens, characters = self._needed
        return self.tokens >= tokens and self.characters >= characters


def _text(response: Any) -> str:
    text = response.get("text_output")
    if text is None:
        raise UpstreamError(str(response.get("error", "the event holds neither text_output nor error")))
    if type(text) is not str:
        raise ValueError("text_output is no text")
    return text


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError("a count is no number")
    return value


def _list(value: Any) -> list[Any]:
    if type(value) is not list:
        raise ValueError("the rows are no list")
    return value
