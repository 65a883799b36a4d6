"""Requests that the relay asks itself, between real sockets: what reaches the client, what is left for Python and on
which connection, what is counted, what becomes of connections.

What is right is what the plain path makes of the same bytes: its parser, its reading of a response, its events.
"""

import os
import select
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.openai import sse
from gateway.output.answer import usage_of
from gateway.triton.contract import UpstreamError, parse_response
from gateway.triton.response_parser import PlainParser, PlainProtocolError
from gateway_relay import Outcome, Relay, Telling, Upstreams
from tests.support.waiting import wait_for
from tests.unit.gateway_relay.test_relay import (
    BOUNDS,
    BREAKS,
    HEAD,
    LAST,
    ODD,
    STRANGE_CHUNKS,
    chunk,
    cut,
    dechunked,
    event,
    is_ready,
    json_strings,
    responses,
)

NAMES = 'an "id"\n', 1, "modèle"
IDENTITY = sse.Identity(sse.ChatStream.kind, NAMES[2]).of(*NAMES[:2])
WITH_USAGE = sse.ChatStream(*NAMES, usage_last=True, usage_always=False)
WITHOUT_USAGE = sse.ChatStream(*NAMES, usage_last=False, usage_always=False)
CLIENT_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
REQUEST = b"POST /v2/models/m/generate_stream HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}"
# Tokens from which on an answer is the thread's.
SHORT = 4

ADMITTED = event("", num_input_tokens=7, num_output_tokens=0)
ENDED = event("", finish_reason="stop", num_output_tokens=0)
ANSWER = HEAD + chunk(ADMITTED) + chunk(event('a "b"\n')) + chunk(event("日🎉") + event("")) + chunk(ENDED) + LAST
LONG = HEAD + chunk(ADMITTED) + chunk(event("x")) * 8 + chunk(ENDED) + LAST


def telling_of(stream: sse.ChatStream) -> Telling:
    telling = stream.telling()
    assert telling is not None
    return Telling(*telling)


class World:
    """A relay, the Triton that it asks, and which of its streams have ended by themselves. `backlog`: how many
    connections Triton leaves unaccepted, and one more."""

    def __init__(self, most: int = 64, backlog: int = 512) -> None:
        self.relay = Relay(BOUNDS)
        self.triton = socket.create_server(("127.0.0.1", 0), backlog=backlog)
        self.upstreams = Upstreams("127.0.0.1", str(self.triton.getsockname()[1]), most)
        self._kept: list[socket.socket] = []
        self._lost: list[socket.socket] = []
        self._ended: list[int] = []

    def turn(self) -> None:
        """What an event loop does at the end of a turn, and whenever a descriptor of the relay's is ready."""
        if self.relay.is_due:
            self.relay.flush()
        self._ended += self.relay.poll()
        if is_ready(self.relay, select.POLLIN):
            self._ended += self.relay.ended()

    def has_ended(self, number: int) -> bool:
        self.turn()
        assert self._ended.count(number) <= 1
        return number in self._ended

    def next_request(self) -> socket.socket:
        """Triton's end of the connection on which something comes: a new one, or one that was kept."""
        return wait_for(self._request_now, "a request", pause=0.0005)

    def _request_now(self) -> socket.socket | None:
        self.turn()
        if is_ready(self.triton, select.POLLIN):
            connection, _ = self.triton.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.settimeout(60)
            self._kept.append(connection)
        for one in self._kept:
            if is_ready(one, select.POLLIN):
                self._kept.remove(one)
                with suppress(ConnectionResetError):
                    if one.recv(1, socket.MSG_PEEK):
                        return one
                # What was given up is no request.
                self._lost.append(one)
                break
        return None

    def wait_until(self, condition: Callable[[], bool]) -> None:
        def holds() -> bool:
            self.turn()
            return condition()

        wait_for(holds, pause=0.0005)

    def keep(self, connection: socket.socket) -> None:
        self._kept.append(connection)

    def close(self) -> None:
        self.relay.close()
        self.upstreams.close()
        for one in [self.triton, *self._kept, *self._lost]:
            one.close()


@contextmanager
def new_world(most: int = 64, backlog: int = 512) -> Iterator[World]:
    made = World(most, backlog)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with new_world() as made:
        yield made


class Asked:
    """A request that is with Triton: `triton` is the far end of its connection, `client` that of the client's.
    `buffer`: what each of the client's sockets holds."""

    def __init__(
        self,
        world: World,
        stream: sse.ChatStream = WITH_USAGE,
        *,
        request: bytes = REQUEST,
        buffer: int | None = None,
        waits: bool = True,
    ) -> None:
        self.world = world
        self.server, self.client = socket.socketpair()
        for one in (self.server, self.client):
            one.setblocking(False)
            if buffer is not None:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
        self.got = b""
        self._outcome: Outcome | None = None
        self._triton: socket.socket | None = None
        try:
            self.stream = world.relay.ask(
                world.upstreams, request, self.server.fileno(), CLIENT_HEAD, IDENTITY, telling_of(stream)
            )
        except BaseException:
            self.server.close()
            self.client.close()
            raise
        if waits:
            self.read_request(len(request))
            assert self.request == request

    @property
    def triton(self) -> socket.socket:
        assert self._triton is not None
        return self._triton

    def accept(self) -> None:
        self._triton = self.world.next_request()
        self.port: int = self._triton.getpeername()[1]
        """Of the relay's end."""

    def read_request(self, size: int = len(REQUEST)) -> None:
        if self._triton is None:
            self.accept()
        self.triton.setblocking(False)
        parts: list[bytes] = []
        size_left = size

        def is_there() -> bool:
            nonlocal size_left
            self.world.turn()
            with suppress(BlockingIOError):
                while size_left and (data := self.triton.recv(min(size_left, 1 << 20))):
                    parts.append(data)
                    size_left -= len(data)
            return size_left == 0

        wait_for(is_there, "the request", pause=0.0005)
        self.request = b"".join(parts)
        self.triton.settimeout(60)

    @property
    def has_ended(self) -> bool:
        return self.world.has_ended(self.stream.number)

    def wait_for_tokens(self, count: int) -> None:
        self.world.wait_until(lambda: self.stream.tokens == count)

    def wait_for_end(self) -> None:
        wait_for(lambda: self.has_ended, "the end", pause=0.0002)

    def read(self) -> bytes:
        """What the client has got so far."""
        with suppress(BlockingIOError):
            while data := self.client.recv(1 << 16):
                self.got += data
        return self.got

    def stop(self) -> Outcome:
        """The first one's."""
        if self._outcome is None:
            self._outcome = self.world.relay.stop(self.stream)
            if self._outcome.is_finished:
                self.world.keep(self.triton)
        return self._outcome

    def taken(self) -> socket.socket:
        """The connection that the relay has left."""
        number = self.stop().take_socket()
        assert number >= 0
        assert self.stop().take_socket() == -1, "it has one owner"
        return socket.socket(fileno=number)

    def close(self) -> None:
        outcome = self.stop()
        if (number := outcome.take_socket()) >= 0:
            os.close(number)
        self.server.close()
        self.client.close()
        if self._triton is not None and not outcome.is_finished:
            self._triton.close()


