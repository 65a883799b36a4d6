"""Messages, rows and offsets, without a network: whatever is done to the rows of an answer on their way, what is taken
of them is the answer's beginning, and its end is not taken for one before all of it is there."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.triton import egress
from gateway.triton.contract import Backend, Delta, ModelContract, UpstreamError
from gateway.triton.egress import End, Final, Gap, Hello, Lost, Message, Position, Row


def event(**text: Any) -> bytes:
    return json.dumps({"model_name": "m", "text_output": json.dumps(text)}).encode()


class Answer:
    """A whole answer; `pieces` are what each engine step adds: tokens and text, either of which may be nothing."""

    def __init__(self, pieces: list[tuple[int, str]]) -> None:
        self.pieces = pieces
        self.text = "".join(text for _, text in pieces)
        self.tokens = sum(count for count, _ in pieces)
        self.ends = [(0, 0)]
        for count, text in pieces:
            tokens, characters = self.ends[-1]
            self.ends.append((tokens + count, characters + len(text)))

    def row(self, begin: int, end: int) -> Row:
        """Of the steps from `begin` to `end`, with the finish where that is the last one."""
        (tokens, characters), (end_tokens, end_characters) = self.ends[begin], self.ends[end]
        row = [1, tokens, characters, end_tokens - tokens, self.text[characters:end_characters]]
        ids = {"token_ids": list(range(tokens, end_tokens))}
        return [*row, "stop" if end == len(self.pieces) else None, ids]


@st.composite
def answers(draw: st.DrawFn) -> Answer:
    texts = st.text(alphabet="ab日🎉\n", max_size=4)
    return Answer(draw(st.lists(st.tuples(st.integers(0, 3), texts), min_size=1, max_size=8)))


class Client:
    """What is applied of rows."""

    def __init__(self) -> None:
        self.position = Position()
        self.deltas: list[Delta] = []
        self.gaps = 0

    def take(self, row: Row) -> None:
        if self.reason is not None:
            return
        try:
            delta = self.position.take(row)
        except Gap:
            self.gaps += 1
            return
        if delta is not None:
            self.deltas.append(delta)

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)

    @property
    def reason(self) -> str | None:
        return next((delta.finish_reason for delta in self.deltas if delta.finish_reason), None)

    @property
    def token_ids(self) -> list[int]:
        return [token for delta in self.deltas for token in delta.outputs.get("token_ids", ())]

    def check(self, answer: Answer) -> None:
        """It has a beginning of the answer, or all of it and its end."""
        tokens = sum(delta.new_tokens for delta in self.deltas)
        assert answer.text.startswith(self.text)
        assert self.token_ids == list(range(tokens))
        assert (self.position.tokens, self.position.characters) == (tokens, len(self.text))
        if self.reason is not None:
            assert (self.text, tokens) == (answer.text, answer.tokens)


@given(answers(), st.data())
def test_doubled_reordered_lost_and_merged_rows_give_a_beginning_and_repair_the_rest(
    answer: Answer, data: st.DataObject
) -> None:
    steps = range(len(answer.pieces) + 1)
    spans = [(begin, end) for begin, end in itertools.combinations(steps, 2)]
    client = Client()
    for begin, end in data.draw(st.lists(st.sampled_from(spans), max_size=20)):
        client.take(answer.row(begin, end))
        client.check(answer)
    # What `resume` asks for: all from there on.
    here = answer.ends.index((client.position.tokens, client.position.characters))
    client.take(answer.row(here, len(answer.pieces)))
    client.check(answer)
    assert client.reason == "stop"
    assert client.position.is_whole


@given(answers())
def test_rows_in_order_have_no_gap(answer: Answer) -> None:
    client = Client()
    for begin, end in itertools.pairwise(range(len(answer.pieces) + 1)):
        client.take(answer.row(begin, end))
        client.check(answer)
        assert client.position.is_whole
    assert (client.reason, client.gaps) == ("stop", 0)


@given(answers(), st.data())
def test_a_row_that_is_missing_is_known_until_it_has_come(answer: Answer, data: st.DataObject) -> None:
    last = len(answer.pieces)
    missing = data.draw(st.integers(0, last - 1))
    client = Client()
    for begin, end in itertools.pairwise(range(last + 1)):
        if begin != missing:
            client.take(answer.row(begin, end))
    if answer.ends[missing] == answer.ends[missing + 1]:
        # Nothing was in it, but perhaps the end.
        assert (client.reason is None) is (missing + 1 == last)
        return
    assert client.reason is None
    if missing + 1 < last:
        assert client.gaps
    client.position.need(*answer.ends[-1])
    assert not client.position.is_whole
    client.take(answer.row(missing, last))
    client.check(answer)
    assert client.reason == "stop"
    assert client.position.is_whole


def test_of_a_row_that_overlaps_only_the_new_part_is_taken() -> None:
    position = Position()
    assert position.take([1, 0, 0, 2, "日a"]) == Delta("日a", None, 0, 2)
    outputs = {"logprobs": [{"1": 1}, {"2": 2}, {"3": 3}], "token_ids": [1, 2, 3], "stop_reason": "x"}
    delta = position.take([1, 0, 0, 3, "日ab", "stop", outputs])
    assert delta == Delta("b", "stop", 0, 1, {"logprobs": [{"3": 3}], "token_ids": [3], "stop_reason": "x"})
    assert outputs["token_ids"] == [1, 2, 3]


def test_tokens_without_text_and_text_without_tokens_count() -> None:
    position = Position()
    assert position.take([1, 0, 0, 1, ""]) == Delta("", None, 0, 1)
    assert position.take([1, 1, 0, 0, "a"]) == Delta("a", None, 0, 0)
    assert position.take([1, 1, 1, 0, ""]) is None
    assert position.take([1, 1, 1, 0, "", "length"]) == Delta("", "length", 0, 0)


def test_the_end_of_a_doubled_row_is_the_end_only_where_it_stands() -> None:
    position = Position()
    position.take([1, 0, 0, 3, "abc"])
    with pytest.raises(Gap):
        position.take([1, 0, 0, 2, "ab", "stop"])
    assert position.take([1, 0, 0, 3, "abc", "stop"]) == Delta("", "stop", 0, 0)


@pytest.mark.parametrize(
    "row",
    [
        [1, 2, 0, 1, "x"],  # Ahead in tokens alone,
        [1, 0, 2, 9, "x"],  # in characters alone,
        [1, 1, 0, 5, ""],  # behind in characters where it is ahead in tokens.
        [1, 5, 5, 0, ""],
    ],
)
def test_what_does_not_fit_is_a_gap(row: Row) -> None:
    position = Position()
    position.take([1, 0, 0, 1, "a"])
    with pytest.raises(Gap):
        position.take(row)
    assert (position.tokens, position.characters) == (1, 1)
    assert not position.is_whole


@pytest.mark.parametrize(
    "row",
    [
        [],
        [1, 0, 0, 1],
        [1, 0, 0, 1, None],
        [1, 0, 0, 1, ["a"]],
        [1, 0, 0, -1, "a"],
        [1, 0, 0, "1", "a"],
        [1, "0", 0, 1, "a"],
        [1, None, 0, 1, "a"],
        [1, 0, 0, 1, "a", None, {"token_ids": []}],
        [1, 0, 0, 1, "a", None, {"logprobs": [None, None]}],
        [1, 0, 0, 1, "a", None, {"token_ids": 5}],
        [1, 0, 0, 1, "a", None, ["token_ids"]],
    ],
)
def test_what_is_no_row_is_an_error(row: Row) -> None:
    with pytest.raises((ValueError, TypeError, AttributeError)):
        Position().take(row)


def test_a_lost_stream_says_so_whatever_its_offsets() -> None:
    with pytest.raises(Lost):
        Position().take([1, 7, 7, 0, "", "lost"])


def test_events_of_a_subscription() -> None:
    assert egress.parse_event(event(hello={"version": 1, "next": 7})) == Hello(1, 7)
    assert egress.parse_event(event(hello={"version": 2})) == Hello(2, 0)
    assert egress.parse_event(event(message=7, rows=[[1, 0, 0, 1, "日"]])) == Message(7, [[1, 0, 0, 1, "日"]])
    assert egress.parse_event(event(end="idle")) == End("idle")


@pytest.mark.parametrize(
    "payload",
    [
        b"<html>",
        b"[]",
        b"{}",
        b'{"error":"UNAVAILABLE: x"}',
        b'{"text_output":5}',
        b'{"text_output":""}',
        b'{"text_output":"[]"}',
        event(),
        event(rows=[]),
        event(message="1", rows=[]),
        event(message=1, rows={}),
        event(hello={}),
        event(hello=[]),
    ],
)
def test_what_is_no_event_of_a_subscription_is_an_error(payload: bytes) -> None:
    with pytest.raises((UpstreamError, ValueError, TypeError, KeyError, AttributeError)):
        egress.parse_event(payload)


def test_events_of_a_request_s_own_stream() -> None:
    assert egress.parse_own(event(rows=[[1, 0, 0, 1, "a"]])) == [[1, 0, 0, 1, "a"]]
    end = b'{"text_output":"","finish_reason":"stop","num_output_tokens":4,"num_output_characters":9}'
    assert egress.parse_own(end) == Final(4, 9)
    assert egress.parse_own(b'{"text_output":"","finish_reason":"None"}') == []
    with pytest.raises(UpstreamError, match="INTERNAL: x"):
        egress.parse_own(b'{"error":"INTERNAL: x"}')
    with pytest.raises(KeyError):
        egress.parse_own(b'{"text_output":"","finish_reason":"stop"}')


def test_requests() -> None:
    base = {"batched_egress": True, "subscriber": "s"}
    assert json.loads(egress.subscription_body("s")) == base
    again = json.loads(egress.subscription_body("s", [(1, 2, 3)]))
    assert again == {**base, "resume": "[[1,2,3]]"}
    said = json.loads(egress.acknowledgement_body("s", 5, [(1, 2, 3), (4, 0, 0)]))
    assert said == {**base, "acknowledged": 5, "resume": "[[1,2,3],[4,0,0]]"}
    assert egress.answer_inputs("s", 9) == {**base, "stream_id": 9}


@pytest.mark.parametrize(
    ("backend", "inputs", "expected"),
    [
        (Backend.OURS, {"send_admission", "batched_egress"}, True),
        (Backend.OURS, {"send_admission"}, False),
        (Backend.STOCK, {"batched_egress"}, False),
    ],
)
def test_the_capability_is_an_input_of_ours(backend: Backend, inputs: set[str], expected: bool) -> None:
    assert egress.is_offered(ModelContract(backend, frozenset(inputs))) is expected
