"""Building the output tensors."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vllm_backend import contract
from vllm_backend.request import GenerateRequest, parse_request
from vllm_backend.response import LOWEST_LOGPROB, Logprobs, ResponseBuilder, Tensors


@dataclass
class Entry:
    logprob: float
    rank: int | None
    decoded_token: str | None


@dataclass
class Output:
    text: str
    token_ids: Sequence[int]
    cumulative_logprob: float | None = None
    logprobs: Sequence[dict[int, Any] | None] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class Prompt:
    """A prompt of four tokens, whose logprobs come when a test says so."""

    prompt_token_ids = (1, 20, 3, 7)
    logprobs: Logprobs | None = None

    def take_prompt_logprobs(self) -> Logprobs | None:
        taken, self.logprobs = self.logprobs, None
        return taken


def builder(
    *flags: str, sampling: str = "{}", stream: bool = True, text: str = "prompt", prompt: Prompt | None = None
) -> ResponseBuilder:
    inputs = {
        "text_input": np.array([text.encode()], dtype=np.object_),
        "stream": np.array([stream]),
        "sampling_parameters": np.array([sampling.encode()], dtype=np.object_),
        **{flag: np.array([True]) for flag in flags},
    }
    request = parse_request(inputs)
    assert isinstance(request, GenerateRequest)
    return ResponseBuilder(request, prompt or Prompt())


def values(tensors: Tensors) -> dict[str, Any]:
    return {name: array.tolist() for name, array in tensors}


def test_only_the_text_unless_more_is_asked_for() -> None:
    assert values(builder().build(Output("ü", [5]))) == {"text_output": ["ü".encode()]}


def test_the_prompt_precedes_an_answer_that_is_not_streamed() -> None:
    whole = builder(stream=False).build(Output(" answer", [5, 6], finish_reason="stop"))
    assert values(whole) == {"text_output": [b"prompt answer"]}


def test_everything_in_its_type() -> None:
    tensors = builder(*contract.RETURN_FLAGS, sampling='{"logprobs": 1}').build(
        Output("ab", [7, 8], -1.5, [{7: Entry(-1.0, 3, "a")}, {8: Entry(-0.5, 1, "b")}], "stop", 8)
    )
    assert values(tensors) == {
        "text_output": [b"ab"],
        "finish_reason": [b"stop"],
        "cumulative_logprob": [-1.5],
        "logprobs": [
            b'[{"7": {"logprob": -1.0, "rank": 3, "decoded_token": "a"}}, '
            b'{"8": {"logprob": -0.5, "rank": 1, "decoded_token": "b"}}]'
        ],
        "num_input_tokens": [4],
        "num_output_tokens": [2],
        "prompt_logprobs": [b"null"],
        "token_ids": [b"[7, 8]"],
        "prompt_token_ids": [b"[1, 20, 3, 7]"],
        "stop_reason": [b"8"],
    }
    types = {"TYPE_STRING": np.object_, "TYPE_FP32": np.float32, "TYPE_UINT32": np.uint32}
    tensors += builder().final("stop", 0, 0)
    declared = {output.name: types[output.data_type] for output in contract.OUTPUTS}
    assert {name: array.dtype.type for name, array in tensors} == declared


def test_finish_reason_is_the_text_none_until_the_last() -> None:
    assert values(builder("return_finish_reason").build(Output("a", [5])))["finish_reason"] == [b"None"]


def test_the_sampled_token_comes_first() -> None:
    position = {9: Entry(-3.0, 12, "x"), 1: Entry(-0.1, 1, "y")}
    tensors = builder("return_logprobs", sampling='{"logprobs": 1}').build(Output("x", [9], -3.0, [position]))
    ((first, *_),) = json.loads(values(tensors)["logprobs"][0])
    assert first == "9"


def test_minus_infinity_becomes_a_number() -> None:
    tensors = builder("return_logprobs", sampling='{"logprobs": 0}').build(
        Output("x", [9], -3.0, [{9: Entry(float("-inf"), 1, None)}])
    )
    (position,) = json.loads(values(tensors)["logprobs"][0])
    assert position["9"] == {"logprob": LOWEST_LOGPROB, "rank": 1, "decoded_token": None}


def test_logprobs_that_the_sampling_parameters_do_not_ask_for_are_null() -> None:
    flags = ("return_logprobs", "return_cumulative_logprob")
    tensors = builder(*flags).build(Output("x", [9], -3.0, [{9: Entry(-3.0, 1, "x")}]))
    assert values(tensors) == {"text_output": [b"x"], "logprobs": [b"null"], "cumulative_logprob": [-3.0]}


def test_the_admission_is_empty_but_has_the_same_outputs() -> None:
    response = builder(*contract.RETURN_FLAGS, sampling='{"logprobs": 1}')
    assert values(response.admission()) == {
        "text_output": [b""],
        "finish_reason": [b"None"],
        "cumulative_logprob": [0.0],
        "logprobs": [b"[]"],
        "num_input_tokens": [4],
        "num_output_tokens": [0],
        "prompt_logprobs": [b"null"],
        "token_ids": [b"[]"],
        "prompt_token_ids": [b"[1, 20, 3, 7]"],
        "stop_reason": [b"null"],
    }


def test_the_prompts_tokens_are_told_once() -> None:
    response = builder("return_prompt_token_ids")
    told = [response.build(Output("a", [5])) for _ in range(3)]
    assert [values(tensors)["prompt_token_ids"] for tensors in told] == [[b"[1, 20, 3, 7]"], [b"null"], [b"null"]]


def test_the_prompts_logprobs_are_told_once_and_with_the_answers_first_tokens() -> None:
    prompt = Prompt()
    response = builder("return_prompt_logprobs", sampling='{"prompt_logprobs": 1}', prompt=prompt)
    admission = response.admission()
    prompt.logprobs = [None, {20: Entry(-1.5, 4, "x"), 2: Entry(-0.5, 1, "y")}]
    told = [admission, *(response.build(Output("a", [5])) for _ in range(2))]
    null = [b"null"]
    text = (
        b'[null, {"20": {"logprob": -1.5, "rank": 4, "decoded_token": "x"}, '
        b'"2": {"logprob": -0.5, "rank": 1, "decoded_token": "y"}}]'
    )
    assert [values(tensors)["prompt_logprobs"] for tensors in told] == [null, [text], null]


def test_a_stop_reason_is_json() -> None:
    told = [builder("return_stop_reason").build(Output("a", [5], stop_reason=reason)) for reason in (None, 2, 'é"')]
    assert [json.loads(values(tensors)["stop_reason"][0]) for tensors in told] == [None, 2, 'é"']


def test_the_admission_holds_nothing_of_the_prompt() -> None:
    assert values(builder(stream=False).admission()) == {"text_output": [b""]}
