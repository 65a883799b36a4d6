"""The native relay by itself, between real sockets: what reaches the client, what is left for Python, what is counted.

What is right is what the plain path makes of the same bytes: its parser, its reading of a response, its events.
"""

import itertools
import json
import select
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.openai.sse import ChatStream, CompletionStream
from gateway.triton.contract import UpstreamError, parse_response
from gateway.triton.response_parser import PlainParser, PlainProtocolError
from gateway_relay import Outcome, Relay
from tests.support.waiting import wait_for

CHAT = ChatStream('an "id"\n', 1, "modèle", usage_last=True, usage_always=False)
COMPLETION = CompletionStream("id", 1, "m", usage_last=False, usage_always=False)
AROUND = CHAT.around_content(0)
HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
BOUNDS = (0.001, 0.1, 10.0)
LAST = b"0\r\n\r\n"


def chunk(body: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(body), body)


def event(text: str = "x", **members: Any) -> bytes:
    response = {"model_name": "m", "model_version": "1", "text_output": text, "finish_reason": "None"}
    return b"data: " + json.dumps(response | {"num_output_tokens": 1} | members, ensure_ascii=False).encode() + b"\n\n"


def is_ready(what: socket.socket | Relay, event: int) -> bool:
    # select takes no descriptor above 1023.
    poll = select.poll()
    poll.register(what, event)
    return bool(poll.poll(0))


class Running:
    """A relay, and which of its streams have ended by themselves."""

    def __init__(self) -> None:
        self.relay = Relay(BOUNDS)
        self._ended: set[int] = set()

    def has_ended(self, number: int) -> bool:
        if is_ready(self.relay, select.POLLIN):
            self._ended.update(self.relay.ended())
        return number in self._ended

    def finish_reading(self) -> None:
        """What its thread has begun to read it has read: a read goes on as long as something comes, also after a socket
        was found empty. Then it sees the end of another stream."""
        with ExitStack() as stack:
            there, upstream = map(stack.enter_context, socket.socketpair())
            server, _ = map(stack.enter_context, socket.socketpair())
            there.shutdown(socket.SHUT_WR)
            stream = self.relay.start(upstream.fileno(), server.fileno(), *AROUND, 0.0)
            wait_for(lambda: self.has_ended(stream.number), "the end of another stream", pause=0)
            self.relay.stop(stream)


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    running = Running()
    yield running
    running.relay.close()


class Between:
    """A stream between two pairs of sockets: `triton` and `client` are the far ends. `buffer`: what a socket holds."""

    def __init__(self, running: Running, around: tuple[bytes, bytes], buffer: int | None) -> None:
        self.triton, self.upstream = socket.socketpair()
        self.server, self.client = socket.socketpair()
        self._running = running
        self._sockets = (self.triton, self.upstream, self.server, self.client)
        for one in self._sockets:
            one.setblocking(False)
            if buffer is not None:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
        self.triton.setblocking(True)
        self.got = b""
        self.began = time.monotonic()
        self.stream = running.relay.start(self.upstream.fileno(), self.server.fileno(), *around, self.began)

    @property
    def has_ended(self) -> bool:
        return self._running.has_ended(self.stream.number)

    @property
    def has_read(self) -> bool:
        """Whether the relay has taken all that Triton sent."""
        return not is_ready(self.upstream, select.POLLIN)

    def read(self) -> bytes:
        """What the client has got so far."""
        try:
            while data := self.client.recv(1 << 16):
                self.got += data
        except BlockingIOError:
            pass
        return self.got

    def stop(self) -> Outcome:
        return self._running.relay.stop(self.stream)

    def unread(self) -> bytes:
        """What the relay has not read."""
        data = b""
        try:
            while more := self.upstream.recv(1 << 16):
                data += more
        except BlockingIOError:
            pass
        return data

    def close(self) -> None:
        self.stop()
        for one in self._sockets:
            one.close()


