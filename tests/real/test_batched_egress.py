"""Batched egress of the backend alone, on a real tritonserver with real vLLM: the rows of a subscription say what the
responses of the per-request path say."""

import json
import os
import signal
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from devtools.models import TINY
from devtools.stack import StackConfig
from tests.real.conftest import FreshStack
from tests.support.backend import Backend, Event, sampling, text_of
from tests.support.processes import engine_of
from tests.support.subscription import Answer, Subscription
from tests.support.waiting import wait_for

UNSATISFIABLE: dict[str, Any] = {"allowed_token_ids": [4], "structured_outputs": {"regex": "a"}}
"""The grammar refuses the one token that may be sampled."""

LONG = sampling(max_tokens=3000, ignore_eos=True)


@pytest.fixture
def name() -> str:
    return str(uuid.uuid4())


@pytest.fixture
def subscription(backend: Backend, name: str) -> Iterator[Subscription]:
    with Subscription(backend, name) as opened:
        yield opened


def ask(subscription: Subscription, backend: Backend, stream_id: int, **inputs: Any) -> tuple[Event, Event, Answer]:
    """Admission, final response and what came by rows."""
    subscription.answer(stream_id)
    wanted = subscription.inputs | {"stream_id": stream_id, "send_admission": True, "text_input": "Hello"} | inputs
    admission, final = backend.stream(**wanted)
    answer = subscription.answer(stream_id)
    assert final["text_output"] == ""
    assert (final["num_output_tokens"], final["num_output_characters"]) == (answer.tokens, len(answer.text))
    assert final["finish_reason"] == answer.finish_reason
    return admission, final, answer


REQUESTS: list[dict[str, Any]] = [
    {"sampling_parameters": sampling(max_tokens=40, temperature=0, ignore_eos=True)},
    {"sampling_parameters": sampling(max_tokens=30, temperature=0, ignore_eos=True, logprobs=2)}
    | {"return_logprobs": True, "return_token_ids": True, "return_cumulative_logprob": True},
    {"sampling_parameters": sampling(max_tokens=20, stop=["def"], structured_outputs={"regex": "abcdefgh"})}
    | {"return_stop_reason": True},
    {"sampling_parameters": sampling(max_tokens=30, structured_outputs={"regex": "🌊 über 🌊"})},
    {"sampling_parameters": sampling(max_tokens=2, prompt_logprobs=1, logit_bias={"77": 100}, stop_token_ids=[77])}
    | {"return_prompt_logprobs": True, "return_stop_reason": True, "return_prompt_token_ids": True},
    {"sampling_parameters": sampling(max_tokens=10, temperature=0, detokenize=False), "return_token_ids": True},
]


def test_rows_say_what_responses_say(backend: Backend, subscription: Subscription) -> None:
    """All of the requests at once, by rows and each by itself."""
    with ThreadPoolExecutor(len(REQUESTS)) as threads:
        by_rows = [
            threads.submit(ask, subscription, backend, number, return_num_input_tokens=True, **request)
            for number, request in enumerate(REQUESTS, start=1)
        ]
        by_responses = [
            backend.stream(send_admission=True, return_finish_reason=True, return_num_output_tokens=True, **request)
            for request in ({"text_input": "Hello", **request} for request in REQUESTS)
        ]
        for expected, found in zip(by_responses, by_rows, strict=True):
            admission, final, answer = found.result()
            assert answer.text == text_of(expected)
            assert answer.finish_reason == expected[-1]["finish_reason"]
            assert answer.tokens == sum(event["num_output_tokens"] for event in expected)
            assert admission["num_input_tokens"] == final["num_input_tokens"] > 0
            assert_same_outputs(expected, admission, answer.outputs)


def assert_same_outputs(expected: list[Event], admission: Event, found: dict[str, Any]) -> None:
    for name in ("logprobs", "token_ids"):
        if name in expected[0]:
            whole = [value for event in expected for value in json.loads(event[name])]
            assert len(found[name]) == len(whole)
            if name == "token_ids":
                assert found[name] == whole
            for one, other in zip(found[name], whole, strict=True) if name == "logprobs" else ():
                # In another batch the engine's numbers are others in the last digits.
                assert next(iter(one)) == next(iter(other))
                assert next(iter(one.values())) == pytest.approx(next(iter(other.values())), abs=1e-2)
    for name in ("prompt_logprobs", "stop_reason"):
        if name in expected[0]:
            values = [value for event in expected if (value := json.loads(event[name])) is not None]
            assert len(values) == 1
            if name == "stop_reason":
                assert found[name] == values[0]
            else:
                assert [list(position or ()) for position in found[name]] == [
                    list(position or ()) for position in values[0]
                ]
    if "cumulative_logprob" in expected[0]:
        assert found["cumulative_logprob"] == pytest.approx(expected[-1]["cumulative_logprob"], abs=0.1)
    if "prompt_token_ids" in expected[0]:
        assert admission["prompt_token_ids"] == expected[0]["prompt_token_ids"]
        assert "prompt_token_ids" not in found


