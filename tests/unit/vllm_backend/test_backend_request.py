"""Reading a request's tensors."""

import json
from typing import Any

import numpy as np
import pytest

from vllm_backend import contract
from vllm_backend.contract import InvalidArgument
from vllm_backend.request import (
    Acknowledgement,
    GenerateRequest,
    Inputs,
    Position,
    StreamName,
    SubscriptionRequest,
    Truncation,
    parse_request,
)


def tensors(**values: Any) -> Inputs:
    """The arrays that Triton hands over: strings as objects of bytes."""

    def array(value: Any) -> np.ndarray[Any, Any]:
        if isinstance(value, bool):
            return np.array([value])
        if isinstance(value, str | bytes):
            return np.array([value.encode() if isinstance(value, str) else value], dtype=np.object_)
        return np.array(value)

    return {name: array(value) for name, value in values.items() if value is not None}


def generation(**values: Any) -> GenerateRequest:
    request = parse_request(tensors(**values))
    assert isinstance(request, GenerateRequest)
    return request


def refusal(**values: Any) -> str:
    with pytest.raises(InvalidArgument) as caught:
        parse_request(tensors(**values))
    return caught.value.text


def test_the_least_request() -> None:
    request = generation(text_input="Grüße")
    assert request.prompt == "Grüße"
    assert request.add_special_tokens
    assert not request.stream
    # The stock contract: the prompt comes back with the answer unless that is declined.
    assert request.prepend_prompt
    assert not request.send_admission
    assert request.outputs == frozenset()
    assert request.sampling == {}
    assert request.priority == 0
    assert (request.truncation, request.cache_salt, request.session_id) == (None, None, None)
    assert request.reasoning_ended is None


def test_a_streamed_request_with_everything() -> None:
    request = generation(
        text_input="a",
        stream=True,
        exclude_input_in_output=True,
        send_admission=True,
        add_special_tokens=False,
        priority=-5,
        truncate_prompt_tokens=7,
        truncation_side="left",
        cache_salt="Sälz",
        session_id="one",
        reasoning_ended=False,
        sampling_parameters='{"logprobs": 2, "prompt_logprobs": 0}',
        **dict.fromkeys(contract.RETURN_FLAGS, True),
    )
    assert request.stream
    assert not request.prepend_prompt
    assert request.send_admission
    assert not request.add_special_tokens
    assert request.outputs == {output.name for output in contract.OUTPUTS} - {"text_output", "num_output_characters"}
    assert request.batched is None
    assert request.token_logprobs
    assert request.sampling == {"logprobs": 2, "prompt_logprobs": 0}
    assert request.priority == -5
    assert request.truncation == Truncation(7, "left")
    assert (request.cache_salt, request.session_id) == ("Sälz", "one")
    assert request.reasoning_ended is False


@pytest.mark.parametrize(("stream", "exclude", "prepend"), [(False, False, True), (False, True, False)])
def test_whether_the_prompt_is_prepended(stream: bool, exclude: bool, prepend: bool) -> None:
    request = generation(text_input="a", stream=stream, exclude_input_in_output=exclude)
    assert request.prepend_prompt is prepend


def test_a_stream_never_prepends() -> None:
    assert not generation(text_input="a", stream=True).prepend_prompt


def test_token_ids() -> None:
    request = generation(input_ids=[5, 6])
    assert request.prompt == [5, 6]
    assert not request.prepend_prompt
    assert not request.add_special_tokens


def test_false_flags_ask_for_nothing() -> None:
    request = generation(text_input="a", return_logprobs=False, return_finish_reason=False)
    assert request.outputs == frozenset()