@contextmanager
def ask(
    world: World,
    stream: sse.ChatStream = WITH_USAGE,
    *,
    request: bytes = REQUEST,
    buffer: int | None = None,
    waits: bool = True,
) -> Iterator[Asked]:
    asked = Asked(world, stream, request=request, buffer=buffer, waits=waits)
    try:
        yield asked
    finally:
        asked.close()


def body_of(client: bytes, *, is_finished: bool) -> bytes:
    """The events in what a client got: one stream of HTTP, that has ended or not."""
    if not client:
        assert not is_finished
        return b""
    assert client.startswith(CLIENT_HEAD)
    chunks = client.removeprefix(CLIENT_HEAD)
    assert chunks.endswith(LAST) is is_finished
    chunks = chunks.removesuffix(LAST)
    assert b"0\r\n\r\n" not in chunks[:5], "an empty chunk is the last one"
    return dechunked(chunks)


class Plain:
    """The plain path, from the beginning of an answer or from where the relay has left it."""

    def __init__(self, stream: sse.ChatStream) -> None:
        self.body = b""
        self.tokens = 0
        self.prompt_tokens = 0
        self.reason: str | None = None
        self.end = ""
        self._stream = stream
        self._is_begun = False
        self.parser = PlainParser()

    def relayed(self, client: bytes, outcome: Outcome) -> None:
        self.body = body_of(client, is_finished=False)
        self.tokens, self.prompt_tokens = outcome.tokens, outcome.prompt_tokens
        self.reason = outcome.reason or None
        self._is_begun = outcome.is_begun
        if outcome.has_head:
            self.parser.feed(HEAD)

    def feed(self, data: bytes, step: int | None = None) -> None:
        """All that comes until Triton ends it, by so many bytes: of a read that ends in nonsense the parser takes
        nothing."""
        step = step or len(data) or 1
        try:
            for at in range(0, len(data), step):
                self.parser.feed(data[at : at + step])
                while payloads := self.parser.take():
                    for payload in payloads:
                        self._take(payload)
            if not self.parser.done:
                self.parser.eof()
        except PlainProtocolError as error:
            self.end = f"broken: {error}"
        except UpstreamError as error:
            self.end = f"error: {error}"
        except (ValueError, TypeError, AttributeError):
            self.end = "no response"
        else:
            self._finish()

    def _take(self, payload: bytes) -> None:
        delta = parse_response(payload)
        if not self._is_begun:
            self._is_begun = True
            self.body += self._stream.role(0, None)
        if delta.text:
            self.body += self._stream.content(0, delta.text, None)
        self.tokens += delta.new_tokens
        self.prompt_tokens = delta.prompt_tokens or self.prompt_tokens
        self.reason = delta.finish_reason or self.reason

    def _finish(self) -> None:
        if self.parser.status != 200:
            self.end = f"{self.parser.status}: {self.parser.error_body!r}"
        elif self.reason is None:
            self.end = "no reason"
        else:
            self.end = "finished"
            self.body += self._stream.finish(0, self.reason, None)
            self.body += self._stream.end(usage_of(self.prompt_tokens, self.tokens))

    @property
    def state(self) -> tuple[bytes, int, int, str | None, str]:
        return self.body, self.tokens, self.prompt_tokens, self.reason, self.end


def plain(answer: bytes, stream: sse.ChatStream, step: int | None = None) -> Plain:
    whole = Plain(stream)
    whole.feed(answer, step)
    return whole


def upstream_of(triton: socket.socket) -> int:
    """A duplicate of the relay's end of this connection."""
    for name in os.listdir("/proc/self/fd"):
        # The folder's own descriptor is gone by now.
        with suppress(FileNotFoundError):
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                with socket.socket(fileno=os.dup(int(name))) as found:
                    if found.family == socket.AF_INET and found.getsockname() == triton.getpeername():
                        return found.detach()
    raise AssertionError("the relay has no such connection")


def told(
    world: World, pieces: Sequence[bytes], stream: sse.ChatStream, step: int | None = None
) -> tuple[Outcome, Plain]:
    """What comes of an answer in these pieces, each of them read by itself: what the relay makes of it and, where that
    has left it, the plain path after it. Triton ends what the relay has not."""
    with ask(world, stream) as asked:
        upstream = upstream_of(asked.triton)
        poll = select.poll()
        poll.register(upstream, select.POLLIN)
        for piece in pieces:
            asked.triton.sendall(piece)
            wait_for(lambda: asked.has_ended or not poll.poll(0), "the relay to read", pause=0)
        os.close(upstream)
        if not asked.has_ended:
            asked.triton.shutdown(socket.SHUT_WR)
            asked.wait_for_end()
        outcome = asked.stop()
        assert outcome.unsent == b""
        check_counts(outcome)
        assert outcome.tokens == asked.stream.tokens
        after = Plain(stream)
        if outcome.is_finished:
            assert outcome.take_socket() == -1
            assert outcome.rest == b""
            assert outcome.is_begun
            assert outcome.has_head
            after.body = body_of(asked.read(), is_finished=True)
            after.tokens, after.prompt_tokens, after.reason = outcome.tokens, outcome.prompt_tokens, outcome.reason
            after.end = "finished"
            return outcome, after
        after.relayed(asked.read(), outcome)
        with asked.taken() as connection:
            # What was sent after the relay had left it.
            with suppress(BrokenPipeError, ConnectionResetError):
                asked.triton.shutdown(socket.SHUT_WR)
            connection.settimeout(60)
            left = outcome.rest
            while data := connection.recv(1 << 16):
                left += data
        assert asked.read() == asked.got, "nothing is written any more"
        after.feed(left, step)
        return outcome, after