@contextmanager
def between(running: Running, around: tuple[bytes, bytes] = AROUND, buffer: int | None = None) -> Iterator[Between]:
    ends = Between(running, around, buffer)
    try:
        yield ends
    finally:
        ends.close()


def dechunked(data: bytes) -> bytes:
    parts = []
    while data:
        size, _, rest = data.partition(b"\r\n")
        length = int(size, 16)
        # As the server writes it.
        assert b"%x" % length == size
        assert rest[length : length + 2] == b"\r\n"
        parts.append(rest[:length])
        data = rest[length + 2 :]
    return b"".join(parts)


def plain(data: bytes, stream: ChatStream | CompletionStream = CHAT) -> tuple[bytes, int, str]:
    """What the plain path makes of the rest of an answer: the client's events, their tokens, and how it ended. It gets
    the bytes one by one, since of a read that ends in nonsense it takes nothing."""
    parser = PlainParser()
    parser.feed(HEAD)
    events: list[bytes] = []
    tokens = 0
    step = 1 if len(data) < 10_000 else 1000
    for at in range(0, len(data), step):
        try:
            parser.feed(data[at : at + step])
        except PlainProtocolError as error:
            return b"".join(events), tokens, str(error)
        while payloads := parser.take():
            for payload in payloads:
                try:
                    delta = parse_response(payload)
                except UpstreamError as error:
                    return b"".join(events), tokens, f"error: {error}"
                except (ValueError, TypeError, AttributeError):
                    return b"".join(events), tokens, "no response"
                tokens += delta.new_tokens
                if delta.text:
                    write = stream.content if isinstance(stream, ChatStream) else stream.text
                    events.append(write(0, delta.text, None))
                if delta.finish_reason is not None:
                    return b"".join(events), tokens, f"finished: {delta.finish_reason}"
    return b"".join(events), tokens, "done" if parser.done else "open"


def cut(data: bytes, places: Iterable[int]) -> list[bytes]:
    ordered = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(ordered) if b > a]


def relayed(
    running: Running, pieces: Iterable[bytes], around: tuple[bytes, bytes] = AROUND
) -> tuple[bytes, Outcome, bytes]:
    """Of an answer that Triton ends: what the client got of it, what was counted, what is left for the plain path."""
    with between(running, around) as ends:
        never_sent = b""
        for piece in pieces:
            if ends.has_ended:
                never_sent += piece
                continue
            ends.triton.sendall(piece)
            # So that each comes by itself.
            wait_for(lambda: ends.has_read or ends.has_ended, "the relay to read", pause=0)
            running.finish_reading()
        ends.triton.shutdown(socket.SHUT_WR)
        wait_for(lambda: ends.has_ended, "the relay to end", pause=0)
        outcome = ends.stop()
        assert outcome.unsent == b""
        assert sum(outcome.tally) == outcome.tokens == ends.stream.tokens
        return dechunked(ends.read()), outcome, outcome.rest + ends.unread() + never_sent


