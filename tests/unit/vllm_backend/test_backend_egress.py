"""Batched egress without an engine and without Triton: what is sent, when, and by which way."""

import gc

import pytest

from tests.support.subscriber_bench import Bench, Entry, Output, outputs
from vllm_backend import contract, egress
from vllm_backend.contract import Internal, InvalidArgument, Unavailable
from vllm_backend.egress import FINAL_WAIT, GRACE, IDLE, LEASE, MESSAGE, TOMBSTONE, WINDOW
from vllm_backend.request import Acknowledgement, Position

NAME = Bench.NAME


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_the_hello_comes_at_once(bench: Bench) -> None:
    way = bench.subscribe()
    bench.run()
    assert way.texts == [{"hello": {"version": 1, "next": 1}}]


def test_a_step_is_one_message_with_a_row_for_each_stream(bench: Bench) -> None:
    way = bench.subscribe()
    answers = [bench.answer(number) for number in (1, 2, 3)]
    for text in ("a", "ü🌊"):
        for answer in answers:
            answer.put(text)
        bench.run()
    assert way.texts[1:] == [
        {"message": 1, "rows": [[number, 0, 0, 1, "a"] for number in (1, 2, 3)]},
        {"message": 2, "rows": [[number, 1, 1, 1, "ü🌊"] for number in (1, 2, 3)]},
    ]


def test_what_comes_while_nothing_is_sent_is_merged(bench: Bench) -> None:
    way = bench.subscribe()
    answer = bench.answer(1)
    answer.put("a", "", "b", "c", finish_reason="stop")
    bench.run()
    assert way.rows() == [[1, 0, 0, 4, "abc", "stop"]]


def test_tokens_without_text_and_text_without_tokens(bench: Bench) -> None:
    way = bench.subscribe()
    answer = bench.answer(1)
    for output in (Output(""), Output("x", ()), Output("", (), "stop")):
        answer.stream.put(output)
        bench.run()
    assert way.rows() == [[1, 0, 0, 1, ""], [1, 1, 0, 0, "x"], [1, 1, 1, 0, "", "stop"]]


def test_the_final_waits_for_the_acknowledgement_of_the_last_row(bench: Bench) -> None:
    bench.subscribe()
    answer = bench.answer(1)
    answer.put("a")
    bench.run()
    answer.put("bc", finish_reason="length")
    bench.run()
    bench.acknowledge(1)
    assert answer.final is None
    bench.acknowledge(2)
    assert answer.final == ("length", 2, 3)


def test_the_final_does_not_wait_for_ever(bench: Bench) -> None:
    way = bench.subscribe()
    answer = bench.answer(1)
    answer.put("a", finish_reason="stop")
    bench.run()
    bench.wait(FINAL_WAIT - 0.1)
    assert answer.final is None
    bench.wait(0.2)
    assert answer.final == ("stop", 1, 1)
    way.take()
    # And still its rows can be asked for.
    bench.acknowledge(0, Position(1, 0, 0))
    assert way.rows() == [[1, 0, 0, 1, "a", "stop"]]


def test_an_error_is_the_last_row(bench: Bench) -> None:
    way = bench.subscribe()
    answer = bench.answer(1)
    answer.put("a")
    answer.stream.put(Internal("it broke."))
    answer.put("ignored")
    bench.run()
    assert way.rows() == [[1, 0, 0, 1, "a", "error", {"error": "INTERNAL: it broke."}]]
    bench.acknowledge(1)
    assert answer.final == ("error", 1, 1)
    assert isinstance(answer.stream.error, Internal)


def test_outputs_are_values_and_only_as_many_as_the_rows_tokens(bench: Bench) -> None:
    way = bench.subscribe()
    answer = bench.answer(1, outputs(logprobs=True, token_ids=True, stop_reason=True, cumulative_logprob=True))
    answer.stream.put(Output("a", (7,), logprobs=[{7: Entry(-0.5)}], cumulative_logprob=-0.5))
    bench.run()
    answer.stream.put(Output("b", (8,), "stop", [{8: Entry(float("-inf"), 3)}], -9.5, 8))
    bench.run()
    position = {"logprob": -1.0, "rank": 1, "decoded_token": "x"}
    assert way.rows() == [
        [
            *(1, 0, 0, 1, "a", None),
            {
                "token_ids": [7],
                "logprobs": [{"7": position | {"logprob": -0.5}}],
                "prompt_logprobs": [None, {"2": position}],
                "cumulative_logprob": -0.5,
            },
        ],
        [
            *(1, 1, 1, 1, "b", "stop"),
            {
                "token_ids": [8],
                "logprobs": [{"8": position | {"logprob": -9999.0, "rank": 3}}],
                "cumulative_logprob": -9.5,
                "stop_reason": 8,
            },
        ],
    ]