def test_many_streams_at_once_are_few_messages(backend: Backend, subscription: Subscription) -> None:
    count, tokens = 24, 60
    wanted = sampling(max_tokens=tokens, ignore_eos=True)
    with ThreadPoolExecutor(count) as threads:
        asked = [
            threads.submit(ask, subscription, backend, number, sampling_parameters=wanted)
            for number in range(1, count + 1)
        ]
        answers = [found.result()[2] for found in asked]
    assert [answer.tokens for answer in answers] == [tokens] * count
    assert subscription.messages == list(range(1, len(subscription.messages) + 1))
    # Had each token been a message, they would be 24 times 60.
    assert len(subscription.messages) < count * tokens / 4


def test_an_error_is_a_row_and_the_end_of_its_stream_alone(backend: Backend, subscription: Subscription) -> None:
    wanted = subscription.inputs | {"stream_id": 1, "send_admission": True, "text_input": "Hello"}
    admission, final = backend.stream(**wanted, sampling_parameters=sampling(**UNSATISFIABLE))
    assert admission["text_output"] == ""
    assert final["error"].startswith("INTERNAL: the engine ended the request, which is constrained by ")
    subscription.wait_for(lambda: subscription.answer(1).finish_reason == "error", "the row")
    assert subscription.answer(1).outputs == {"error": final["error"]}
    ask(subscription, backend, 2, sampling_parameters=sampling(max_tokens=3))


def test_a_refused_request_has_no_rows(backend: Backend, subscription: Subscription) -> None:
    text = backend.refusal(
        **subscription.inputs,
        stream_id=1,
        stream=True,
        send_admission=True,
        text_input="Hello",
        sampling_parameters=sampling(structured_outputs={"json": {"type": "nope"}}),
    )
    assert text.startswith("INVALID_ARG sampling_parameters.structured_outputs: ")
    ask(subscription, backend, 2, sampling_parameters=sampling(max_tokens=3))
    assert set(subscription.answers) == {2}


def test_a_client_that_goes_away_ends_its_stream_alone(backend: Backend, subscription: Subscription, name: str) -> None:
    other = subscription.answer(2)
    wanted = subscription.inputs | {"send_admission": True, "text_input": "Hello", "sampling_parameters": LONG}
    with backend.open(**wanted, stream_id=2) as events:
        next(events)
        with backend.open(id=name, **wanted, stream_id=1) as cancelled:
            next(cancelled)
            subscription.wait_for(lambda: subscription.answer(1).tokens > 5, "some tokens")
        line = backend.wait_for_log(f"request '{name}' cancelled by its client after ")
        assert int(line.split(" after ")[1].split()[0]) < 3000
        seen = other.tokens
        subscription.wait_for(lambda: other.tokens > seen + 5, "more of the other one")
    assert subscription.answer(1).finish_reason is None


def test_without_its_subscription_a_stream_goes_on_by_itself(backend: Backend, name: str) -> None:
    """And a new subscription takes it back. Nothing is lost, whatever was on its way."""
    greedy = sampling(max_tokens=700, temperature=0, ignore_eos=True)
    wanted = {"send_admission": True, "text_input": "Hello", "sampling_parameters": greedy}
    whole = text_of(backend.stream(**wanted))
    with Subscription(backend, name) as first:
        answer = first.answer(1)
        inputs = first.inputs | wanted | {"stream_id": 1}
        with backend.open(**inputs) as events:
            next(events)
            first.wait_for(lambda: answer.tokens > 20, "some tokens")
            first.close()
            for _ in range(3):
                (row,) = json.loads(next(events)["text_output"])["rows"]
                answer.apply(row)
            with Subscription(backend, name, first.answers) as second:
                rest = list(events)
                second.wait_for(lambda: answer.finish_reason is not None, "the end")
                assert second.messages[0] > first.messages[-1]
    *rows, final = rest
    for event in rows:
        for row in json.loads(event["text_output"])["rows"]:
            answer.apply(row)
    assert answer.text == whole
    assert (final["num_output_tokens"], final["num_output_characters"]) == (answer.tokens, len(answer.text))


def test_a_request_without_any_subscription(backend: Backend, name: str) -> None:
    admission, *rows, final = backend.stream(
        batched_egress=True,
        subscriber=name,
        stream_id=1,
        send_admission=True,
        text_input="Hello",
        sampling_parameters=sampling(max_tokens=30, ignore_eos=True),
    )
    assert admission["text_output"] == ""
    answer = Answer()
    for event in rows:
        for row in json.loads(event["text_output"])["rows"]:
            answer.apply(row)
    assert answer.tokens == final["num_output_tokens"] == 30
    assert answer.finish_reason == final["finish_reason"] == "length"


