"""An answer's bytes, as they were read, into its status, its headers and its events, each with the time of the read
that completed it. Pure.

The whole answer is read at its end, so that a token costs next to nothing when it comes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field


class Malformed(Exception):
    """The bytes are no HTTP/1.1 answer; says what of them."""


@dataclass(slots=True)
class Answer:
    """`events` are the payloads of `data:` lines, with the time and the number of the read that completed each;
    `body` is what came in a body of another type. `is_whole`: its end has come; `keeps_alive`: the connection may carry
    another request. `left_over`: text behind the last event."""

    status: int = 0
    headers: dict[bytes, bytes] = field(default_factory=dict)
    events: list[tuple[bytes, float, int]] = field(default_factory=list)
    body: bytes = b""
    is_whole: bool = False
    keeps_alive: bool = False
    left_over: bytes = b""

    @property
    def is_stream(self) -> bool:
        return self.headers.get(b"content-type", b"").startswith(b"text/event-stream")


def read_answer(reads: Sequence[bytes], times: Sequence[float], *, is_closed: bool) -> Answer | None:
    """What the reads hold so far; None where even the head is not whole. `is_closed`: nothing more will come.

    Raises `Malformed`.
    """
    answer = Answer()
    data, at = b"", 0
    while (end := data.find(b"\r\n\r\n")) < 0:
        if at == len(reads):
            return None
        data += reads[at]
        at += 1
    _read_head(answer, data[:end])
    if 100 <= answer.status < 200:
        return read_answer([data[end + 4 :], *reads[at:]], times[at - 1 :], is_closed=is_closed)
    decode = _Decoder(answer, is_closed).decode
    parts: list[bytes] = []
    pending = b""
    rest = data[end + 4 :]
    number = at - 1
    while True:
        payload = decode(rest)
        if answer.is_stream:
            pending = _read_events(answer, pending + payload if pending else payload, times[number], number)
        else:
            parts.append(payload)
        if at == len(reads):
            break
        rest, number = reads[at], at
        at += 1
    answer.body, answer.left_over = b"".join(parts), pending.strip()
    return answer


def _read_head(answer: Answer, head: bytes) -> None:
    line, *fields = head.split(b"\r\n")
    version, _, rest = line.partition(b" ")
    if not version.startswith(b"HTTP/1.") or not rest[:3].isdigit():
        raise Malformed("the answer does not begin with a status line of HTTP/1.1")
    answer.status = int(rest[:3])
    for one in fields:
        name, _, value = one.partition(b":")
        answer.headers[name.strip().lower()] = value.strip()
    answer.keeps_alive = version == b"HTTP/1.1" and answer.headers.get(b"connection", b"").lower() != b"close"


class _Decoder:
    """Takes off the transfer coding; sets the answer's `is_whole`."""

    def __init__(self, answer: Answer, is_closed: bool) -> None:
        self._answer = answer
        self._raw = b""
        length = answer.headers.get(b"content-length")
        if b"chunked" in answer.headers.get(b"transfer-encoding", b"").lower():
            self._left = -1
        elif length is not None:
            if not length.isdigit():
                raise Malformed("the answer's Content-Length is no number")
            self._left = int(length)
            answer.is_whole = self._left == 0
        else:
            self._left = -2
            answer.keeps_alive = False
            answer.is_whole = is_closed

    def decode(self, data: bytes) -> bytes:
        if self._left == -1:
            return self._chunks(data)
        if self._left == -2:
            return data
        if len(data) > self._left:
            raise Malformed("there are bytes behind the answer's end")
        self._left -= len(data)
        self._answer.is_whole = self._left == 0
        return data

    def _chunks(self, data: bytes) -> bytes:
        if self._raw:
            data = self._raw + data
        at, parts = 0, []
        while at < len(data):
            if self._answer.is_whole:
                raise Malformed("there are bytes behind the answer's end")
            line_end = data.find(b"\r\n", at)
            if line_end < 0:
                break
            try:
                size = int(data[at:line_end].partition(b";")[0], 16)
            except ValueError:
                raise Malformed("a chunk does not begin with its size") from None
            begin, end = line_end + 2, line_end + 2 + size
            if size == 0:
                # The trailer, which is empty as a rule.
                end = (
                    data.find(b"\r\n", begin) if data.startswith(b"\r\n", begin) else data.find(b"\r\n\r\n", begin) + 2
                )
                if end < begin:
                    break
                self._answer.is_whole = True
            elif len(data) < end + 2:
                break
            elif data[end : end + 2] != b"\r\n":
                raise Malformed("a chunk is longer than its size")
            else:
                parts.append(data[begin:end])
            at = end + 2
        self._raw = data[at:]
        return parts[0] if len(parts) == 1 else b"".join(parts)


def _read_events(answer: Answer, text: bytes, time: float, number: int) -> bytes:
    """What is behind the last whole event."""
    if b"\r" in text:
        text = text.replace(b"\r\n", b"\n")
    *blocks, rest = text.split(b"\n\n")
    for block in blocks:
        # Comments and names of events carry nothing; an event of several lines is joined, as the standard says.
        lines = block.split(b"\n") if b"\n" in block else (block,)
        payload = b"\n".join([line[5:].strip() for line in lines if line.startswith(b"data:")])
        if payload:
            answer.events.append((payload, time, number))
    return rest
