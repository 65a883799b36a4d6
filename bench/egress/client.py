"""Asks Triton for answers, each output a response of its own or by batched egress, and notes when what came.

Made to cost little, as `bench.load.client`: while answers come, a read costs a time stamp and a reference, and on a
subscription the look at a message's number; all else is done when they have ended.
"""

import asyncio
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import orjson

from bench.load.stream import Answer, Malformed, read_answer

_END = b"0\r\n\r\n"
# As the gateway acknowledges: much text and the end of an answer soon, all else later.
_ACKNOWLEDGE_SECONDS = 0.1
_ACKNOWLEDGE_LATER_SECONDS = 0.5
_ACKNOWLEDGE_BYTES = 1 << 20
_TIMEOUT = 600.0
_IDLE = '{"end":"idle"}'
"""What a subscription ends with when nothing is asked any more."""


class WrongAnswer(Exception):
    """An answer is not what it must be: what it cost is of no interest."""


@dataclass(slots=True)
class Streamed:
    """One answer: when its pieces came, by time.perf_counter, and how many tokens each brought."""

    began: float
    times: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: str | None = None

    def add(self, at: float, tokens: int, text: str) -> None:
        if tokens or text:
            self.times.append(at)
            self.tokens.append(tokens)
            self.text += text

    @property
    def ttft(self) -> float:
        return self.times[0] - self.began

    @property
    def gaps(self) -> list[float]:
        return [later - earlier for earlier, later in zip(self.times, self.times[1:], strict=False)]


class Connection(asyncio.Protocol):
    """Used for one request at a time."""

    def __init__(self) -> None:
        self.reads: list[bytes] = []
        self.times: list[float] = []
        self._transport: asyncio.Transport | None = None
        self._began: asyncio.Future[None] | None = None
        self._ended: asyncio.Future[None] | None = None

    @classmethod
    async def to(cls, url: str) -> "Connection":
        host, _, port = url.removeprefix("http://").partition(":")
        _, connection = await asyncio.get_running_loop().create_connection(cls, host, int(port))
        return connection

    def send(self, path: str, inputs: dict[str, Any]) -> None:
        loop = asyncio.get_running_loop()
        self.reads, self.times = [], []
        self._began, self._ended = loop.create_future(), loop.create_future()
        body = orjson.dumps(inputs)
        assert self._transport is not None
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        self._transport.write(f"{head}\r\n\r\n".encode() + body)

    async def until_begun(self) -> None:
        """Until the first bytes of the answer: with an admission, the request is accepted."""
        assert self._began is not None
        async with asyncio.timeout(_TIMEOUT):
            await asyncio.shield(self._began)

    async def until_ended(self) -> Answer:
        """Raises WrongAnswer."""
        assert self._ended is not None
        async with asyncio.timeout(_TIMEOUT):
            await asyncio.shield(self._ended)
        try:
            answer = read_answer(self.reads, self.times, is_closed=self._transport is None)
        except Malformed as error:
            raise WrongAnswer(str(error)) from None
        if answer is None or answer.status != 200 or not answer.is_whole:
            raise WrongAnswer(f"the answer is {b''.join(self.reads[:3])[:300]!r}")
        return answer

    def so_far(self) -> Answer | None:
        """What has come of the answer; None where that is not even its head."""
        return read_answer(self.reads, self.times, is_closed=False)

    @property
    def is_over(self) -> bool:
        return self._ended is not None and self._ended.done()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have asyncio's methods without being its classes.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.times.append(time.perf_counter())
        self.reads.append(data)
        self._note_beginning()
        if self._is_end(data) and self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    def _note_beginning(self) -> None:
        if self._began is not None and not self._began.done():
            self._began.set_result(None)

    def _is_end(self, data: bytes) -> bool:
        if data.endswith(_END):
            return True
        if len(self.reads) == 1 or len(data) < len(_END):
            # A body with a length, or an end in pieces.
            whole = b"".join(self.reads)
            head, _, body = whole.partition(b"\r\n\r\n")
            length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
            return len(body) >= int(length) if length else whole.endswith(_END)
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        for future in (self._began, self._ended):
            if future is not None and not future.done():
                future.set_result(None)