@pytest.mark.parametrize("characters", range(7))
@pytest.mark.parametrize("sent", [0, 2, 3])
def test_rows_are_sent_again_from_anywhere(bench: Bench, characters: int, sent: int) -> None:
    """Also from the middle of what was sent in one piece."""
    way = bench.subscribe()
    answer = bench.answer(1)
    for number, text in enumerate(("ab", "", "üdef")):
        if number == sent:
            bench.run()
        answer.put(text)
    bench.run()
    way.take()
    bench.acknowledge(0, Position(1, 1, characters))
    assert way.rows() == [[1, 1, characters, 2, "abüdef"[characters:]]]
    answer.put("g")
    bench.run()
    assert way.rows() == [[1, 3, 6, 1, "g"]]


def test_outputs_are_sent_again_until_they_are_acknowledged(bench: Bench) -> None:
    way = bench.subscribe()
    answer = bench.answer(1, outputs(token_ids=True))
    for token in (7, 8, 9):
        answer.stream.put(Output("x", (token,)))
        bench.run()
    way.take()
    bench.acknowledge(1, Position(1, 1, 1))
    assert way.rows() == [[1, 1, 1, 2, "xx", None, {"token_ids": [8, 9]}]]
    bench.acknowledge(1, Position(1, 0, 0))
    assert way.rows() == [[1, 0, 0, 0, "", "lost"]]


def test_what_is_not_there_is_lost(bench: Bench) -> None:
    way = bench.subscribe()
    answer = bench.answer(1)
    answer.put("ab")
    bench.run()
    way.take()
    # Unknown; unknown but perhaps on its way; more than there is of it.
    bench.acknowledge(0, Position(9, 3, 7), Position(8, 0, 0), Position(1, 2, 2), Position(1, 1, 3))
    assert way.rows() == [[9, 3, 7, 0, "", "lost"], [1, 1, 3, 0, "", "lost"]]