def check_counts(outcome: Outcome) -> None:
    assert outcome.is_begun is (outcome.head_at > 0)
    assert (outcome.tokens > 0) is (outcome.first > 0) is (outcome.last > 0)
    assert outcome.first <= outcome.last
    assert outcome.last - outcome.first == pytest.approx(outcome.gap_sum)
    assert len(outcome.tally) == len(BOUNDS) + 1
    # The first read's are no times between tokens.
    assert sum(outcome.tally) < outcome.tokens or not outcome.tokens


@st.composite
def last_responses(draw: st.DrawFn) -> bytes:
    members = [
        b'"text_output":' + draw(st.one_of(st.just(b'""'), json_strings())),
        b'"finish_reason":' + draw(st.sampled_from([b'"stop"', b'"length"'])),
    ]
    if draw(st.booleans()):
        members.append(b'"num_output_tokens":%d' % draw(st.integers(0, 3)))
    if draw(st.booleans()):
        members.append(b'"num_input_tokens":%d' % draw(st.integers(0, 100)))
    if draw(st.booleans()):
        members.append(b'"stop_reason":"null"')
    return b"data: {" + b",".join(draw(st.permutations(members))) + b"}\n\n"


HEADS = [
    HEAD,
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\ntransfer-encoding: CHUNKED\r\n\r\n",
    b"HTTP/1.1 200 \r\nTRANSFER-ENCODING: chunked\r\nConnection: Keep-Alive\r\nX: y\r\n\r\n",
]


@st.composite
def whole_answers(draw: st.DrawFn) -> bytes:
    events = [ADMITTED] if draw(st.booleans()) else []
    events += [*draw(st.lists(responses(), max_size=8)), draw(last_responses())]
    groups = [b""]
    for one in events:
        if groups[-1] and draw(st.booleans()):
            groups.append(b"")
        groups[-1] += one
    return draw(st.sampled_from(HEADS)) + b"".join(map(chunk, groups)) + LAST


BOTH_STREAMS = pytest.mark.parametrize("stream", [WITH_USAGE, WITHOUT_USAGE], ids=["usage", "no-usage"])


@BOTH_STREAMS
def test_any_answer_is_told_as_the_plain_path_writes_it(stream: sse.ChatStream, world: World) -> None:
    @settings(max_examples=120)
    @given(whole_answers(), st.lists(st.integers(0), max_size=8))
    def check(answer: bytes, cuts: list[int]) -> None:
        outcome, made = told(world, cut(answer, cuts), stream)
        assert outcome.is_finished, "nothing of this needs Python"
        assert made.state == plain(answer, stream).state

    check()


@BOTH_STREAMS
def test_an_answer_is_told_for_every_cut(stream: sse.ChatStream, world: World) -> None:
    right = plain(ANSWER, stream).state
    assert right[1:] == (3, 7, "stop", "finished")
    singly = [ANSWER[at : at + 1] for at in range(len(ANSWER))]
    for pieces in [[ANSWER], singly, *([ANSWER[:at], ANSWER[at:]] for at in range(1, len(ANSWER)))]:
        outcome, made = told(world, pieces, stream)
        assert outcome.is_finished
        assert made.state == right


def test_a_request_is_sent_as_it_is_and_the_client_gets_one_stream(world: World) -> None:
    with ask(world) as asked:
        assert asked.request == REQUEST
        asked.triton.sendall(ANSWER)
        asked.wait_for_end()
        client = asked.read()
    events = (
        WITH_USAGE.role(0, None)
        + WITH_USAGE.content(0, 'a "b"\n', None)
        + WITH_USAGE.content(0, "日🎉", None)
        + WITH_USAGE.finish(0, "stop", None)
        + WITH_USAGE.end(usage_of(7, 3))
    )
    assert client == CLIENT_HEAD + chunk(events) + LAST


def head(*lines: str, status: str = "HTTP/1.1 200 OK") -> bytes:
    return "\r\n".join([status, *lines, "", ""]).encode()


BODY = ANSWER.removeprefix(HEAD)
JSON_ERROR = b'{"error":"no"}'
BEGUN = HEAD + chunk(ADMITTED) + chunk(event("a"))
LEFT: dict[str, bytes] = {
    "refused": head("Content-Length: 14", status="HTTP/1.1 400 Bad Request") + JSON_ERROR,
    "unavailable": head("Transfer-Encoding: chunked", status="HTTP/1.1 503 X") + chunk(JSON_ERROR) + LAST,
    "redirect": head("Content-Length: 0", "Location: /", status="HTTP/1.1 302 Found"),
    "interim": head(status="HTTP/1.1 100 Continue") + ANSWER,
    "older": head("Transfer-Encoding: chunked", status="HTTP/1.0 200 OK") + BODY,
    "close": head("Transfer-Encoding: chunked", "Connection: close") + BODY,
    "upgrade": head("Connection: upgrade", "Transfer-Encoding: chunked") + BODY,
    "kept and closed": head("Connection: keep-alive", "Transfer-Encoding: chunked", "Connection: close") + BODY,
    "close behind a blank": head("Connection : close", "Transfer-Encoding: chunked") + BODY,
    "length": head(f"Content-Length: {len(ADMITTED + ENDED)}") + ADMITTED + ENDED,
    "length and chunks": head("Content-Length: 5", "Transfer-Encoding: chunked") + BODY,
    "until the end": head("Content-Type: text/event-stream") + ADMITTED + event("a") + ENDED,
    "compressed": head("Transfer-Encoding: gzip, chunked") + BODY,
    "no space": head("Transfer-Encoding:chunked") + BODY,
    "garbage": b"SSH-2.0-x\r\n" + ANSWER,
    "nearly http": b"HTTP/1.1 2000 OK\r\n\r\n",
    "endless head": b"HTTP/1.1 200 OK\r\nX: " + b"y" * 5000,
    "nothing": b"",
    "head alone": HEAD,
    "empty answer": HEAD + LAST,
    "no end": BEGUN + LAST,
    "first is an error": HEAD + chunk(b'data: {"error":"INTERNAL: it broke"}\n\n') + LAST,
    "error": BEGUN + chunk(b'data: {"error":"INTERNAL: it broke"}\n\n') + LAST,
    **{f"reason {reason}": BEGUN + chunk(event("z", finish_reason=reason)) + LAST
       for reason in ("abort", "error", "tool_calls", "", "Stop", "stop ")},
    "stop reason": BEGUN + chunk(event("z", finish_reason="stop", stop_reason='"END"')) + LAST,
    "event behind the last, same chunk": BEGUN + chunk(ENDED + event("more")) + LAST,
    "event behind the last": BEGUN + chunk(ENDED) + chunk(event("more")) + LAST,
    "two ends": BEGUN + chunk(ENDED) + chunk(event("", finish_reason="length")) + LAST,
    "two ends, same chunk": BEGUN + chunk(ENDED + ENDED) + LAST,
    "bytes behind": BEGUN + chunk(ENDED) + LAST + b"more",
    "answer behind": ANSWER + ANSWER,
    "trailer": BEGUN + chunk(ENDED) + b"0\r\nA: b\r\n\r\n",
    "zeros": BEGUN + chunk(ENDED) + b"00\r\n\r\n",
    "extension": BEGUN + chunk(ENDED) + b"0;a\r\n\r\n",
    "no last chunk": BEGUN + chunk(ENDED),
    "half a last chunk": BEGUN + chunk(ENDED) + b"0\r\n\r",
    **{f"odd {name}": BEGUN + chunk(body) + chunk(ENDED) + LAST
       for name, body in ODD.items() if name not in ("finish", "length")},
    **{f"odd first {name}": HEAD + chunk(body) + chunk(ENDED) + LAST
       for name, body in ODD.items() if name not in ("finish", "length")},
    **{f"chunk {name}": BEGUN + body + chunk(ENDED) + LAST
       for name, body in STRANGE_CHUNKS.items() if name not in ("capitals", "zeros ahead")},
}


