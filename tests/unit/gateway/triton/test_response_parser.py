"""Triton's responses, for every cut of their bytes."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.triton.limits import EVENTS_AT_ONCE
from gateway.triton.response_parser import ProtocolError, ResponseParser

EVENTS = [b'{"text_output":"a"}', b'{"text_output":"\\n\\n data: x"}', '{"text_output":"日本"}'.encode()]
BODY = b"".join(b"data: " + event + b"\n\n" for event in EVENTS)


def chunked(body: bytes, *cuts: int, trailer: bytes = b"", extension: bytes = b";ext=1") -> bytes:
    places = [0, *sorted(cuts), len(body)]
    chunks = [body[a:b] for a, b in itertools.pairwise(places) if b > a]
    coded = b"".join(b"%x%s\r\n%s\r\n" % (len(chunk), extension, chunk) for chunk in chunks)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + coded + b"0\r\n" + trailer + b"\r\n"


def parse(data: bytes, cuts: list[int]) -> ResponseParser:
    parser = ResponseParser()
    places = [0, *sorted(cuts), len(data)]
    taken = []
    for a, b in itertools.pairwise(places):
        if b > a:
            parser.feed(data[a:b])
            taken += parser.take()
    parser.events = taken
    return parser


@given(st.lists(st.integers(0, len(BODY)), max_size=8), st.data())
def test_every_cut_gives_the_same_events(chunk_cuts: list[int], data: st.DataObject) -> None:
    trailer = data.draw(st.sampled_from([b"", b"X: y\r\n"]))
    raw = chunked(BODY, *chunk_cuts, trailer=trailer, extension=data.draw(st.sampled_from([b"", b";ext=1"])))
    read_cuts = data.draw(st.lists(st.integers(0, len(raw)), max_size=12))
    parser = parse(raw, read_cuts)
    assert parser.events == EVENTS
    assert parser.done
    assert parser.reusable


def test_one_byte_at_a_time() -> None:
    raw = chunked(BODY, 3, 20)
    assert parse(raw, list(range(len(raw)))).events == EVENTS


@pytest.mark.parametrize("close", [b"Connection: close\r\n", b""])
def test_a_body_of_known_length(close: bytes) -> None:
    head = b"HTTP/1.1 400 Bad Request\r\n" + close + b"Content-Length: 15\r\n\r\n"
    parser = parse(head + b'{"error":"bad"}', [5, 40, 60])
    assert (parser.status, parser.error_body, parser.done) == (400, b'{"error":"bad"}', True)
    assert parser.reusable is not bool(close)


def test_a_body_that_ends_with_the_connection() -> None:
    parser = parse(b"HTTP/1.1 200 OK\r\n\r\n" + BODY, [25])
    assert not parser.done
    parser.eof()
    assert parser.done
    assert parser.events == EVENTS
    assert not parser.reusable


def test_an_interim_response_is_skipped() -> None:
    assert parse(b"HTTP/1.1 100 Continue\r\n\r\n" + chunked(BODY), []).events == EVENTS


def test_carriage_returns_before_line_ends_do_not_matter() -> None:
    assert parse(chunked(BODY.replace(b"\n\n", b"\r\n\r\n")), []).events == EVENTS


@pytest.mark.parametrize("where", [0, 10, 50, 80])
def test_a_connection_that_closes_early_is_no_end(where: int) -> None:
    parser = parse(chunked(BODY)[:where], [])
    with pytest.raises(ProtocolError, match="middle of the response"):
        parser.eof()


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"SSH-2.0-OpenSSH\r\n\r\n", "status line"),
        (b"x" * 70_000, "head is too long"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "no size"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffff\r\n", "too long"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * 70_000, "size line is too long"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n", "no number"),
        (b"HTTP/1.1 400 No\r\nContent-Length: 1\r\n\r\nab", "after the end"),
        (chunked(BODY) + b"HTTP/1.1 200 OK\r\n\r\n", "after the end"),
    ],
)
def test_what_is_no_generate_response_is_an_error(raw: bytes, message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        ResponseParser().feed(raw)


def test_a_great_many_events_of_one_read_are_taken_in_parts() -> None:
    events = [b"%d" % number for number in range(3 * EVENTS_AT_ONCE + 1)]
    body = b"".join(b"data: " + event + b"\n\n" for event in events)
    parser = ResponseParser()
    parser.feed(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    assert parser.done
    parts = list(iter(parser.take, []))
    assert [len(part) for part in parts] == [EVENTS_AT_ONCE] * 3 + [1]
    assert [event for part in parts for event in part] == events


class _ByTheRules(ResponseParser):
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
            b"10;a=b\r\ndata: 12345678\n\n\r\n",
            b"10\r\ndata: 1234\n678\n\n\r\n",
            b"10\r\nevent:12345678\n\n\r\n",
            b"10\r\ndata: 12345678\n\nxx",
            b"8\r\ndata: 1\n\r\n",
            b"a\r\ndata: 12",
            b"\n\n\r\n",
            b"\r\ndata: 1\n\n\r\n",
            b"0\r\n",
            b"X: y\r\n",
            b"\r\n",
        ]
    ),
    max_size=5,
)


@given(st.sampled_from([200, 400]), _READS)
def test_the_short_way_of_one_event_changes_nothing(status: int, reads: list[bytes]) -> None:
    outcomes = []
    for kind in (ResponseParser, _ByTheRules):
        parser, came = kind(), []
        parser.feed(b"HTTP/1.1 %d X\r\nTransfer-Encoding: chunked\r\n\r\n" % status)
        try:
            for read in reads:
                parser.feed(read)
                came += parser.take()
            said = ""
        except ProtocolError as error:
            said = str(error)
        outcomes.append((came, said, parser.done, parser.error_body))
    assert outcomes[0] == outcomes[1]