def test_nothing_is_sent_beyond_the_window_and_what_waits_is_merged(bench: Bench) -> None:
    way = bench.subscribe()
    answer = bench.answer(1)
    piece = "x" * (MESSAGE // 2)
    for _ in range(20):
        answer.put(piece)
        bench.run()
    _, *messages = way.take()
    assert len(messages) == WINDOW * 2 // MESSAGE
    answer.put("", finish_reason="stop")
    bench.run()
    assert not way.texts
    # The second one is too long for the window already: it was begun when there was still room.
    bench.acknowledge(1)
    (message,) = way.take()
    assert message["message"] == len(messages) + 1
    assert [len(message["rows"][0][4]), message["rows"][0][3]] == [12 * len(piece), 13]


def test_a_long_message_is_several(bench: Bench) -> None:
    way = bench.subscribe()
    piece = "x" * (MESSAGE // 2)
    for number in range(1, 6):
        bench.answer(number).put(piece)
    bench.run()
    assert [len(text["rows"]) for text in way.texts[1:]] == [2, 2, 1]


def test_a_doubled_or_old_acknowledgement_does_nothing(bench: Bench) -> None:
    bench.subscribe()
    answer = bench.answer(1)
    for text in "abc":
        answer.put(text)
        bench.run()
    for number in (2, 2, 0, 1, 3, 3):
        bench.acknowledge(number)
    with pytest.raises(InvalidArgument, match="acknowledged: must be at most the last message's number, 3, not 4"):
        bench.acknowledge(4)


def test_an_acknowledgement_of_nobody(bench: Bench) -> None:
    with pytest.raises(Unavailable, match="the subscriber is not known; subscribe again"):
        bench.acknowledge(0)


def test_an_acknowledgement_does_not_cover_what_was_sent_once_more(bench: Bench) -> None:
    """The client has lost the first message and got the second, which was sent before it asked for the first again."""
    bench.subscribe()
    answer = bench.answer(1, outputs(token_ids=True))
    for text in "ab":
        answer.put(text)
        bench.run()
    bench.acknowledge(2, Position(1, 0, 0))
    bench.acknowledge(2)
    # The third one, with all of it, is lost with its connection.
    again = bench.subscribe(Position(1, 0, 0))
    bench.run()
    (row,) = again.rows()
    assert row[:5] == [1, 0, 0, 2, "ab"]


def test_a_stream_number_is_used_once(bench: Bench) -> None:
    bench.answer(1)
    with pytest.raises(InvalidArgument, match="stream_id: must be a new one: 1 was used before"):
        bench.answer(1)


def test_a_newer_subscription_replaces_the_older_one(bench: Bench) -> None:
    old = bench.subscribe()
    answer = bench.answer(1)
    for text in "abc":
        answer.put(text)
        bench.run()
    bench.acknowledge(1)
    old.take()
    new = bench.subscribe()
    bench.run()
    assert old.texts == [{"end": "replaced"}]
    assert old.is_finished
    assert new.texts == [{"hello": {"version": 1, "next": 4}}, {"message": 4, "rows": [[1, 1, 1, 2, "bc"]]}]


def test_a_stream_goes_on_where_the_client_says(bench: Bench) -> None:
    way = bench.subscribe()
    answer = bench.answer(1)
    for text in "abc":
        answer.put(text)
        bench.run()
    bench.registry.lose(NAME, way)
    new = bench.subscribe(Position(1, 2, 2))
    bench.run()
    assert way.is_finished
    assert new.texts == [{"hello": {"version": 1, "next": 4}}, {"message": 4, "rows": [[1, 2, 2, 1, "c"]]}]


def test_without_a_subscription_rows_go_by_the_own_stream(bench: Bench) -> None:
    way = bench.subscribe()
    answer, other = bench.answer(1), bench.answer(2)
    for text in "ab":
        answer.put(text)
        bench.run()
    bench.acknowledge(1)
    bench.registry.lose(NAME, way)
    bench.run()
    way.take()
    bench.wait(GRACE - 0.1)
    assert not answer.own.texts
    bench.wait(0.2)
    # From what was acknowledged on: the client trims what it has.
    assert answer.own.rows() == [[1, 1, 1, 1, "b"]]
    answer.put("c")
    other.put("x")
    bench.run()
    answer.put("d", finish_reason="stop")
    bench.run()
    assert answer.own.rows() == [[1, 2, 2, 1, "c"], [1, 3, 3, 1, "d", "stop"]]
    assert other.own.rows() == [[2, 0, 0, 1, "x"]]
    assert answer.final == ("stop", 4, 4)
    assert other.final is None
    assert not way.texts


def test_an_own_stream_that_has_ended_is_no_way(bench: Bench) -> None:
    way = bench.subscribe()
    answer = bench.answer(1)
    answer.put("a", finish_reason="stop")
    bench.run()
    bench.wait(FINAL_WAIT + 0.1)
    assert answer.own.is_finished
    # Asked for once more, and then the subscription is gone before anything was sent.
    bench.registry.acknowledge(Acknowledgement(NAME, 0, (Position(1, 0, 0),)))
    bench.registry.lose(NAME, way)
    bench.run()
    bench.wait(GRACE + 0.1)
    bench.wait(GRACE + 0.1)
    assert not answer.own.texts
    again = bench.subscribe()
    bench.run()
    assert again.rows() == [[1, 0, 0, 1, "a", "stop"]]


def test_a_request_before_any_subscription(bench: Bench) -> None:
    answer = bench.answer(1)
    bench.wait(10)
    answer.put("a")
    bench.run()
    bench.wait(GRACE - 0.1)
    assert not answer.own.texts
    way = bench.subscribe()
    bench.run()
    bench.wait(1)
    assert way.rows() == [[1, 0, 0, 1, "a"]]
    assert not answer.own.texts


def test_a_new_subscription_takes_the_streams_back(bench: Bench) -> None:
    answer = bench.answer(1)
    answer.put("a")
    bench.run()
    bench.wait(GRACE + 0.1)
    assert answer.own.rows() == [[1, 0, 0, 1, "a"]]
    way = bench.subscribe(Position(1, 1, 1))
    answer.put("b")
    bench.run()
    assert way.rows() == [[1, 1, 1, 1, "b"]]
    assert not answer.own.texts


def test_a_subscription_ends_when_nothing_is_open(bench: Bench) -> None:
    way = bench.subscribe()
    answer = bench.answer(1)
    bench.run()
    way.take()
    bench.wait(IDLE + 1)
    assert not way.texts
    answer.put("a", finish_reason="stop")
    bench.run()
    bench.acknowledge(1)
    assert answer.final
    bench.wait(IDLE - 0.1)
    assert not way.is_finished
    bench.wait(0.2)
    assert way.take()[1:] == [{"end": "idle"}]
    assert way.is_finished
    assert len(bench.registry) == 0


def test_a_subscription_without_any_request_ends(bench: Bench) -> None:
    way = bench.subscribe()
    bench.run()
    bench.wait(IDLE + 0.1)
    assert way.texts[1:] == [{"end": "idle"}]
    assert len(bench.registry) == 0


def test_a_client_that_says_nothing_loses_its_streams(bench: Bench) -> None:
    way = bench.subscribe()
    answer = bench.answer(1)
    answer.put("a")
    bench.run()
    bench.wait(LEASE - 0.1)
    bench.acknowledge(1)
    bench.wait(LEASE - 0.1)
    assert answer.error is None
    bench.wait(0.2)
    assert answer.error is not None
    assert answer.error.text == "UNAVAILABLE: nothing has been heard of the subscriber for 15 s."
    assert way.texts[-1] == {"end": "silent"}
    bench.wait(0)
    assert len(bench.registry) == 0


def test_the_lease_does_not_hold_for_own_streams(bench: Bench) -> None:
    answer = bench.answer(1)
    for _ in range(5):
        answer.put("a")
        bench.run()
        bench.wait(LEASE)
    assert answer.error is None
    assert [row[4] for row in answer.own.rows()] == ["a"] * 5


def test_unloading_ends_subscriptions(bench: Bench) -> None:
    way = bench.subscribe()
    answer = bench.answer(1)
    answer.put("a")
    answer.cancel()
    bench.run()
    way.take()
    bench.registry.unload()
    assert way.texts == [{"end": "unloading"}]
    assert way.is_finished
    assert len(bench.registry) == 0


@pytest.mark.parametrize(
    "moment", ["at once", "before its rows are sent", "in the middle", "before its end", "at its end"]
)
def test_a_cancelled_stream_leaves_nothing(bench: Bench, moment: str) -> None:
    way = bench.subscribe()
    answer = bench.answer(1)
    other = bench.answer(2)
    if moment != "at once":
        answer.put("a")
        if moment != "before its rows are sent":
            bench.run()
            answer.put("b", finish_reason="stop" if moment == "at its end" else None)
            if moment != "in the middle":
                bench.run()
    answer.cancel()
    way.take()
    # As the engine does when a request is aborted.
    answer.stream.put(Output("", (), "abort"))
    other.put("x")
    bench.run()
    assert way.rows() == [[2, 0, 0, 1, "x"]]
    bench.acknowledge(last_message(bench))
    assert answer.final is None
    other.put("", finish_reason="stop")
    bench.run()
    bench.acknowledge(last_message(bench))
    bench.wait(IDLE + 0.1)
    assert len(bench.registry) == 0


def test_a_stream_is_cancelled_with_an_acknowledgement(bench: Bench) -> None:
    way = bench.subscribe()
    answers = [bench.answer(number) for number in (1, 2, 3)]
    for answer in answers:
        answer.put("a")
    answers[2].put("b", finish_reason="stop")
    bench.run()
    bench.wait(FINAL_WAIT + 0.1)
    assert answers[2].final
    way.take()
    # The third has had its final response, and of the fourth nothing is known.
    bench.acknowledge(0, cancelled=[1, 3, 4])
    assert [(answer.is_aborted, answer.error) for answer in answers] == [(True, None), (False, None), (False, None)]
    for answer in answers[:2]:
        answer.put("c")
    bench.run()
    assert way.rows() == [[2, 1, 1, 1, "c"]]


def last_message(bench: Bench) -> int:
    """The number of the last message."""
    for number in range(100, -1, -1):
        try:
            bench.acknowledge(number)
        except InvalidArgument:
            continue
        return number
    raise AssertionError


def test_tombstones_do_not_stay(bench: Bench) -> None:
    way = bench.subscribe()
    for number in range(1, 11):
        bench.answer(number).put("a", finish_reason="stop")
    bench.run()
    bench.wait(FINAL_WAIT + 0.1)
    bench.wait(IDLE + 0.1)
    assert way.is_finished
    assert len(bench.registry) == 1
    # The client comes back for one of them.
    way = bench.subscribe()
    bench.run()
    assert len(way.rows()) == 10
    bench.acknowledge(2)
    bench.wait(IDLE + 0.1)
    assert len(bench.registry) == 0
    # And never comes back for this one.
    bench.answer(11).put("a", finish_reason="stop")
    bench.run()
    bench.wait(GRACE + 0.1)
    bench.wait(TOMBSTONE - 0.1)
    assert len(bench.registry) == 1
    bench.wait(0.2)
    assert len(bench.registry) == 0


def alive() -> int:
    """How many objects of this module there are."""
    gc.collect()
    return sum(type(thing).__module__ == egress.__name__ for thing in gc.get_objects())


def test_nothing_grows_with_the_number_of_requests(bench: Bench) -> None:
    """20,000 requests: some of them cancelled, some acknowledged late, some sent again."""
    before = alive()
    way = bench.subscribe()
    counts: list[int] = []
    for number in range(1, 20_001):
        answer = bench.answer(number)
        answer.put("a", "b")
        bench.run()
        if number % 7 == 0:
            answer.cancel()
        else:
            answer.put("c", finish_reason="stop")
            bench.run()
        if number % 10 == 0:
            bench.now += 0.1
            last = [text["message"] for text in way.take() if "message" in text][-1]
            bench.acknowledge(last, *([Position(number, 1, 1)] if number % 1000 == 500 else []))
            bench.registry.tick()
        if number % 5000 == 0:
            counts.append(alive() - before)
    assert max(counts) < 10, counts


def test_the_flags_of_batched_egress_are_not_outputs() -> None:
    assert contract.NUM_OUTPUT_CHARACTERS not in contract.RETURN_FLAGS.values()