@pytest.mark.parametrize("answer", LEFT.values(), ids=list(LEFT))
@pytest.mark.parametrize("size", [1 << 20, 7], ids=["whole", "in-parts"])
def test_what_is_not_understood_is_left_whole(answer: bytes, size: int, world: World) -> None:
    pieces = [answer[at : at + size] for at in range(0, len(answer), size)]
    step = 1 if len(answer) < 10_000 else 1000
    if size == 7:
        # Else the relay might have told all, and what is behind it be of no answer.
        end = answer.find(chunk(ENDED) + LAST)
        if end >= 0 and len(chunk(ENDED) + LAST) < len(answer) - end:
            pieces = [*cut(answer[:end], range(0, end, 7)), answer[end:]]
    outcome, made = told(world, pieces, WITH_USAGE, step)
    assert not outcome.is_finished
    right = plain(answer, WITH_USAGE, step)
    assert made.state == right.state
    if size > 7 and answer.startswith(HEAD):
        # All of a read is left, unless it is the end that is missing.
        is_open = right.end.startswith("broken: the connection was closed")
        assert outcome.is_begun is (is_open and answer != HEAD)


def test_what_was_read_of_an_answer_is_counted_and_the_rest_left(world: World) -> None:
    error = chunk(b'data: {"error":"INTERNAL: it broke"}\n\n')
    with ask(world) as asked:
        asked.triton.sendall(BEGUN)
        asked.wait_for_tokens(1)
        asked.triton.sendall(chunk(event("b")) + error)
        asked.wait_for_end()
        outcome = asked.stop()
        assert (outcome.tokens, outcome.prompt_tokens, outcome.reason) == (1, 7, "")
        assert outcome.rest == chunk(event("b")) + error
        assert outcome.has_head
        assert outcome.is_begun
        with asked.taken() as connection:
            assert connection.getsockname()[1] == asked.port
    with ask(world) as asked:
        asked.triton.sendall(HEAD[:-2])
        asked.triton.sendall(HEAD[-2:])
        asked.triton.sendall(error)
        asked.wait_for_end()
        outcome = asked.stop()
        assert outcome.rest.endswith(error)
        assert outcome.rest in (error, HEAD + error)
        assert outcome.has_head is (outcome.rest == error)
        assert not outcome.is_begun
        assert asked.read() == b""


@pytest.mark.parametrize("answer", [ANSWER, LONG], ids=["poll", "thread"])
def test_it_is_finished_as_soon_as_the_client_has_all(answer: bytes, world: World) -> None:
    with ask(world) as asked:
        asked.triton.sendall(answer[:-1])
        asked.wait_for_tokens(plain(answer, WITH_USAGE).tokens)
        assert not asked.stream.is_finished
        asked.triton.sendall(answer[-1:])
        world.wait_until(lambda: asked.read().endswith(LAST))
        assert asked.stream.is_finished
        asked.wait_for_end()
    with ask(world) as asked:
        asked.triton.sendall(BEGUN + LAST)
        asked.wait_for_end()
        assert not asked.stream.is_finished


def test_a_known_end_whose_last_chunk_does_not_come_is_left_with_its_reason(world: World) -> None:
    with ask(world) as asked:
        asked.triton.sendall(BEGUN + chunk(event("z", finish_reason="length")))
        asked.wait_for_tokens(2)
        asked.triton.shutdown(socket.SHUT_WR)
        asked.wait_for_end()
        outcome = asked.stop()
        assert (outcome.reason, outcome.is_finished, outcome.rest) == ("length", False, b"")
        with asked.taken() as connection:
            assert connection.recv(1) == b""


def test_broken_bytes_end_as_on_the_plain_path(world: World) -> None:
    events = st.sampled_from([event(), event("日本 🎉"), event("a\nb", num_output_tokens=3), event("")])
    broken = st.tuples(st.integers(0), st.sampled_from(BREAKS), st.integers(0, 7))

    @settings(max_examples=300)
    @given(st.lists(events), st.lists(broken, min_size=1, max_size=3), st.lists(st.integers(0), max_size=4))
    def check(events: list[bytes], breaks: list[tuple[int, str, int]], cuts: list[int]) -> None:
        data = bytearray(HEAD + b"".join(map(chunk, [*events, ENDED])) + LAST)
        for place, how, bit in breaks:
            at = place % len(data)
            match how:
                case "flip":
                    data[at] ^= 1 << bit
                case "drop":
                    del data[at : at + 1 + bit]
                case "double":
                    data[at:at] = data[at : at + 1 + bit]
                case "zero":
                    data[at] = 0
        answer = bytes(data)
        right = plain(answer, WITH_USAGE, step=1)
        # What came behind an answer that was told is of none.
        outcome, made = told(world, cut(answer, cuts), WITH_USAGE, step=1)
        if not (outcome.is_finished and right.end.endswith("after the end of the response")):
            assert made.state == right.state

    check()