def test_a_newer_subscription_ends_the_older_one(backend: Backend, name: str, subscription: Subscription) -> None:
    with Subscription(backend, name) as newer:
        subscription.wait_for(lambda: subscription.end is not None, "the end of the first one")
        assert subscription.end == "replaced"
        ask(newer, backend, 1, sampling_parameters=sampling(max_tokens=3))


def test_a_subscription_ends_when_nothing_is_open(backend: Backend, subscription: Subscription) -> None:
    ask(subscription, backend, 1, sampling_parameters=sampling(max_tokens=3))
    subscription.wait_for(lambda: subscription.end is not None, "its end")
    assert subscription.end == "idle"
    text = backend.refusal(**subscription.inputs, acknowledged=0)
    assert text == "UNAVAILABLE: the subscriber is not known; subscribe again."


def test_wrong_combinations_are_refused_by_name(backend: Backend, name: str) -> None:
    inputs = {"batched_egress": True, "subscriber": name}
    assert backend.refusal(subscriber=name, text_input="a").startswith("INVALID_ARG subscriber: needs batched_egress")
    assert backend.refusal(**inputs, text_input="a").startswith("INVALID_ARG stream_id: is missing")
    assert backend.refusal(**inputs, resume="[[1]]").startswith("INVALID_ARG resume: must be a JSON list of ")
    assert backend.refusal(**inputs, acknowledged=1) == "UNAVAILABLE: the subscriber is not known; subscribe again."


@pytest.mark.long
def test_the_death_of_the_engine_is_the_last_row_of_every_stream(fresh_stack: FreshStack, name: str) -> None:
    """And the model can be loaded again, although a subscription was open."""
    triton = (stack := fresh_stack(StackConfig(models={TINY: {}}, gateway=False))).service("triton")
    backend = Backend(stack.triton_url, TINY, triton.log)
    error = "UNAVAILABLE: the engine has stopped; unload the model and load it again."
    with Subscription(backend, name) as subscription, ExitStack() as streams:
        answers = [subscription.answer(number) for number in (1, 2, 3)]
        inputs = subscription.inputs | {"send_admission": True, "text_input": "Hello", "sampling_parameters": LONG}
        opened = [streams.enter_context(backend.open(**inputs, stream_id=number)) for number in (1, 2, 3)]
        for events in opened:
            next(events)
        subscription.wait_for(lambda: all(answer.tokens for answer in answers), "some tokens of each")
        os.kill(engine_of(triton), signal.SIGKILL)
        assert [list(events) for events in opened] == [[{"error": error}]] * 3
        subscription.wait_for(lambda: subscription.end is not None, "the end of the subscription")
    assert [(answer.finish_reason, answer.outputs) for answer in answers] == [("error", {"error": error})] * 3
    wait_for(lambda: not backend.is_ready, "the model's unloading")
    backend.load()
    with Subscription(backend, name) as subscription:
        ask(subscription, backend, 4, sampling_parameters=sampling(max_tokens=3))
    backend.close()


@pytest.mark.long
def test_sigterm_does_not_wait_for_a_subscriber(fresh_stack: FreshStack) -> None:
    """A stream that is open goes on to its end, by its own way when the client has closed its subscription; and then
    the server is down as soon as without a subscriber."""
    stack = fresh_stack(StackConfig(models={TINY: {}}, gateway=False))
    triton = stack.service("triton")
    backend = Backend(stack.triton_url, TINY, triton.log)
    with Subscription(backend, str(uuid.uuid4())) as subscription:
        ask(subscription, backend, 1, sampling_parameters=sampling(max_tokens=3))
        subscription.wait_for(lambda: subscription.end == "idle", "its end")
    with Subscription(backend, str(uuid.uuid4())) as subscription:
        answer = subscription.answer(1)
        inputs = subscription.inputs | {"stream_id": 1, "send_admission": True, "text_input": "Hello"}
        with backend.open(**inputs, sampling_parameters=LONG) as events:
            next(events)
            subscription.wait_for(lambda: answer.tokens > 20, "some tokens")
            triton.ask_to_stop()
            subscription.close()
            *rows, final = events
    for event in rows:
        for row in json.loads(event["text_output"])["rows"]:
            answer.apply(row)
    assert answer.tokens == final["num_output_tokens"] == 3000
    assert len(answer.text) == final["num_output_characters"]
    # An idle connection is waited for by Triton as well.
    backend.close()
    triton.wait()
    assert "Exit timeout expired" not in triton.output()