# A character as JSON may write it: as it is, with its short escape, or in hexadecimal.
SHORT = {'"': '\\"', "\\": "\\\\", "/": "\\/", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
CHARACTERS = st.one_of(
    st.characters(exclude_categories=["Cs"]),
    st.sampled_from("\x00\x07\x1f\x7f\x80\u07ff\u0800\u2028\ud7ff\ue000\ufffd\uffff\U00010000\U0010ffff日🎉"),
    st.sampled_from(sorted(SHORT)),
)


@st.composite
def json_strings(draw: st.DrawFn) -> bytes:
    """A text in any of its forms as a JSON string."""
    parts = []
    for character in draw(st.lists(CHARACTERS, max_size=12)):
        forms = [short] if (short := SHORT.get(character)) else []
        units = character.encode("utf-16-be").hex()
        hexadecimal = "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
        forms += [hexadecimal, hexadecimal.upper().replace("\\U", "\\u")]
        if character >= " " and character not in '"\\':
            forms.append(character)
        parts.append(draw(st.sampled_from(forms)))
    return b'"' + "".join(parts).encode() + b'"'


@st.composite
def responses(draw: st.DrawFn) -> bytes:
    """A response of text in the middle of an answer, as a Triton may write it."""
    count = st.integers(0, 999_999_999).map(lambda number: b"%d" % number)
    members = {
        b'"model_name"': draw(st.sampled_from([b'"m"', b'"a/b c"', b"null"])),
        b'"text_output"': draw(json_strings()),
        b'"finish_reason"': draw(st.sampled_from([b'"None"', b"null"])),
        b'"num_output_tokens"': draw(st.one_of(st.just(b"1"), count)),
        b'"num_input_tokens"': draw(count),
        b'"stop_reason"': draw(st.sampled_from([b"null", b'"null"'])),
        b'"sequence_end"': draw(st.sampled_from([b"true", b"false", b"0"])),
    }
    wanted = draw(st.sets(st.sampled_from(sorted(members))))
    chosen = draw(st.permutations(sorted(wanted | {b'"text_output"'})))
    comma, colon = draw(st.sampled_from([(b",", b":"), (b", ", b": "), (b" , ", b" : ")]))
    return b"data: {" + comma.join(name + colon + members[name] for name in chosen) + b"}\n\n"


@pytest.mark.parametrize(
    ("stream", "around"),
    [(CHAT, AROUND), (COMPLETION, COMPLETION.around_text(0))],
    ids=["chat", "completion"],
)
def test_any_answer_is_relayed_as_the_plain_path_writes_it(
    stream: ChatStream | CompletionStream, around: tuple[bytes, bytes], running: Running
) -> None:
    @settings(max_examples=150)
    @given(st.lists(st.lists(responses(), min_size=1, max_size=3), max_size=5), st.lists(st.integers(0), max_size=6))
    def check(bodies: list[list[bytes]], cuts: list[int]) -> None:
        text = b"".join(chunk(b"".join(body)) for body in bodies)
        pieces = cut(text, cuts)
        client, outcome, rest = relayed(running, [*pieces, LAST], around)
        assert (client, outcome.tokens) == plain(text, stream)[:2]
        # Nothing of this needs Python but the end.
        assert rest == LAST
        prompts = [parse_response(one[6:]).prompt_tokens for body in bodies for one in body]
        assert outcome.prompt_tokens == next((known for known in reversed(prompts) if known), 0)

    check()


ODD: dict[str, bytes] = {
    "finish": event(finish_reason="stop"),
    "length": event(finish_reason="length", num_output_tokens=0),
    "error": b'data: {"error":"INTERNAL: it broke"}\n\n',
    "text and error": event(error="x"),
    "no text": b'data: {"finish_reason":"None"}\n\n',
    "null text": b'data: {"text_output":null}\n\n',
    "number as text": b'data: {"text_output":1}\n\n',
    "two texts": b'data: {"text_output":"a","text_output":"b"}\n\n',
    "two reasons": b'data: {"text_output":"a","finish_reason":"None","finish_reason":"stop"}\n\n',
    "two counts": b'data: {"text_output":"a","num_output_tokens":5,"num_output_tokens":0}\n\n',
    "negative": b'data: {"text_output":"a","num_output_tokens":-1}\n\n',
    "fraction": b'data: {"text_output":"a","num_output_tokens":1.5}\n\n',
    "exponent": b'data: {"text_output":"a","num_output_tokens":1e3}\n\n',
    "zeros ahead": b'data: {"text_output":"a","num_output_tokens":01}\n\n',
    "huge count": b'data: {"text_output":"a","num_output_tokens":99999999999999999999}\n\n',
    "count as text": b'data: {"text_output":"a","num_output_tokens":"1"}\n\n',
    "true as count": b'data: {"text_output":"a","num_output_tokens":true}\n\n',
    "list": b'data: {"text_output":["a"]}\n\n',
    "nested": b'data: {"text_output":"a","other":{"b":[1]}}\n\n',
    "stop reason": b'data: {"text_output":"a","stop_reason":"\\"END\\""}\n\n',
    "escaped name": b'data: {"text\\u005foutput":"a"}\n\n',
    "lone surrogate": b'data: {"text_output":"\\ud800"}\n\n',
    "wrong pair": b'data: {"text_output":"\\ud800\\u0041"}\n\n',
    "low first": b'data: {"text_output":"\\udc00\\ud800"}\n\n',
    "short escape": b'data: {"text_output":"\\u12"}\n\n',
    "no escape": b'data: {"text_output":"\\x"}\n\n',
    "raw control": b'data: {"text_output":"a\tb"}\n\n',
    "raw return": b'data: {"text_output":"a\rb"}\n\n',
    "broken utf-8": b'data: {"text_output":"\xff"}\n\n',
    "cut utf-8": b'data: {"text_output":"\xe6\x97"}\n\n',
    "overlong": b'data: {"text_output":"\xc0\xaf"}\n\n',
    "overlong of three": b'data: {"text_output":"\xe0\x80\xaf"}\n\n',
    "surrogate in utf-8": b'data: {"text_output":"\xed\xa0\x80"}\n\n',
    "beyond unicode": b'data: {"text_output":"\xf4\x90\x80\x80"}\n\n',
    "not closed": b'data: {"text_output":"a\n\n',
    "comma at the end": b'data: {"text_output":"a",}\n\n',
    "no object": b"data: 1\n\n",
    "empty object": b"data: {}\n\n",
    "rest behind": b'data: {"text_output":"a"} x\n\n',
    "html": b"<html>\n\n",
    "comment": b": ping\n\n",
    "no space": event().replace(b"data: ", b"data:"),
    "return and line": event().replace(b"\n\n", b"\r\n\r\n"),
    "one line end": event().replace(b"\n\n", b"\n"),
    "done": b"data: [DONE]\n\n",
    "half an event": event()[:20],
    "two and an error": event() * 2 + b'data: {"error":"x"}\n\n',
}
STRANGE_CHUNKS: dict[str, bytes] = {
    "extension": b"%x;a=b\r\n%s\r\n" % (len(event()), event()),
    "capitals": b"%X\r\n%s\r\n" % (len(event()), event()),
    "zeros ahead": b"0000%x\r\n%s\r\n" % (len(event()), event()),
    "many zeros ahead": b"%s%x\r\n%s\r\n" % (b"0" * 40, len(event()), event()),
    "prefix": b"0x%x\r\n%s\r\n" % (len(event()), event()),
    "minus": b"-5\r\n",
    "no size": b"\r\n",
    "no number": b"zz\r\nabc\r\n",
    "line alone": b"%x\n%s\n" % (len(event()), event()),
    "no end": b"%x\r\n%sxx" % (len(event()), event()),
    "long event": chunk(event("y" * 70_000)),
    "too long": b"fffffffff\r\n",
    "trailer": b"0\r\nA: b\r\n\r\n",
    "bytes behind": LAST + b"more",
}


@pytest.mark.parametrize("odd", [*map(chunk, ODD.values()), *STRANGE_CHUNKS.values()], ids=[*ODD, *STRANGE_CHUNKS])
@pytest.mark.parametrize("whole", [True, False])
def test_what_is_not_plain_text_is_left_whole(odd: bytes, whole: bool, running: Running) -> None:
    before, after = chunk(event("be")) + chunk(event("fore")), chunk(event("after")) + LAST
    everything = before + odd + after
    pieces = [before, odd + after] if whole else [everything[at : at + 7] for at in range(0, len(everything), 7)]
    client, outcome, rest = relayed(running, pieces)
    check_as_plain(everything, client, outcome, rest)
    if whole and odd != STRANGE_CHUNKS["capitals"] and odd != STRANGE_CHUNKS["zeros ahead"]:
        assert (rest, outcome.tokens) == (odd + after, 2)


def check_as_plain(everything: bytes, client: bytes, outcome: Outcome, rest: bytes) -> None:
    """The client's bytes, the count and the end are those of the plain path, once it has taken what is left."""
    events, tokens, end = plain(rest)
    assert (client + events, outcome.tokens + tokens, end) == plain(everything)


BREAKS = ("flip", "drop", "double", "zero")


def test_broken_bytes_end_as_on_the_plain_path(running: Running) -> None:
    events = st.sampled_from([event(), event("日本 🎉"), event("a\nb", num_output_tokens=3), event("")])
    broken = st.tuples(st.integers(0), st.sampled_from(BREAKS), st.integers(0, 7))

    @settings(max_examples=400)
    @given(st.lists(events, min_size=1), st.lists(broken, max_size=4), st.lists(st.integers(0), max_size=4))
    def check(events: list[bytes], breaks: list[tuple[int, str, int]], cuts: list[int]) -> None:
        data = bytearray(b"".join(map(chunk, events)) + LAST)
        for place, how, bit in breaks:
            at = place % max(len(data), 1)
            match how:
                case "flip":
                    data[at : at + 1] = bytes(byte ^ 1 << bit for byte in data[at : at + 1])
                case "drop":
                    del data[at : at + 1 + bit]
                case "double":
                    data[at:at] = data[at : at + 1 + bit]
                case "zero":
                    data[at : at + 1] = b"\0"
        check_as_plain(bytes(data), *relayed(running, cut(bytes(data), cuts)))

    check()


def test_times_are_counted_as_the_record_does(running: Running) -> None:
    with between(running) as ends:
        ends.triton.sendall(chunk(event(num_output_tokens=2)) + chunk(event(num_output_tokens=3)))
        wait_for(lambda: ends.stream.tokens == 5)
        # A response without a token, such as one that holds its text back, is no time between tokens.
        ends.triton.sendall(chunk(event(num_output_tokens=0)))
        wait_for(lambda: ends.read().count(b"chunk") == 3)
        outcome = ends.stop()
    assert sum(outcome.tally) == outcome.tokens == 5
    assert max(outcome.tally) == 5, "what came in one read shares the time before it"
    assert outcome.last - ends.began == pytest.approx(outcome.gap_sum)
    each = outcome.gap_sum / 5
    assert outcome.tally.index(5) == sum(bound < each for bound in BOUNDS)


def test_after_stop_nothing_is_written_nor_read(running: Running) -> None:
    with between(running) as ends:
        ends.triton.sendall(chunk(event()))
        wait_for(lambda: ends.stream.tokens == 1)
        outcome = ends.stop()
        got = ends.read()
        assert outcome.rest == b""
        ends.triton.sendall(chunk(event("more")))
        with between(running) as another:
            # The relay has gone on meanwhile.
            another.triton.sendall(chunk(event()))
            wait_for(lambda: another.stream.tokens == 1)
        assert ends.read() == got
        assert ends.unread() == chunk(event("more"))
        assert ends.stop().tokens == 0, "the second who stops it gets nothing"


def test_half_a_chunk_is_left_to_whoever_stops(running: Running) -> None:
    with between(running) as ends:
        ends.triton.sendall(chunk(event()) + chunk(event("half"))[:30])
        wait_for(lambda: ends.stream.tokens == 1 and ends.has_read)
        assert ends.stop().rest == chunk(event("half"))[:30]


FLOOD = chunk(event("z" * 1000)) * 50


def flood(ends: Between) -> int:
    """Send `FLOOD` over and over until nothing more is taken; how many bytes were."""
    ends.triton.setblocking(False)
    sent = 0
    give_up_at = time.monotonic() + 60
    while not ends.stream.is_held or is_ready(ends.triton, select.POLLOUT):
        assert time.monotonic() < give_up_at
        try:
            sent += ends.triton.send(FLOOD[sent % len(FLOOD) :])
        except BlockingIOError:
            time.sleep(0.001)
    return sent


def test_a_client_that_does_not_read_holds_the_upstream_and_nobody_else(running: Running) -> None:
    with between(running, buffer=4096) as slow, between(running) as fast:
        sent = flood(slow)
        for number in range(1, 20):
            fast.triton.sendall(chunk(event()))
            wait_for(lambda number=number: fast.stream.tokens == number)  # type: ignore[misc]
        assert not fast.stream.is_held
        # It goes on where it was, with nothing lost.
        slow.triton.setblocking(True)
        sending = threading.Thread(target=slow.triton.sendall, args=[FLOOD[sent % len(FLOOD) :]])
        sending.start()
        rounds = sent // len(FLOOD) + 1
        wait_for(lambda: slow.read() and slow.stream.tokens == 50 * rounds, pause=0.001)
        sending.join()
        wait_for(lambda: slow.read().endswith(b"\n\n\r\n") and not slow.stream.is_held)
        assert dechunked(slow.read()) == plain(FLOOD)[0] * rounds


def test_what_a_slow_client_has_not_got_is_whole_with_the_rest(running: Running) -> None:
    with between(running, buffer=4096) as ends:
        flood(ends)
        assert ends.stream.is_held
        outcome = ends.stop()
        assert outcome.unsent
        client = dechunked(ends.read() + outcome.unsent)
        assert client == CHAT.content(0, "z" * 1000, None) * outcome.tokens


def test_a_client_that_is_gone_ends_it(running: Running) -> None:
    with between(running) as ends:
        ends.client.close()
        ends.triton.sendall(chunk(event()))
        wait_for(lambda: ends.has_ended)
    with between(running, buffer=4096) as ends:
        flood(ends)
        ends.client.close()
        wait_for(lambda: ends.has_ended)


def test_an_upstream_that_dies_ends_it_with_what_came(running: Running) -> None:
    with between(running) as ends:
        ends.triton.sendall(chunk(event()) + b"5")
        wait_for(lambda: ends.stream.tokens == 1)
        ends.triton.close()
        wait_for(lambda: ends.has_ended)
        outcome = ends.stop()
        assert (outcome.rest, outcome.tokens) == (b"5", 1)
        assert ends.upstream.recv(10) == b"", "the end is found once more by whoever reads next"


def test_hundreds_at_once_with_some_that_do_not_read(running: Running) -> None:
    with ExitStack() as stack:
        streams = [stack.enter_context(between(running)) for _ in range(256)]
        slow = [stack.enter_context(between(running, buffer=4096)) for _ in range(8)]
        for one in slow:
            flood(one)
        texts = [f"{number} 日\n" for number in range(256)]
        for _ in range(20):
            for ends, text in zip(streams, texts, strict=True):
                ends.triton.sendall(chunk(event(text)))
        for ends, text in zip(streams, texts, strict=True):
            wait_for(lambda ends=ends: ends.stream.tokens == 20)  # type: ignore[misc]
            expected = CHAT.content(0, text, None) * 20
            wait_for(lambda ends=ends, expected=expected: len(ends.read()) >= len(expected))  # type: ignore[misc]
            assert dechunked(ends.got) == expected
        assert all(one.stream.is_held for one in slow)


def test_streams_that_come_and_go_cost_nothing_in_the_end(running: Running) -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = descriptors()
    for number in range(300):
        with between(running) as ends:
            ends.triton.sendall(chunk(event()) + (LAST if number % 2 else b""))
            if number % 2:
                wait_for(lambda ends=ends: ends.has_ended, pause=0)  # type: ignore[misc]
    assert descriptors() == before


def test_a_descriptor_that_is_none_is_an_os_error(running: Running) -> None:
    one, other = socket.socketpair()
    with one, other, pytest.raises(OSError, match="Bad file descriptor"):
        running.relay.start(one.fileno(), 1 << 20, *AROUND, 0.0)


def test_a_closed_relay_moves_nothing_and_can_be_stopped() -> None:
    running = Running()
    with between(running) as ends:
        running.relay.close()
        running.relay.close()
        ends.triton.sendall(chunk(event()))
        assert ends.stop().tokens == 0
        assert ends.unread() == chunk(event())
