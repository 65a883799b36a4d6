"""What `python -m bench egress` makes of what it saw."""

import orjson
import pytest

from bench.egress import verdict
from bench.egress.client import WrongAnswer, read_chat, read_responses, read_rows
from bench.egress.measures import RequestCost, StreamCost
from bench.egress.verdict import BATCHED, OURS, PER_REQUEST, STOCK, Results
from bench.load.stream import Answer


def cost(microseconds: float, itl: float = 0.05) -> StreamCost:
    return StreamCost(microseconds, 0.0, 1000.0, 0.1, 0.2, itl, itl, 0.0)


def answer(*events: object) -> Answer:
    payloads = [event if isinstance(event, bytes) else orjson.dumps(event) for event in events]
    return Answer(200, events=[(payload, float(number), number) for number, payload in enumerate(payloads)])


def test_a_ratio_is_of_two_measures_of_the_same_round() -> None:
    results = Results(fast={64: {BATCHED: [cost(2), cost(9), cost(3)], PER_REQUEST: [cost(40), cost(90), cost(20)]}})
    (judged,) = verdict.judge(results)
    assert judged.value is not None
    assert (judged.value.low, judged.value.median, judged.value.high) == (0.05, 0.1, 0.15)
    assert judged.is_met


def test_requests_per_second_must_reach_their_target() -> None:
    results = Results(requests={STOCK: [RequestCost(100, 0, 100)], OURS: [RequestCost(100, 0, 299)]})
    judged = {one.name: one.is_met for one in verdict.judge(results)}
    assert judged == {"requests/s of 4 KB, ours / stock way": False, "CPU per request of 4 KB, ours / stock way": None}


def test_tables_have_a_cell_for_every_column() -> None:
    ways = {BATCHED: [cost(1)], PER_REQUEST: [cost(2)]}
    results = Results({64: ways}, {64: ways}, ways, {"nginx": [cost(3)]}, {STOCK: [RequestCost(1, 2, 3)]}, 12.0)
    for table in (verdict.streams(results), verdict.gateways(results), verdict.requests(results)):
        assert table.rows
        assert {len(row) for row in table.rows} == {len(table.header)}


def test_responses_are_added_up() -> None:
    def event(text: str, tokens: int, reason: str) -> dict[str, object]:
        return {"text_output": text, "num_output_tokens": tokens, "finish_reason": reason}

    streamed = read_responses(answer(event("", 0, "None"), event(" a", 1, "None"), event(" b c", 2, "length")), 0.5)
    assert (streamed.text, streamed.tokens, streamed.finish_reason) == (" a b c", [1, 2], "length")
    assert (streamed.ttft, streamed.gaps) == (0.5, [1.0])


FINAL = {"text_output": "", "finish_reason": "length", "num_output_tokens": 3, "num_output_characters": 4}


def test_rows_are_added_up() -> None:
    rows = [(1.0, [7, 0, 0, 2, " é"]), (2.0, [7, 2, 2, 1, " b", "length"])]
    streamed = read_rows(rows, answer({"text_output": ""}, FINAL), 0.0)
    assert (streamed.text, streamed.tokens, streamed.finish_reason) == (" é b", [2, 1], "length")


@pytest.mark.parametrize(
    "rows",
    [
        [(1.0, [7, 0, 0, 2, " é"])],
        [(1.0, [7, 0, 0, 2, " é"]), (2.0, [7, 1, 2, 1, " b", "length"])],
        [(1.0, [7, 0, 0, 3, " é", "length"])],
    ],
)
def test_rows_that_miss_something_are_wrong(rows: list[tuple[float, list[object]]]) -> None:
    with pytest.raises(WrongAnswer):
        read_rows(rows, answer({"text_output": ""}, FINAL), 0.0)


def test_an_error_in_a_chat_is_wrong() -> None:
    chunk = {"choices": [{"delta": {"content": " a b"}, "finish_reason": None}]}
    assert read_chat(answer(chunk, b"[DONE]"), 0.0).tokens == [2]
    with pytest.raises(WrongAnswer):
        read_chat(answer(chunk, {"error": {"message": "no"}}, b"[DONE]"), 0.0)
    with pytest.raises(WrongAnswer):
        read_chat(answer(chunk), 0.0)
