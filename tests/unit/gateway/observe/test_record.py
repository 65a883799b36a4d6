"""What a request's marks become: the counters, the service level, the log line."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.access.keys import Key
from gateway.observe import metrics, request_log
from gateway.observe.record import CLIENT_GONE, Record, ServiceLevel, begin, naming, record_of
from gateway.openai.errors import ApiError, bad_request, unavailable

ANY = ServiceLevel()


def made(path: str = "/v1/completions") -> Record:
    return Record({"type": "http", "method": "POST", "path": path, "headers": []})


def answered(key: str, *, generations: int = 1, reason: str = "stop") -> Record:
    """A request that took 1 s to its first token, then had one every 0.1 s, in pairs."""
    record = made()
    record.key = Key(key)
    record.body_at = 100.0
    record.asks("m", stream=True)
    record.entered("i", generations, 0.25)
    record.sent()
    record.admitted(0.0)
    for choice in range(generations):
        for now in (101.0, 101.2, 101.4):
            record.tokens(choice, 2, now)
    record.prompt_tokens, record.completion_tokens = 7, 6 * generations
    record.ended(reason)
    record.status = 200
    return record


def sample(name: str, **labels: str) -> float:
    return metrics.REGISTRY.get_sample_value(name, labels) or 0.0


def test_an_answer_is_counted_once_with_all_its_labels() -> None:
    record = answered("counted", generations=2)
    where = {"model": "m", "instance": "i", "key": "counted"}
    assert sample("gateway_requests_in_flight", **where) == 2
    record.finish(ANY)
    ended = where | {"reason": "stop"}
    assert sample("gateway_requests_in_flight", **where) == 0
    assert sample("gateway_requests_total", **ended, status="200") == 1
    assert sample("gateway_prompt_tokens_total", **ended) == 7
    assert sample("gateway_completion_tokens_total", **ended) == 12
    assert sample("gateway_request_seconds_count", **ended) == 1
    assert sample("gateway_queue_wait_seconds_sum", **where) == 0.25
    assert sample("gateway_time_to_first_token_seconds_sum", **where) == pytest.approx(1.0)
    # Two choices with two gaps of 0.2 s, each for two tokens.
    assert sample("gateway_inter_token_latency_seconds_count", **where) == 8
    assert sample("gateway_inter_token_latency_seconds_sum", **where) == pytest.approx(0.8)
    assert sample("gateway_inter_token_latency_seconds_bucket", **where, le="0.075") == 0
    assert sample("gateway_inter_token_latency_seconds_bucket", **where, le="0.15") == 8
    assert sample("gateway_slo_met_total", **where) == sample("gateway_slo_requests_total", **where) == 1


def test_a_client_that_went_away_is_counted_with_its_tokens() -> None:
    record = answered("gone")
    record.status = CLIENT_GONE
    record.finish(ANY)
    where = {"model": "m", "instance": "i", "key": "gone"}
    assert sample("gateway_cancelled_requests_total", **where) == 1
    assert sample("gateway_cancelled_completion_tokens_total", **where) == 6
    assert sample("gateway_completion_tokens_total", **where, reason="cancelled") == 6


def test_a_move_takes_the_place_in_flight_along() -> None:
    record = made()
    record.key = Key("moved")
    record.asks("m", stream=False)
    record.entered("first", 3, 0.0)
    record.moved("second")
    assert sample("gateway_requests_in_flight", model="m", instance="first", key="moved") == 0
    assert sample("gateway_requests_in_flight", model="m", instance="second", key="moved") == 3
    assert sample("gateway_retries_total", model="m", instance="first") == 1
    record.finish(ANY)
    assert sample("gateway_requests_in_flight", model="m", instance="second", key="moved") == 0


@pytest.mark.parametrize(
    ("error", "counter", "reason"),
    [
        (bad_request("no", code="invalid_value"), ("gateway_refused_total", {"kind": "invalid_value"}), "refused"),
        (ApiError(418, "no"), ("gateway_refused_total", {"kind": "status_418"}), "refused"),
        (
            unavailable("no"),
            ("gateway_errors_total", {"kind": "engine_unavailable", "instance": "", "key": "erring"}),
            "error",
        ),
    ],
)
def test_errors_and_refusals_are_counted_by_kind(
    error: ApiError, counter: tuple[str, dict[str, str]], reason: str
) -> None:
    record = made()
    record.key = Key("erring")
    record.asks("m", stream=False)
    record.error, record.status = error, error.status
    name, labels = counter
    before = sample(name, model="m", **labels)
    record.finish(ANY)
    assert sample(name, model="m", **labels) == before + 1
    assert record.reason == reason


def test_a_stream_that_failed_behind_its_head_is_an_error_though_it_was_a_200() -> None:
    record = answered("late")
    record.error = unavailable("gone")
    record.finish(ANY)
    assert record.reason == "error"
    assert sample("gateway_requests_total", model="m", instance="i", key="late", status="200", reason="error") == 1
    assert sample("gateway_slo_met_total", model="m", instance="i", key="late") == 0


def test_choices_that_end_differently_are_mixed() -> None:
    record = answered("mixed", reason="stop")
    record.ended("length")
    record.ended("stop")
    record.finish(ANY)
    assert record.reason == "mixed"


def test_probes_are_not_counted() -> None:
    record = made("/metrics")
    record.status = 200
    record.finish(ANY)
    assert sample("gateway_requests_total", model="", instance="", key="", status="200", reason="") == 0


@pytest.mark.parametrize(
    ("level", "met"),
    [
        (ServiceLevel(), True),
        (ServiceLevel(ttft=1.0), True),
        (ServiceLevel(ttft=0.9), False),
        (ServiceLevel(itl=0.1000001), True),
        (ServiceLevel(itl=0.09), False),
        (ServiceLevel(ttft=2, itl=0.09), False),
        (ServiceLevel(ttft=0.9, itl=2), False),
    ],
)
def test_the_service_level_of_an_answer(level: ServiceLevel, met: bool) -> None:
    record = answered("slo")
    record.ended_at = 102.0
    assert record.met(level) is met
    record.status = CLIENT_GONE
    assert record.met(level) is met, "a client that went away has seen this"


def test_the_service_level_of_what_has_no_token() -> None:
    record = made()
    record.body_at = 100.0
    record.asks("m", stream=False)
    record.entered("i", 1, 0.0)
    record.ended_at = 101.0
    record.status = CLIENT_GONE
    assert record.met(ServiceLevel(ttft=1.0)) is True
    assert record.met(ServiceLevel(ttft=0.9)) is False, "it waited that long"
    for error, met in ((ApiError(429, ""), False), (unavailable(""), False), (bad_request(""), None)):
        record.error = error
        assert record.met(ANY) is met
    unknown = made()
    unknown.body_at = 1.0
    assert unknown.met(ANY) is None, "it asked for no model that there is"


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9), st.floats(0, 3)), max_size=60))
def test_every_token_behind_a_choice_s_first_read_is_tallied_once(reads: list[tuple[int, int, float]]) -> None:
    record = made()
    record.asks("m", stream=True)
    record.entered("i", 3, 0.0)
    now, tokens, gaps = 1000.0, 0, 0.0
    last: dict[int, float] = {}
    for choice, count, pause in reads:
        now += pause
        record.tokens(choice, count, now)
        if choice in last:
            tokens += count
            gaps += now - last[choice]
        last[choice] = now
    mean = record.mean_itl()
    assert mean == (pytest.approx(gaps / tokens) if tokens else None)
    record.finish(ANY)


def test_the_log_line_says_what_is_known_and_no_more() -> None:
    record = answered("a")
    record.request_id = "id"
    record.started_at, record.queued_at, record.sent_at, record.head_at = 99.5, 100.25, 100.3, 100.5
    record.ended_at = 102.0
    record.is_met = record.met(ServiceLevel(ttft=5))
    assert request_log.fields(record) == {
        "request_id": "id", "method": "POST", "path": "/v1/completions", "status": 200, "key": "a", "model": "m",
        "instance": "i", "reason": "stop", "retries": 0, "total": 2.0, "stream": True, "choices": 1,
        "prompt_tokens": 7, "completion_tokens": 6, "queue": 0.25, "sent": 0.3, "connect": 0.0, "head": 0.5,
        "first_token": 1.0, "mean_itl": 0.1, "slo_met": True,
    }  # fmt: skip
    refused = made("/" + "x" * 1000)
    refused.request_id, refused.started_at, refused.ended_at, refused.status = "id", 1.0, 1.5, 400
    refused.error = bad_request("No, and why.", "messages[0]", "invalid_value")
    line = request_log.fields(refused)
    assert line["error"] == "invalid_value"
    assert line["total"] == 0.5
    assert len(line["path"]) == 200
    assert "why" not in str(line), "a message may hold what a client wrote"


def test_the_answer_names_the_request_and_its_status_is_noted() -> None:
    sent: list[Any] = []

    async def send(event: Any) -> None:
        sent.append(event)

    scope = {"type": "http", "method": "GET", "path": "/", "headers": [(b"x-request-id", b"mine")]}
    record = made()
    record.request_id = "mine"
    begin(scope, record)
    assert record_of(scope) is record
    send_named = naming(record, send)

    async def answer() -> None:
        await send_named({"type": "http.response.start", "status": 404, "headers": [(b"a", b"b")]})
        await send_named({"type": "http.response.body", "body": b"x"})

    asyncio.run(answer())
    assert record.status == 404
    assert sent[0]["headers"] == [(b"a", b"b"), (b"x-request-id", b"mine")]
    assert sent[1] == {"type": "http.response.body", "body": b"x"}
