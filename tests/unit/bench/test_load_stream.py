"""How the load reads answers: the same for every cut of the bytes, and every fault of a stream is seen."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.load.check import Outcome, judge
from bench.load.stream import Answer, Malformed, read_answer
from bench.load.workloads import Expected, Format, Request

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
ONE = b'data: {"choices":[{"index":0,"delta":{"content":"One"},"finish_reason":null}]}\n\n'
TWO = b'data: {"choices":[{"index":0,"delta":{"content":" two"},"finish_reason":null}]}\n\n'
FINISH = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7}}\n\n'
DONE = b"data: [DONE]\n\n"
RIGHT = [ROLE, ONE, TWO, FINISH, USAGE, DONE]
EXPECTED = Expected("One two", tokens=2, chunks=2, finish_reason="stop")


def chunk(data: bytes) -> bytes:
    return b"%x\r\n" % len(data) + data + b"\r\n"


def stream(events: list[bytes], head: bytes = HEAD) -> list[bytes]:
    """A read for each event."""
    first, *others = map(chunk, events)
    return [head + first, *others, b"0\r\n\r\n"]


def outcome(
    reads: list[bytes], expected: Expected = EXPECTED, format: Format = Format.CHAT, is_closed: bool = True
) -> Outcome:
    """Of reads that came one second after the other; the request was sent a second before the first."""
    answer = read_answer(reads, [float(number + 1) for number in range(len(reads))], is_closed=is_closed)
    assert answer is not None
    return judge(Request("some", "/", b"", format, expected), answer, 0.0, 100.0)


def test_a_right_stream_is_timed_by_its_tokens() -> None:
    found = outcome(stream(RIGHT))
    assert found.is_right
    # The role came in the first read, and says nothing.
    assert found.ttft == 2.0
    assert found.gaps == [1.0]
    assert (found.chunks, found.tokens, found.joined) == (2, 2, 0)
    assert (found.status, found.finish_reason, found.seconds) == (200, "stop", 100.0)


def test_tokens_that_came_in_one_read_are_counted() -> None:
    found = outcome([HEAD + chunk(ROLE), chunk(ONE) + chunk(TWO), chunk(FINISH) + chunk(DONE) + b"0\r\n\r\n"])
    assert found.is_right
    assert found.joined == 1
    assert found.gaps == [0.0]


@given(cuts=st.lists(st.integers(min_value=1, max_value=len(b"".join(stream(RIGHT))) - 1), unique=True))
def test_every_cut_of_the_bytes_gives_the_same(cuts: list[int]) -> None:
    data = b"".join(stream(RIGHT))
    borders = [0, *sorted(cuts), len(data)]
    reads = [data[begin:end] for begin, end in pairwise(borders)]
    found = outcome(reads, is_closed=False)
    assert found.is_right
    assert (found.chunks, found.tokens) == (2, 2)


@pytest.mark.parametrize(
    ("head", "end"),
    [(b"Content-Length: %d\r\n" % len(b"".join(RIGHT)), b""), (b"", b""), (b"Transfer-Encoding: chunked\r\n", None)],
)
def test_events_need_not_be_chunks(head: bytes, end: bytes | None) -> None:
    body = b"".join(RIGHT).replace(b"\n", b"\r\n")
    if b"Length" in head:
        head = b"Content-Length: %d\r\n" % len(body)
    if end is None:
        body = b"".join(chunk(body[at : at + 10]) for at in range(0, len(body), 10)) + b"0\r\nTrailer: x\r\n\r\n"
    found = outcome([b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n" + head + b"\r\n", body])
    assert found.error == ""


def test_what_stands_beside_the_data_is_passed_over() -> None:
    events = [b": a comment\n\n", b"event: message\nid: 3\n" + ROLE, *RIGHT[1:]]
    assert outcome(stream(events)).is_right


def test_thoughts_and_calls_are_tokens_too() -> None:
    thought = b'data: {"choices":[{"index":0,"delta":{"reasoning_content":"Hm"},"finish_reason":null}]}\n\n'
    call = b'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0}]},"finish_reason":null}]}\n\n'
    found = outcome(stream([ROLE, thought, call, FINISH, DONE]), Expected(text=""))
    assert found.is_right
    assert found.chunks == 2


GARBLED = ONE.replace(b"One", b"Ome")


@pytest.mark.parametrize(
    ("events", "error"),
    [
        ([ROLE, ONE, FINISH, DONE], "1 events carry the answer, not 2"),
        ([ROLE, ONE, ONE, TWO, FINISH, DONE], "3 events carry the answer, not 2"),
        ([ROLE, TWO, ONE, FINISH, DONE], "the answer's text is not what it should be, from byte 0 on"),
        ([ROLE, GARBLED, TWO, FINISH, DONE], "the answer's text is not what it should be, from byte 1 on"),
        ([ROLE, ONE, TWO, FINISH], "the stream ends without [DONE]"),
        ([ROLE, ONE, TWO, DONE], "the stream ends without a finish_reason"),
        ([ROLE, ONE, TWO, FINISH, FINISH, DONE], "the answer has two finish_reasons"),
        ([ROLE, ONE, FINISH, TWO, DONE], "the answer goes on behind its finish_reason"),
        ([ROLE, ONE, TWO, FINISH, DONE, DONE], "the stream goes on behind [DONE]"),
        ([ROLE, ONE, TWO, FINISH.replace(b"stop", b"length"), DONE], "the finish_reason is length, not stop"),
        ([ROLE, ONE, TWO, FINISH, USAGE.replace(b'ns":2', b'ns":3'), DONE], "the answer has 3 tokens, not 2"),
        ([ROLE, b'data: {"error":{"message":"Broken."}}\n\n', DONE], "the stream ends in an error: Broken."),
        ([ROLE, ONE[:40] + b"\n\n"], "an event is no JSON"),
        ([ROLE, b"data: 7\n\n"], "an event is no object: '7'"),
        ([ROLE, b"data: {}\n\n"], "an event has no choices: '{}'"),
        ([ROLE, ONE, TWO, FINISH, DONE, b"data: more"], "behind the last event stands 'data: more'"),
    ],
)
def test_a_wrong_stream_is_seen(events: list[bytes], error: str) -> None:
    assert outcome(stream(events)).error.startswith(error)


def test_without_a_usage_the_tokens_are_the_events() -> None:
    assert outcome(stream([ROLE, ONE, TWO, FINISH, DONE])).tokens == 2


@pytest.mark.parametrize("kept", range(1, len(RIGHT)))
def test_a_stream_that_is_cut_off_is_seen(kept: int) -> None:
    reads = stream(RIGHT)[:kept]
    found = outcome(reads)
    assert found.error == "the connection was closed in the middle of the answer"


def test_until_its_end_an_answer_is_not_whole() -> None:
    data = b"".join(stream(RIGHT))
    for length in range(len(data)):
        answer = read_answer([data[:length]], [1.0], is_closed=False)
        assert answer is None or not answer.is_whole
    whole = read_answer([data], [1.0], is_closed=False)
    assert whole is not None
    assert whole.is_whole
    assert whole.keeps_alive


def test_a_refusal_says_why() -> None:
    body = b'{"error":{"message":"The model is not ready.","type":"x"}}'
    head = b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(
        body
    )
    found = outcome([head, body])
    assert found.error == "status 503: The model is not ready."
    assert found.status == 503
    other = outcome([b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 6\r\n\r\n<html>"])
    assert other.error == "status 502: '<html>'"


def test_what_is_no_stream_is_no_answer() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
    assert outcome([head]).error == "the answer is no stream but application/json"
    assert outcome([head], Expected(), Format.WHOLE).is_right


def test_an_interim_answer_is_passed_over() -> None:
    reads = [b"HTTP/1.1 100 Continue\r\n\r\n", *stream(RIGHT)]
    found = outcome(reads)
    assert found.is_right
    assert found.ttft == 3.0


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"HTTP/2 200\r\n\r\n", "does not begin with a status line"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", "Content-Length is no number"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nab", "bytes behind the answer's end"),
        (HEAD + b"zz\r\n", "a chunk does not begin with its size"),
        (HEAD + b"1\r\nabc", "a chunk is longer than its size"),
        (HEAD + b"0\r\n\r\nHTTP", "bytes behind the answer's end"),
    ],
)
def test_what_is_no_http_is_refused(data: bytes, problem: str) -> None:
    with pytest.raises(Malformed, match=problem):
        read_answer([data], [1.0], is_closed=False)


def test_connections_that_end_carry_no_more() -> None:
    for fields in (b"Connection: close\r\nContent-Length: 0\r\n", b"X: y\r\n"):
        answer = read_answer([b"HTTP/1.1 200 OK\r\n" + fields + b"\r\n"], [1.0], is_closed=True)
        assert isinstance(answer, Answer)
        assert answer.is_whole
        assert not answer.keeps_alive


def test_tritons_format() -> None:
    one = b'data: {"text_output":"One","finish_reason":"None","num_output_tokens":1}\n\n'
    last = b'data: {"text_output":" two","finish_reason":"stop","num_output_tokens":1}\n\n'
    admission = b'data: {"text_output":"","finish_reason":"None"}\n\n'
    found = outcome(stream([admission, one, last]), EXPECTED, Format.TRITON)
    assert found.is_right
    assert found.ttft == 2.0
    assert outcome(stream([admission, one]), EXPECTED, Format.TRITON).error == "the stream ends without a finish_reason"
    failed = stream([admission, b'data: {"error":"INTERNAL: gone"}\n\n'])
    assert outcome(failed, EXPECTED, Format.TRITON).error == "the stream ends in an error: INTERNAL: gone"


def test_text_completions() -> None:
    one = b'data: {"choices":[{"index":0,"text":"One","finish_reason":null}]}\n\n'
    last = b'data: {"choices":[{"index":0,"text":" two","finish_reason":"stop"}]}\n\n'
    assert outcome(stream([one, last, DONE]), EXPECTED, Format.COMPLETION).is_right
    assert outcome(stream([one, last]), EXPECTED, Format.COMPLETION).error == "the stream ends without [DONE]"


def test_a_structured_answer_is_checked_by_its_schema() -> None:
    def say(text: bytes) -> list[bytes]:
        return stream([ROLE, ONE.replace(b"One", text), FINISH, DONE])

    schema = Expected(schema={"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
    assert outcome(say(rb"{\"a\": 1}"), schema).is_right
    assert outcome(say(rb"{\"a\": \"1\"}"), schema).error.startswith("the answer does not obey the schema")
    assert outcome(say(rb"{\"a\": 1"), schema).error.startswith("the answer is no JSON")