def test_the_sum_of_logprobs_makes_the_engine_compute_them() -> None:
    request = generation(text_input="a", return_cumulative_logprob=True, return_logprobs=True)
    assert request.sampling == {"logprobs": 0}
    # The client did not ask for the tokens' own.
    assert not request.token_logprobs


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({}, "text_input: is missing: give it or input_ids."),
        ({"text_input": "a", "input_ids": [1]}, "input_ids: must be absent, since text_input is given."),
        ({"input_ids": []}, "input_ids: must be at least one token id, each of at least 0."),
        ({"input_ids": [1, -1]}, "input_ids: must be at least one token id, each of at least 0."),
        ({"text_input": b"\xff"}, "text_input: is not valid UTF-8."),
        (
            {"text_input": "a", "stream": True, "exclude_input_in_output": False},
            "exclude_input_in_output: must be true or absent, since stream is true.",
        ),
        (
            {"input_ids": [1], "exclude_input_in_output": False},
            "exclude_input_in_output: must be true or absent, since the prompt is given as input_ids.",
        ),
        (
            {"input_ids": [1], "add_special_tokens": True},
            "add_special_tokens: must be false or absent, since the prompt is given as input_ids.",
        ),
        ({"text_input": "a", "image": "x"}, "image: not supported yet."),
        ({"embedding_request": "{}"}, "embedding_request: not supported yet."),
        ({"text_input": "a", "stream": [True, False]}, "stream: must hold exactly one value, not 2."),
        ({"text_input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens: must be at least 1, or -1, not 0."),
        (
            {"text_input": "a", "truncate_prompt_tokens": -2},
            "truncate_prompt_tokens: must be at least 1, or -1, not -2.",
        ),
        (
            {"text_input": "a", "truncation_side": "left"},
            "truncation_side: must be absent, since truncate_prompt_tokens is.",
        ),
        (
            {"text_input": "a", "truncate_prompt_tokens": 5, "truncation_side": "middle"},
            'truncation_side: must be left or right, not "middle".',
        ),
        *(
            (
                {"text_input": "a", "cache_salt": salt},
                "cache_salt: must be 1 to 128 characters, without '@', '/', '\\' and NUL.",
            )
            for salt in ("", "x" * 129, "a@b", "a/b", "a\\b", "a\0b")
        ),
        ({"text_input": "a", "session_id": ""}, "session_id: must be 1 to 1024 characters."),
        ({"text_input": "a", "session_id": "x" * 1025}, "session_id: must be 1 to 1024 characters."),
        ({"text_input": "a", "reasoning_ended": [True, True]}, "reasoning_ended: must hold exactly one value, not 2."),
        ({"text_input": "a", "priority": [1, 2]}, "priority: must hold exactly one value, not 2."),
        (
            {"text_input": "a", "sampling_parameters": '{"prompt_logprobs": 0}'},
            "sampling_parameters.prompt_logprobs: needs return_prompt_logprobs, which is absent or false.",
        ),
        ({"text_input": "a", "sampling_parameters": "[]"}, "sampling_parameters: must be a JSON object, not []."),
    ],
)
def test_refusals(values: dict[str, Any], text: str) -> None:
    assert refusal(**values) == f"INVALID_ARG {text}"


SUBSCRIBER = "0123456789abcdef-0123"
SUBSCRIBER_FORM = "subscriber: must be 16 to 64 characters of 0-9, a-f and '-'."
ANSWER = {
    "text_input": "a",
    "stream": True,
    "send_admission": True,
    "batched_egress": True,
    "subscriber": SUBSCRIBER,
    "stream_id": 7,
}
ALONE = {"subscriber": SUBSCRIBER, "stream_id": 1, "acknowledged": 1, "resume": "[]", "cancelled": "[]"}
SUBSCRIPTION = {"batched_egress": True, "subscriber": SUBSCRIBER}
ACKNOWLEDGEMENT = SUBSCRIPTION | {"acknowledged": 0}


def test_an_answer_by_rows() -> None:
    assert generation(**ANSWER).batched == StreamName(SUBSCRIBER, 7)
    assert generation(**(ANSWER | {"text_input": None, "input_ids": [5]})).batched == StreamName(SUBSCRIBER, 7)


