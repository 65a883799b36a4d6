"""Triton's responses, for every cut of their bytes, by the parser in Python and by the one in C++."""

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.triton.limits import EVENTS_AT_ONCE, MAX_EVENT_BYTES, MAX_HEAD_BYTES
from gateway.triton.response_parser import PlainParser, PlainProtocolError, response_parser
from gateway_relay import ProtocolError, ResponseParser

ERRORS = (PlainProtocolError, ProtocolError)
Parser = PlainParser | ResponseParser


def in_cpp() -> ResponseParser:
    return ResponseParser(MAX_EVENT_BYTES, MAX_HEAD_BYTES)


BOTH = pytest.mark.parametrize("make", [PlainParser, in_cpp])
Make = Callable[[], Parser]

EVENTS = [b'{"text_output":"a"}', b'{"text_output":"\\n\\n data: x"}', '{"text_output":"日本"}'.encode()]
BODY = b"".join(b"data: " + event + b"\n\n" for event in EVENTS)


def chunked(body: bytes, *cuts: int, trailer: bytes = b"", extension: bytes = b";ext=1") -> bytes:
    places = [0, *sorted(cuts), len(body)]
    chunks = [body[a:b] for a, b in itertools.pairwise(places) if b > a]
    coded = b"".join(b"%x%s\r\n%s\r\n" % (len(chunk), extension, chunk) for chunk in chunks)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + coded + b"0\r\n" + trailer + b"\r\n"


def parse(make: Make, data: bytes, cuts: list[int]) -> tuple[Parser, list[bytes]]:
    """The parser, and the events that it gave."""
    parser = make()
    places = [0, *sorted(cuts), len(data)]
    taken = []
    for a, b in itertools.pairwise(places):
        if b > a:
            parser.feed(data[a:b])
            taken += parser.take(EVENTS_AT_ONCE)
    return parser, taken


@BOTH
@given(chunk_cuts=st.lists(st.integers(0, len(BODY)), max_size=8), data=st.data())
def test_every_cut_gives_the_same_events(make: Make, chunk_cuts: list[int], data: st.DataObject) -> None:
    trailer = data.draw(st.sampled_from([b"", b"X: y\r\n"]))
    raw = chunked(BODY, *chunk_cuts, trailer=trailer, extension=data.draw(st.sampled_from([b"", b";ext=1"])))
    read_cuts = data.draw(st.lists(st.integers(0, len(raw)), max_size=12))
    parser, events = parse(make, raw, read_cuts)
    assert events == EVENTS
    assert parser.done
    assert parser.reusable


@BOTH
def test_one_byte_at_a_time(make: Make) -> None:
    raw = chunked(BODY, 3, 20)
    assert parse(make, raw, list(range(len(raw))))[1] == EVENTS


@BOTH
@pytest.mark.parametrize("close", [b"Connection: close\r\n", b""])
def test_a_body_of_known_length(make: Make, close: bytes) -> None:
    head = b"HTTP/1.1 400 Bad Request\r\n" + close + b"Content-Length: 15\r\n\r\n"
    parser, _ = parse(make, head + b'{"error":"bad"}', [5, 40, 60])
    assert (parser.status, parser.error_body, parser.done) == (400, b'{"error":"bad"}', True)
    assert parser.reusable is not bool(close)


@BOTH
def test_a_body_that_ends_with_the_connection(make: Make) -> None:
    parser, events = parse(make, b"HTTP/1.1 200 OK\r\n\r\n" + BODY, [25])
    assert not parser.done
    parser.eof()
    assert parser.done
    assert events == EVENTS
    assert not parser.reusable


@BOTH
def test_an_interim_response_is_skipped(make: Make) -> None:
    assert parse(make, b"HTTP/1.1 100 Continue\r\n\r\n" + chunked(BODY), [])[1] == EVENTS


@BOTH
def test_carriage_returns_before_line_ends_do_not_matter(make: Make) -> None:
    assert parse(make, chunked(BODY.replace(b"\n\n", b"\r\n\r\n")), [])[1] == EVENTS


@BOTH
@pytest.mark.parametrize("where", [0, 10, 50, 80])
def test_a_connection_that_closes_early_is_no_end(make: Make, where: int) -> None:
    parser, _ = parse(make, chunked(BODY)[:where], [])
    with pytest.raises(ERRORS, match="middle of the response"):
        parser.eof()