class _Subscription(Connection):
    """Its events are read as they come, for the acknowledgements."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[tuple[float, bytes]] = []
        self.finished: dict[int, asyncio.Future[None]] = {}
        self.next: int | None = None
        self.end = ""
        self.unacknowledged_bytes = 0
        self.has_ended_one = False
        """Whether the end of an answer has come since that was set back."""
        self._raw = b""
        self._text = b""
        self._in_body = False

    def data_received(self, data: bytes) -> None:
        at = time.perf_counter()
        self._note_beginning()
        self._raw += data
        if not self._in_body:
            head, end, rest = self._raw.partition(b"\r\n\r\n")
            if not end:
                return
            if b"chunked" not in head:
                self.end = self._raw.decode(errors="replace")
                return
            self._in_body, self._raw = True, rest
        while True:
            line, end, rest = self._raw.partition(b"\r\n")
            if not end or len(rest) < (size := int(line, 16)) + 2:
                break
            self._raw = rest[size + 2 :]
            self._text += rest[:size]
        *events, self._text = self._text.split(b"\n\n")
        for event in events:
            self._take(at, orjson.loads(event.removeprefix(b"data: "))["text_output"])

    def _take(self, at: float, text: str) -> None:
        if text.startswith('{"message":'):
            self.messages.append((at, text.encode()))
            self.unacknowledged_bytes += len(text)
            if self.finished:
                self._finish(orjson.loads(text)["rows"])
            number = int(text[11 : text.index(",", 11)])
            if number != self.next:
                self.end = f"message {number} came in place of {self.next}"
            self.next = number + 1
        elif text.startswith('{"hello":'):
            self.next = orjson.loads(text)["hello"]["next"]
        elif text:
            self.end = text

    def _finish(self, rows: list[list[Any]]) -> None:
        for row in rows:
            if len(row) > 5 and row[5] and (finished := self.finished.pop(row[0], None)) is not None:
                finished.set_result(None)
                self.has_ended_one = True


class Subscriber:
    """A subscription with its acknowledgements; `async with`. What comes by it is kept until `rows` is asked for."""

    def __init__(self, url: str, model: str) -> None:
        self.name = secrets.token_hex(16)
        self._url = url
        self._path = f"/v2/models/{model}"
        self._numbers = 0
        self._subscription: _Subscription | None = None
        self._acknowledging: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Subscriber":
        subscription = await _Subscription.to(self._url)
        assert isinstance(subscription, _Subscription)
        self._subscription = subscription
        subscription.send(f"{self._path}/generate_stream", {"batched_egress": True, "subscriber": self.name})
        await subscription.until_begun()
        while subscription.next is None:
            if subscription.end or subscription.is_over:
                raise WrongAnswer(f"there is no subscription: {subscription.end}")
            await asyncio.sleep(0.001)
        self._acknowledging = asyncio.create_task(self._acknowledge(subscription))
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._acknowledging is not None:
            self._acknowledging.cancel()
        if self._subscription is not None:
            self._subscription.close()

    def inputs(self) -> tuple[int, dict[str, Any]]:
        """A new stream: its number, and what its request says of it."""
        self._numbers += 1
        return self._numbers, {"batched_egress": True, "subscriber": self.name, "stream_id": self._numbers}

    def until_finished(self, stream: int) -> "asyncio.Future[None]":
        """Until the row with the stream's end has come."""
        assert self._subscription is not None
        finished = self._subscription.finished[stream] = asyncio.get_running_loop().create_future()
        return finished

    def rows(self) -> dict[int, list[tuple[float, list[Any]]]]:
        """All that have come, by their stream, with the times at which they came. Raises WrongAnswer."""
        assert self._subscription is not None
        if self._subscription.end not in ("", _IDLE):
            raise WrongAnswer(f"the subscription has ended: {self._subscription.end}")
        found: dict[int, list[tuple[float, list[Any]]]] = {}
        for at, text in self._subscription.messages:
            for row in orjson.loads(text)["rows"]:
                found.setdefault(row[0], []).append((at, row))
        return found

    async def _acknowledge(self, subscription: _Subscription) -> None:
        connection = await Connection.to(self._url)
        told, told_at = (subscription.next or 1) - 1, 0.0
        try:
            while True:
                await asyncio.sleep(_ACKNOWLEDGE_SECONDS)
                number, now = (subscription.next or 1) - 1, time.perf_counter()
                is_much = subscription.has_ended_one or subscription.unacknowledged_bytes >= _ACKNOWLEDGE_BYTES
                if number > told and (is_much or now - told_at >= _ACKNOWLEDGE_LATER_SECONDS):
                    told, told_at = number, now
                    subscription.unacknowledged_bytes, subscription.has_ended_one = 0, False
                    inputs = {"batched_egress": True, "subscriber": self.name, "acknowledged": number}
                    connection.send(f"{self._path}/generate", inputs)
                    await connection.until_ended()
        finally:
            connection.close()


def read_responses(answer: Answer, began: float) -> Streamed:
    """An answer each of whose outputs is a response. Raises WrongAnswer."""
    streamed = Streamed(began)
    for payload, at, _ in answer.events:
        event = orjson.loads(payload)
        if "error" in event:
            raise WrongAnswer(str(event["error"]))
        streamed.add(at, event["num_output_tokens"], event["text_output"])
        if event["finish_reason"] != "None":
            streamed.finish_reason = event["finish_reason"]
    return streamed


def read_chat(answer: Answer, began: float) -> Streamed:
    """The gateway's chunks. A word of the synthetic engine is a token. Raises WrongAnswer."""
    streamed = Streamed(began)
    for payload, at, _ in answer.events:
        if payload == b"[DONE]":
            return streamed
        event = orjson.loads(payload)
        if "error" in event:
            raise WrongAnswer(str(event["error"]))
        (choice,) = event["choices"]
        text = choice["delta"].get("content") or ""
        streamed.add(at, text.count(" "), text)
        streamed.finish_reason = choice["finish_reason"] or streamed.finish_reason
    raise WrongAnswer("the stream ends without [DONE]")


def read_rows(rows: Sequence[tuple[float, list[Any]]], answer: Answer, began: float) -> Streamed:
    """An answer by batched egress: its rows, and its own stream with what it must come to. Raises WrongAnswer."""
    streamed = Streamed(began)
    total = characters = 0
    for at, row in rows:
        if (row[1], row[2]) != (total, characters):
            raise WrongAnswer(f"a row begins at token {row[1]}, not {total}")
        streamed.add(at, row[3], row[4])
        total, characters = total + row[3], characters + len(row[4])
        if len(row) > 5 and row[5]:
            streamed.finish_reason = row[5]
    final = orjson.loads(answer.events[-1][0])
    if "num_output_characters" not in final:
        raise WrongAnswer(f"the request's own stream ends with {final}")
    if (final["num_output_tokens"], final["num_output_characters"]) != (total, characters):
        raise WrongAnswer(f"rows of {total} tokens came, of {final['num_output_tokens']}")
    return streamed