def test_the_end_of_the_connection_at_any_point_is_left(world: World) -> None:
    for length in range(len(ANSWER)):
        outcome, made = told(world, cut(ANSWER[:length], [length // 2]), WITHOUT_USAGE)
        assert not outcome.is_finished
        assert made.state == plain(ANSWER[:length], WITHOUT_USAGE).state
        assert made.end == "broken: the connection was closed in the middle of the response"


@pytest.mark.parametrize("sent", [b"", HEAD[:9], HEAD, BEGUN, BEGUN + b"5", BEGUN + chunk(ENDED)])
def test_a_reset_is_left_with_what_came(sent: bytes, world: World) -> None:
    with ask(world) as asked:
        upstream = upstream_of(asked.triton)
        asked.triton.sendall(sent)
        with socket.socket(fileno=upstream) as own:
            world.wait_until(lambda: not is_ready(own, select.POLLIN))
        asked.triton.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        asked.triton.close()
        asked.wait_for_end()
        outcome = asked.stop()
        assert (outcome.is_begun, outcome.is_finished) == (sent.startswith(BEGUN), False)
        made = Plain(WITH_USAGE)
        made.relayed(asked.read(), outcome)
        made.feed(outcome.rest)
        assert made.state == plain(sent, WITH_USAGE).state
        with asked.taken() as connection:
            assert connection.recv(1) == b"", "the end is found once more"


def finish(asked: Asked, answer: bytes = ANSWER) -> Outcome:
    asked.triton.sendall(answer)
    asked.wait_for_end()
    outcome = asked.stop()
    assert outcome.is_finished
    return outcome


def is_closed(triton: socket.socket) -> bool:
    """Whether the relay's end is; waits for something to come."""
    try:
        return triton.recv(1) == b""
    except ConnectionResetError:
        return True


def test_a_connection_is_kept_for_the_next_request() -> None:
    with new_world() as world:
        with ask(world) as first:
            port = first.port
            assert finish(first).connect_seconds > 0
        for answer in (ANSWER, LONG):
            with ask(world) as next_one:
                assert next_one.port == port
                assert not next_one.stream.is_connecting
                assert finish(next_one, answer).connect_seconds == 0
        with ask(world) as one, ask(world) as other:
            assert one.port == port
            assert other.port != port
            # The last that was given back is the first that is taken: the others come of age.
            finish(one)
            finish(other)
            other_port = other.port
        with ask(world) as last:
            assert last.port == other_port


@pytest.mark.parametrize("answer", ["refused", "close", "error", "bytes behind", "no last chunk"])
def test_a_connection_that_was_left_is_not_kept(answer: str) -> None:
    with new_world() as world:
        with ask(world) as asked:
            port = asked.port
            asked.triton.sendall(LEFT[answer])
            asked.triton.shutdown(socket.SHUT_WR)
            asked.wait_for_end()
            assert not asked.stop().is_finished
            asked.taken().close()
            assert is_closed(asked.triton)
        with ask(world) as asked:
            assert asked.port != port


def test_no_more_are_kept_than_there_may_be() -> None:
    with new_world(most=1) as world, ask(world) as one, ask(world) as other:
        finish(one)
        finish(other)
        assert is_closed(other.triton)
        with ask(world) as third:
            assert third.port == one.port


def test_idle_connections_are_closed() -> None:
    with new_world() as world:
        assert world.upstreams.close_idle(0) == 0
        with ask(world) as asked:
            finish(asked)
            assert 0 < world.upstreams.close_idle(1000) <= 1000
            assert world.upstreams.close_idle(0) == 0
            assert is_closed(asked.triton)
        with ask(world) as asked:
            # One that is used is not idle.
            assert world.upstreams.close_idle(0) == 0
            finish(asked)


def test_only_those_that_are_old_enough_are_closed() -> None:
    with new_world() as world, ask(world) as old, ask(world) as young:
        finish(old)
        since = time.monotonic()
        wait_for(lambda: time.monotonic() > since + 0.01)
        finish(young)
        due = world.upstreams.close_idle(time.monotonic() - since)
        assert due > 0
        assert is_closed(old.triton)
        with ask(world) as next_one:
            assert next_one.port == young.port


def test_none_is_kept_once_all_are_closed() -> None:
    with new_world() as world, ask(world) as before, ask(world) as across:
        finish(before)
        world.upstreams.close()
        assert is_closed(before.triton)
        finish(across)
        assert is_closed(across.triton)
        with ask(world) as after:
            assert after.port not in (before.port, across.port)
            finish(after)


@pytest.mark.parametrize("late", [b"", b"HTTP/1.1 408 Request Timeout\r\n\r\n"], ids=["end", "bytes"])
def test_a_kept_connection_on_which_something_came_is_not_used(late: bytes) -> None:
    with new_world() as world, ask(world) as first:
        finish(first)
        with socket.socket(fileno=upstream_of(first.triton)) as kept:
            if late:
                first.triton.sendall(late)
            else:
                first.triton.shutdown(socket.SHUT_WR)
            wait_for(lambda: is_ready(kept, select.POLLIN))
        with ask(world) as second:
            assert second.port != first.port
            assert finish(second).connect_seconds > 0
        assert is_closed(first.triton)


def test_a_kept_connection_that_ends_under_a_request_is_left_as_such() -> None:
    with new_world() as world:
        with ask(world) as first:
            finish(first)
        with ask(world) as second:
            second.triton.close()
            second.wait_for_end()
            outcome = second.stop()
            assert (outcome.rest, outcome.has_head, outcome.connect_seconds) == (b"", False, 0)
            with second.taken() as connection:
                assert connection.recv(1) == b""


def test_whose_answer_is_over_keeps_its_connection_whoever_stops_it_first(world: World) -> None:
    with ask(world) as asked:
        asked.triton.sendall(ANSWER)
        world.wait_until(lambda: is_ready(asked.client, select.POLLIN))
        assert asked.stop().is_finished
        port = asked.port
    with ask(world) as asked:
        assert asked.port == port


def test_an_address_that_refuses_is_an_os_error_or_an_end_without_a_connection() -> None:
    with new_world() as world:
        world.triton.close()
        try:
            asked = Asked(world, waits=False)
        except OSError:
            return
        try:
            asked.wait_for_end()
            outcome = asked.stop()
            assert outcome.take_socket() == -1
            assert not outcome.is_finished
            assert asked.read() == b""
        finally:
            asked.close()


@pytest.mark.parametrize(("host", "port"), [("localhost", "1"), ("", "1"), ("1.2.3.4.5", "1"), ("127.0.0.1", "http")])
def test_a_name_is_no_address(host: str, port: str) -> None:
    with pytest.raises(ValueError, match=r"not known|not supported"):
        Upstreams(host, port, 1)


def test_an_address_of_the_newer_kind(world: World) -> None:
    server, client = socket.socketpair()
    with ExitStack() as stack:
        stack.enter_context(server)
        stack.enter_context(client)
        given = server.fileno(), CLIENT_HEAD, IDENTITY, telling_of(WITH_USAGE)
        try:
            triton = stack.enter_context(socket.create_server(("::1", 0), family=socket.AF_INET6))
        except OSError as error:
            # A machine without them.
            with pytest.raises(OSError, match=os.strerror(error.errno or 0)):
                world.relay.ask(Upstreams("::1", "1", 1), REQUEST, *given)
            return
        stream = world.relay.ask(Upstreams("::1", str(triton.getsockname()[1]), 1), REQUEST, *given)
        world.turn()
        connection = stack.enter_context(triton.accept()[0])
        connection.settimeout(60)
        world.wait_until(lambda: not stream.is_connecting)
        assert connection.recv(len(REQUEST)) == REQUEST
        connection.sendall(ANSWER)
        wait_for(lambda: world.has_ended(stream.number))
        assert world.relay.stop(stream).is_finished
        assert is_closed(connection), "its connections are gone with who has kept them"


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_client_that_is_none_is_an_os_error_and_costs_nothing(world: World) -> None:
    with ask(world) as asked:
        finish(asked)
    before = descriptors()
    for _ in range(3):
        with pytest.raises(OSError, match="Bad file descriptor"):
            world.relay.ask(world.upstreams, REQUEST, 1 << 20, CLIENT_HEAD, IDENTITY, telling_of(WITH_USAGE))
    # The first has taken the connection that was kept.
    assert descriptors() <= before


@contextmanager
def busy() -> Iterator[tuple[World, socket.socket]]:
    """A Triton that makes no connection before it has accepted the one that it gives."""
    with new_world(backlog=0) as world, socket.create_connection(world.triton.getsockname()) as first:
        yield world, first


def test_a_connection_that_is_not_made_yet() -> None:
    with busy() as (world, first), ask(world, waits=False) as given_up, ask(world, waits=False) as asked:
        for one in (given_up, asked):
            world.turn()
            assert one.stream.is_connecting
            assert not one.has_ended
        outcome = given_up.stop()
        assert outcome.take_socket() == -1
        assert (outcome.rest, outcome.has_head, outcome.is_begun, outcome.is_finished) == (b"", False, False, False)
        world.triton.accept()[0].close()
        # It tries again by itself.
        asked.read_request()
        assert asked.request == REQUEST
        assert not asked.stream.is_connecting
        assert finish(asked).connect_seconds > 0
        assert not is_ready(world.triton, select.POLLIN), "what was given up is not asked"
        assert first


def test_a_connection_that_cannot_be_made_after_all() -> None:
    with busy() as (world, _), ask(world, waits=False) as asked:
        world.turn()
        assert asked.stream.is_connecting
        world.triton.close()
        asked.wait_for_end()
        outcome = asked.stop()
        assert outcome.take_socket() == -1
        assert outcome.connect_seconds == 0


LARGE = b"POST / HTTP/1.1\r\n\r\n" + bytes(range(256)) * 64 * 1024


def test_a_request_larger_than_the_sockets_to_a_triton_that_reads_late(world: World) -> None:
    with ask(world, request=LARGE, waits=False) as asked:
        asked.accept()
        for _ in range(3):
            assert not asked.has_ended
        with ask(world) as another:
            finish(another)
        asked.read_request(len(LARGE))
        assert asked.request == LARGE
        finish(asked)
        assert body_of(asked.read(), is_finished=True) == plain(ANSWER, WITH_USAGE).body


def test_half_of_a_large_request_is_given_up(world: World) -> None:
    with ask(world, request=LARGE, waits=False) as asked:
        asked.accept()
        assert not asked.has_ended
        assert asked.stop().take_socket() == -1
        asked.triton.settimeout(60)
        size = 0
        with suppress(ConnectionResetError):
            while data := asked.triton.recv(1 << 20):
                size += len(data)
        assert size < len(LARGE)


def test_a_triton_that_refuses_a_large_request_unread_is_left_with_its_answer(world: World) -> None:
    with ask(world, request=LARGE, waits=False) as asked:
        asked.accept()
        asked.triton.sendall(LEFT["refused"])
        asked.triton.shutdown(socket.SHUT_RDWR)
        # What is still to come is answered with a reset.
        asked.triton.close()
        asked.wait_for_end()
        outcome = asked.stop()
        assert not outcome.is_begun
        assert outcome.take_socket() >= 0 or outcome.rest == b""


BIG = chunk(event("z" * 3000))


def hold(asked: Asked) -> int:
    """Send `BIG`, over and over, until the client keeps the relay from reading on and nothing more is taken; how many
    bytes were."""
    asked.triton.sendall(HEAD + chunk(ADMITTED))
    asked.triton.setblocking(False)
    sent = 0

    def is_full() -> bool:
        nonlocal sent
        asked.world.turn()
        with suppress(BlockingIOError):
            while True:
                sent += asked.triton.send((BIG * 20)[sent % len(BIG) :])
        return asked.stream.is_held and not is_ready(asked.triton, select.POLLOUT)

    wait_for(is_full, "the sockets to be full", pause=0.001)
    asked.triton.settimeout(60)
    return sent


@BOTH_STREAMS
def test_a_client_that_does_not_read_holds_its_answer_and_no_other(stream: sse.ChatStream, world: World) -> None:
    with ask(world, stream, buffer=4096) as slow:
        sent = hold(slow)
        tokens = slow.stream.tokens
        with ask(world) as fast:
            finish(fast, LONG)
        assert slow.stream.is_held
        assert slow.stream.tokens == tokens
        assert not slow.has_ended
        # It goes on where it was, with nothing lost.
        rest = BIG[sent % len(BIG) :] + chunk(ENDED) + LAST
        sending = threading.Thread(target=slow.triton.sendall, args=[rest])
        sending.start()
        wait_for(lambda: slow.read() and slow.has_ended, pause=0.001)
        sending.join()
        outcome = slow.stop()
        assert outcome.is_finished
        client = slow.read() + outcome.unsent
        answer = HEAD + chunk(ADMITTED) + BIG * (sent // len(BIG) + 1) + chunk(ENDED) + LAST
        assert body_of(client, is_finished=True) == plain(answer, stream).body


def test_what_a_slow_client_has_not_got_is_whole_with_the_rest(world: World) -> None:
    with ask(world, buffer=4096) as asked:
        hold(asked)
        outcome = asked.stop()
        assert outcome.unsent
        assert (outcome.is_finished, outcome.take_socket()) == (False, -1)
        body = body_of(asked.read() + outcome.unsent, is_finished=False)
        assert body == WITH_USAGE.role(0, None) + WITH_USAGE.content(0, "z" * 3000, None) * outcome.tokens


def test_the_end_that_a_client_has_not_read_is_whole_with_what_is_unsent(world: World) -> None:
    text = "e" * 10_000
    answer = HEAD + chunk(ADMITTED) + chunk(event(text, finish_reason="stop")) + LAST
    with ask(world, buffer=2048) as asked:
        asked.triton.sendall(answer)
        world.wait_until(lambda: asked.stream.is_held or asked.has_ended)
        # Either it waits with the end, or it has ended and left that.
        wait_for(lambda: asked.has_ended or asked.stream.is_held)
        outcome = asked.stop()
        assert outcome.is_finished
        assert outcome.unsent
        client = asked.read() + outcome.unsent
        assert body_of(client, is_finished=True) == plain(answer, WITH_USAGE).body


@pytest.mark.parametrize("answer", [BEGUN, LONG[: -len(LAST)]], ids=["poll", "thread"])
def test_a_client_that_is_gone_ends_it(answer: bytes, world: World) -> None:
    with ask(world) as asked:
        asked.client.close()
        asked.triton.sendall(answer)
        asked.wait_for_end()
        outcome = asked.stop()
        assert not outcome.is_finished
        asked.taken().close()
        assert is_closed(asked.triton)
    with ask(world, buffer=4096) as asked:
        hold(asked)
        asked.client.close()
        asked.wait_for_end()
        assert not asked.stop().is_finished


@pytest.mark.parametrize("length", range(0, len(LONG), 31))
def test_stop_gives_the_request_up_and_writes_nothing_after(length: int, world: World) -> None:
    with ask(world) as asked:
        asked.triton.sendall(LONG[:length])
        for _ in range(length % 3):
            world.turn()
        outcome = asked.stop()
        assert outcome.take_socket() == -1
        assert not outcome.is_finished
        check_counts(outcome)
        got = asked.read()
        assert is_closed(asked.triton)
        with suppress(BrokenPipeError, ConnectionResetError):
            asked.triton.sendall(LONG[length:])
        with ask(world) as another:
            finish(another, LONG)
        assert asked.read() == got
        again = world.relay.stop(asked.stream)
        assert (again.tokens, again.is_begun, again.take_socket()) == (0, False, -1), "the first gets it all"
        # What it has told by then is the beginning of the answer, and what it has not is left.
        made = Plain(WITH_USAGE)
        made.relayed(got, outcome)
        made.feed(outcome.rest)
        assert plain(LONG, WITH_USAGE).body.startswith(made.body)


def test_stop_while_the_thread_ends_it(world: World) -> None:
    right = plain(LONG, WITH_USAGE).body
    middle = len(HEAD + chunk(ADMITTED)) + 5 * len(chunk(event("x")))
    for number in range(200):
        with ask(world) as asked:
            asked.triton.sendall(LONG[:middle])
            asked.wait_for_tokens(5)
            asked.triton.sendall(LONG[middle:])
            for _ in range(number % 50):
                is_ready(asked.client, select.POLLIN)
            outcome = asked.stop()
            client = asked.read() + outcome.unsent
            if outcome.is_finished:
                assert body_of(client, is_finished=True) == right
            else:
                assert right.startswith(body_of(client, is_finished=False))


def test_who_asked_moves_it_until_it_is_long(world: World) -> None:
    def is_due() -> bool:
        poll = select.poll()
        poll.register(world.relay.poll_fileno(), select.POLLIN)
        return bool(poll.poll(0))

    one = chunk(event("x"))
    with ask(world) as asked:
        world.turn()
        asked.triton.sendall(HEAD + chunk(ADMITTED) + one * (SHORT - 1))
        wait_for(is_due)
        assert asked.stream.tokens == 0
        world.turn()
        assert asked.stream.tokens == SHORT - 1
        assert not is_due()
        asked.triton.sendall(one)
        wait_for(is_due)
        assert asked.stream.tokens == SHORT - 1, "it is not the thread's yet"
        world.turn()
        assert asked.stream.tokens == SHORT
        asked.triton.sendall(one)
        wait_for(lambda: asked.stream.tokens == SHORT + 1)
        assert not is_due()
        asked.triton.sendall(chunk(ENDED) + LAST)
        wait_for(lambda: is_ready(world.relay, select.POLLIN))
        assert not is_due()
        assert world.relay.poll() == []
        assert world.relay.ended() == [asked.stream.number]
        assert asked.stop().is_finished
        assert body_of(asked.read(), is_finished=True).count(b'"content":"x"') == SHORT + 1
    with ask(world) as asked:
        asked.triton.sendall(ANSWER)
        wait_for(is_due)
        assert world.relay.poll() == [asked.stream.number]
        assert world.relay.poll() == world.relay.ended() == []


def test_the_thread_goes_on_for_a_client_that_was_held_before(world: World) -> None:
    with ask(world, buffer=2048) as asked:
        text = HEAD + chunk(event("y" * 12_000, num_output_tokens=SHORT))
        asked.triton.sendall(text)
        world.wait_until(lambda: asked.stream.is_held)
        asked.triton.sendall(chunk(ENDED) + LAST)
        # Without anybody's turn.
        wait_for(lambda: asked.read() and is_ready(world.relay, select.POLLIN), pause=0.001)
        asked.wait_for_end()
        outcome = asked.stop()
        client = asked.read() + outcome.unsent
        assert body_of(client, is_finished=True) == plain(text + chunk(ENDED) + LAST, WITH_USAGE).body


def test_times_are_counted_as_the_record_does(world: World) -> None:
    with ask(world) as asked:
        began = time.monotonic()
        asked.triton.sendall(HEAD + chunk(ADMITTED))
        world.wait_until(lambda: is_ready(asked.client, select.POLLIN))
        asked.triton.sendall(chunk(event(num_output_tokens=2)))
        asked.wait_for_tokens(2)
        asked.triton.sendall(chunk(event(num_output_tokens=3)))
        asked.wait_for_tokens(5)
        asked.triton.sendall(chunk(event(num_output_tokens=4)))
        asked.wait_for_tokens(9)
        outcome = finish(asked, chunk(ENDED) + LAST)
    assert began < outcome.head_at <= outcome.first < outcome.last
    assert sum(outcome.tally) == 3 + 4, "the first read has no time between tokens"
    assert outcome.gap_sum == pytest.approx(outcome.last - outcome.first)
    assert (outcome.tokens, outcome.prompt_tokens, outcome.reason) == (9, 7, "stop")


def test_hundreds_at_once_some_in_the_thread_and_some_not() -> None:
    with new_world(most=200) as world, ExitStack() as stack:
        asked = [stack.enter_context(ask(world, WITH_USAGE if number % 2 else WITHOUT_USAGE)) for number in range(200)]
        answers = []
        for number in range(200):
            texts = [chunk(event(f"{number} {at} 日")) for at in range(number % 13)]
            answers.append([HEAD + chunk(ADMITTED), *texts, chunk(ENDED), LAST])
        for at in range(16):
            for one, pieces in zip(asked, answers, strict=True):
                for piece in pieces[at : at + 1]:
                    one.triton.sendall(piece)
            world.turn()
        for number, (one, pieces) in enumerate(zip(asked, answers, strict=True)):
            one.wait_for_end()
            outcome = one.stop()
            assert outcome.is_finished
            assert outcome.tokens == number % 13
            right = plain(b"".join(pieces), WITH_USAGE if number % 2 else WITHOUT_USAGE).body
            assert body_of(one.read(), is_finished=True) == right
        # All of their connections are kept, and answer again.
        ports = {one.port for one in asked}
        for one in [stack.enter_context(ask(world)) for _ in range(32)]:
            assert one.port in ports
            finish(one, LONG)


@pytest.mark.parametrize("count", [33, 100])
def test_of_many_that_come_at_once_most_are_the_threads(count: int) -> None:
    """Also where all connections are there."""
    with new_world(most=count) as world, ExitStack() as stack:
        ports = set()
        for one in [stack.enter_context(ask(world)) for _ in range(count)]:
            ports.add(one.port)
            finish(one)
        asked = [stack.enter_context(ask(world, waits=False)) for _ in range(count)]
        assert not any(one.stream.is_connecting for one in asked)
        world.turn()
        for one in asked:
            one.read_request()
            assert one.port in ports
        for one in asked:
            one.triton.sendall(ANSWER)
        # Without anybody's turn.
        assert wait_for(lambda: is_ready(world.relay, select.POLLIN))
        for one in asked:
            one.wait_for_end()
            assert one.stop().is_finished
            assert body_of(one.read(), is_finished=True) == plain(ANSWER, WITH_USAGE).body


def test_the_next_turn_begins_anew_though_no_answer_came() -> None:
    with new_world(most=40) as world:
        with ExitStack() as stack:
            for one in [stack.enter_context(ask(world)) for _ in range(40)]:
                finish(one)
        # All have a connection, and are given up at once.
        for _ in range(32):
            with ask(world, waits=False):
                assert not world.relay.is_due
        with ask(world, waits=False):
            assert world.relay.is_due, "that is the thread's"
        world.relay.flush()
        with ask(world, waits=False):
            assert not world.relay.is_due


def test_the_thread_is_told_at_the_end_of_a_turn_or_of_some_requests_together() -> None:
    with new_world() as world, ExitStack() as stack:
        asked = stack.enter_context(ask(world, waits=False))
        assert world.relay.is_due
        world.relay.flush()
        assert not world.relay.is_due
        asked.read_request()
        # Some of these have told it. None is lost.
        others = [stack.enter_context(ask(world, waits=False)) for _ in range(9)]
        world.turn()
        for one in [asked, *others]:
            if one is not asked:
                one.read_request()
            finish(one)
        assert not world.relay.is_due


def test_a_client_over_tcp_gets_the_same(world: World) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as client:
        server, _ = listener.accept()
        with server:
            server.setblocking(False)
            stream = world.relay.ask(
                world.upstreams, REQUEST, server.fileno(), CLIENT_HEAD, IDENTITY, telling_of(WITH_USAGE)
            )
            triton = world.next_request()
            assert triton.recv(len(REQUEST)) == REQUEST
            triton.sendall(LONG)
            wait_for(lambda: world.has_ended(stream.number))
            assert world.relay.stop(stream).is_finished
            world.keep(triton)
        # It has its end now: the relay's duplicate is gone.
        client.settimeout(60)
        got = b""
        while data := client.recv(1 << 16):
            got += data
    assert body_of(got, is_finished=True) == plain(LONG, WITH_USAGE).body


def test_the_thread_holds_nothing_of_the_interpreters(world: World) -> None:
    """It would wait for whoever stops its stream to let go of the interpreter, who waits for it."""
    telling = telling_of(WITH_USAGE)
    with ask(world) as asked:
        asked.stop()
        given = (world.upstreams, telling, REQUEST, CLIENT_HEAD, IDENTITY)
        before = [sys.getrefcount(one) for one in given]
        stream = world.relay.ask(world.upstreams, REQUEST, asked.server.fileno(), CLIENT_HEAD, IDENTITY, telling)
        assert [sys.getrefcount(one) for one in given] == before
        world.relay.stop(stream)


def test_requests_that_come_and_go_cost_nothing_in_the_end() -> None:
    with new_world(most=1) as world:
        with ask(world) as first:
            finish(first)
        before = descriptors()
        for number in range(200):
            with ask(world) as asked:
                match number % 4:
                    case 0:
                        finish(asked)
                    case 1:
                        finish(asked, LONG)
                    case 2:
                        asked.triton.sendall(LEFT["error"])
                        asked.wait_for_end()
        with ask(world) as last:
            finish(last)
        assert descriptors() == before


def test_a_closed_relay_can_be_stopped_and_closes_what_it_asked() -> None:
    with new_world() as world, ask(world) as asked:
        asked.triton.sendall(LONG[:-len(LAST)])
        asked.wait_for_tokens(8)
        world.relay.close()
        world.relay.close()
        asked.triton.sendall(LAST)
        assert not asked.stop().is_finished
        assert is_closed(asked.triton)


def test_what_outlives_its_relay_and_its_upstreams_is_harmless() -> None:
    world = World()
    with ask(world, waits=False) as asked:
        asked.read_request()
        stream = asked.stream
        relay = world.relay
        world.upstreams.close()
        world.upstreams = Upstreams("127.0.0.1", "1", 1)
        finish(asked)
        assert is_closed(asked.triton)
        assert relay.stop(stream).tokens == 0
    world.close()