@BOTH
@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"SSH-2.0-OpenSSH\r\n\r\n", "status line"),
        (b"HTTP/1.1 000 X\r\nContent-Length: 2\r\n\r\nab", "status line"),
        (b"HTTP/1.1 20\r\n\r\n", "status line"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 5000 + b"HTTP/1.1 no\r\n\r\n", "status line"),
        (b"x" * 70_000, "head is too long"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "no size"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffff\r\n", "too long"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * 70_000, "size line is too long"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n", "no number"),
        (b"HTTP/1.1 400 No\r\nContent-Length: 1\r\n\r\nab", "after the end"),
        (chunked(BODY) + b"HTTP/1.1 200 OK\r\n\r\n", "after the end"),
    ],
)
def test_what_is_no_generate_response_is_an_error(make: Make, raw: bytes, message: str) -> None:
    with pytest.raises(ERRORS, match=message):
        make().feed(raw)


@BOTH
def test_a_great_many_events_of_one_read_are_taken_in_parts(make: Make) -> None:
    events = [b"%d" % number for number in range(3 * EVENTS_AT_ONCE + 1)]
    body = b"".join(b"data: " + event + b"\n\n" for event in events)
    parser = make()
    parser.feed(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    assert parser.done
    parts = list(iter(lambda: parser.take(EVENTS_AT_ONCE), []))
    assert [len(part) for part in parts] == [EVENTS_AT_ONCE] * 3 + [1]
    assert [event for part in parts for event in part] == events


def test_the_one_in_cpp_is_used_where_it_is_there() -> None:
    assert isinstance(response_parser(), ResponseParser)


class _ByTheRules(PlainParser):
    """Without the short way for a read that is one event."""

    def _take_one(self, data: bytes) -> bool:
        return False


_READS = st.lists(
    st.sampled_from(
        [
            b"10\r\ndata: 12345678\n\n\r\n",
            b"0f\r\ndata: 12345678\n\n\r\n",
            b"11\r\ndata: 12345678\n\n\r\n",
            b"+10\r\ndata: 12345678\n\n\r\n",
            b"0x10\r\ndata: 12345678\n\n\r\n",
            b" 1_0\r\ndata: 12345678\n\n\r\n",
            b" 10 \r\ndata: 12345678\n\n\r\n",
            b"10;a=b\r\ndata: 12345678\n\n\r\n",
            b"10\r\ndata: 1234\n678\n\n\r\n",
            b"10\r\nevent:12345678\n\n\r\n",
            b"10\r\ndata: 12345678\n\nxx",
            b"8\r\ndata: 1\n\r\n",
            b"a\r\ndata: 12",
            b"\n\n\r\n",
            b"\r\ndata: 1\n\n\r\n",
            b"ffffffffffffffffffff\r\n",
            b"0\r\n",
            b"X: y\r\n",
            b"\r\n",
        ]
    ),
    max_size=5,
)
_HEADS = st.builds(
    lambda *parts: b"".join(parts),
    st.sampled_from([b"", b"HTTP/1.1 100 Continue\r\n\r\n"]),
    st.sampled_from([b"HTTP/1.1 ", b"HTTP/1.0 ", b"HTTP/2 "]),
    st.sampled_from([b"200 OK", b"400", b"20", b"000", b"099 X"]),
    st.sampled_from([b"", b"\r\ntransfer-encoding:chunked", b"\r\nTransfer-Encoding : gzip, Chunked"]),
    st.sampled_from([b"", b"\r\nContent-Length: 30", b"\r\ncontent-length:0", b"\r\nContent-Length: -1"]),
    st.sampled_from([b"", b"\r\nConnection: close", b"\r\nCONNECTION: Keep-Alive", b"\r\n: x", b"\r\nnothing"]),
    st.just(b"\r\n\r\n"),
)


@given(_HEADS, _READS, st.lists(st.integers(0, 200), max_size=4))
def test_all_ways_to_parse_are_one(head: bytes, reads: list[bytes], cuts: list[int]) -> None:
    """Without the short way of one event, and in C++; at whole reads and at any cut of them."""
    outcomes = []
    whole = head + b"".join(reads)
    places = [0, *sorted({min(cut, len(whole)) for cut in cuts}), len(whole)]
    pieces = [whole[a:b] for a, b in itertools.pairwise(places) if b > a]
    for kind in (PlainParser, _ByTheRules, in_cpp):
        for parts in ([head, *reads], pieces):
            parser: Parser = kind()
            came: list[bytes] = []
            said, between = "", False
            try:
                for part in parts:
                    parser.feed(part)
                    came += parser.take(EVENTS_AT_ONCE)
                between = parser.is_between_chunks
                parser.eof()
            except ERRORS as error:
                said = str(error)
            state = parser.status, parser.done, parser.reusable, parser.error_body, between
            outcomes.append((parts is pieces, came, said, state))
    assert outcomes[0] == outcomes[2] == outcomes[4]
    assert outcomes[1] == outcomes[3] == outcomes[5]