def test_a_subscription_and_an_acknowledgement() -> None:
    assert parse_request(tensors(**SUBSCRIPTION)) == SubscriptionRequest(SUBSCRIBER, ())
    resume = {"resume": "[[1, 2, 3], [4, 0, 0]]"}
    positions = (Position(1, 2, 3), Position(4, 0, 0))
    assert parse_request(tensors(**SUBSCRIPTION, **resume)) == SubscriptionRequest(SUBSCRIBER, positions)
    assert parse_request(tensors(**ACKNOWLEDGEMENT)) == Acknowledgement(SUBSCRIBER, 0, ())
    assert parse_request(tensors(**ACKNOWLEDGEMENT, **resume)) == Acknowledgement(SUBSCRIBER, 0, positions)
    cancelled = parse_request(tensors(**ACKNOWLEDGEMENT, cancelled="[7, 9]"))
    assert cancelled == Acknowledgement(SUBSCRIBER, 0, (), (7, 9))


@pytest.mark.parametrize(
    ("values", "text"),
    [
        *(
            ({"text_input": "a", name: value}, f"{name}: needs batched_egress, which is absent or false.")
            for name, value in ALONE.items()
        ),
        ({"batched_egress": True}, "subscriber: is missing, since batched_egress is true."),
        *(
            ({"batched_egress": True, "subscriber": name}, SUBSCRIBER_FORM)
            for name in ("", "0" * 15, "0" * 65, "0123456789abcdeF", "0123456789abcdef\n", b"\xc3\xa4" * 16)
        ),
        (ANSWER | {"stream_id": 0}, "stream_id: must be at least 1, not 0."),
        (ANSWER | {"stream_id": None}, "stream_id: is missing, since batched_egress is true."),
        (ANSWER | {"text_input": None}, "text_input: is missing: give it or input_ids."),
        (ANSWER | {"stream": False}, "stream: must be true, since batched_egress is."),
        (ANSWER | {"send_admission": None}, "send_admission: must be true, since batched_egress is."),
        (ANSWER | {"acknowledged": 1}, "acknowledged: must be absent from a request for an answer."),
        (ANSWER | {"resume": "[]"}, "resume: must be absent from a request for an answer."),
        (ACKNOWLEDGEMENT | {"acknowledged": -1}, "acknowledged: must be the number of a message, or 0, not -1."),
        (SUBSCRIPTION | {"cancelled": "[1]"}, "cancelled: needs acknowledged, which is absent."),
        *(
            (
                ACKNOWLEDGEMENT | {"cancelled": text},
                f"cancelled: must be a JSON list of stream numbers, each of at least 1, not {json.dumps(text)}.",
            )
            for text in ("", "1", "[0]", "[true]", "[1.0]")
        ),
        (SUBSCRIPTION | {"stream": True}, "stream: must be absent from a request of batched egress without a prompt."),
        *(
            (
                SUBSCRIPTION | {"resume": text},
                "resume: must be a JSON list of [stream_id, tokens, characters], whole numbers from 0, the first from "
                f"1, not {json.dumps(text, ensure_ascii=False)}.",
            )
            for text in ("", "{}", "[1]", "[[1, 2]]", "[[0, 0, 0]]", "[[1, -1, 0]]", "[[1, 0, 0.5]]", "[[1, true, 0]]")
        ),
    ],
)
def test_refusals_of_batched_egress(values: dict[str, Any], text: str) -> None:
    assert refusal(**values) == f"INVALID_ARG {text}"


def test_an_input_that_is_declared_is_read() -> None:
    """No declared input may be ignored in silence: each wrong or set value changes the outcome."""
    plain = generation(text_input="a")
    changed = {
        "stream": True,
        "sampling_parameters": '{"seed": 1}',
        "exclude_input_in_output": True,
        "send_admission": True,
        "add_special_tokens": False,
        "priority": 1,
        "truncate_prompt_tokens": -1,
        "cache_salt": "x",
        "session_id": "x",
        "reasoning_ended": True,
        **dict.fromkeys(contract.RETURN_FLAGS, True),
    }
    for tensor in contract.INPUTS:
        if tensor.name in changed:
            assert generation(text_input="a", **{tensor.name: changed[tensor.name]}) != plain
        else:
            egress = {"batched_egress", "subscriber", "stream_id", "acknowledged", "resume", "cancelled"}
            assert tensor.name in {"text_input", "input_ids", "truncation_side", *egress, *contract.NOT_YET_SUPPORTED}
