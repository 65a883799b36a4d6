"""The backend's refusals on a real tritonserver with real vLLM: a fixed code, the place, a reason; on both routes."""

import json
from typing import Any

import pytest

from tests.support.backend import Backend, sampling


def parameters(**values: Any) -> dict[str, Any]:
    return {"text_input": "Hello", "sampling_parameters": sampling(**values)}


def constraint(**values: Any) -> dict[str, Any]:
    return parameters(structured_outputs=values)


STRUCTURED = "sampling_parameters.structured_outputs"


@pytest.mark.parametrize(
    ("inputs", "place", "reason"),
    [
        ({}, "text_input", "is missing: give it or input_ids."),
        ({"text_input": "a", "input_ids": [5]}, "input_ids", "must be absent, since text_input is given."),
        ({"input_ids": []}, "input_ids", "must be at least one token id, each of at least 0."),
        ({"input_ids": [5, 99999]}, "input_ids", "Token id 99999 is out of vocabulary."),
        ({"text_input": "a", "image": ["x"]}, "image", "not supported yet."),
        ({"text_input": "a", "embedding_request": "{}"}, "embedding_request", "not supported yet."),
        (
            {"text_input": "a", "stream": True, "exclude_input_in_output": False},
            "exclude_input_in_output",
            "must be true or absent, since stream is true.",
        ),
        ({"text_input": "", "add_special_tokens": False}, "prompt", "is empty."),
        ({"text_input": "word " * 20000}, "prompt", "This model's maximum context length is 4096 tokens."),
        ({"input_ids": [5] * 4096}, "prompt", "has 4096 tokens, which leaves no room for an answer"),
        ({"input_ids": [5] * 5000}, "prompt", "This model's maximum context length is 4096 tokens."),
        ({"text_input": "a", "sampling_parameters": "{"}, "sampling_parameters", "is not valid JSON: "),
        (parameters(guided_json={}), "sampling_parameters.guided_json", "is not a sampling parameter of this backend."),
        (parameters(lora_name="x"), "sampling_parameters.lora_name", "not supported yet."),
        (parameters(temperature=3), "sampling_parameters.temperature", "must be a number from 0 to 2, not 3."),
        (parameters(ignore_eos="false"), "sampling_parameters.ignore_eos", 'must be true or false, not "false".'),
        (parameters(n=2), "sampling_parameters.n", "must be 1"),
        (parameters(min_tokens=20), "sampling_parameters.min_tokens", "must be at most max_tokens, which is 16"),
        # Rules that only the engine knows the numbers for.
        (
            parameters(max_tokens=None, min_tokens=5000),
            "sampling_parameters.min_tokens",
            "min_tokens must be less than or equal to max_tokens=",
        ),
        (parameters(logprobs=21), "sampling_parameters.logprobs", "Requested sample logprobs of 21"),
        (parameters(stop_token_ids=[9999]), "sampling_parameters.stop_token_ids", "token_id(s) [9999]"),
        (parameters(logit_bias={"9999": 1}), "sampling_parameters.logit_bias", "token_id(s) [9999]"),
        (parameters(allowed_token_ids=[9999]), "sampling_parameters.allowed_token_ids", "allowed_token_ids contains"),
        (parameters(thinking_token_budget=5), "sampling_parameters.thinking_token_budget", "thinking_token_budget is"),
        (
            parameters(logprob_token_ids=[1]),
            "sampling_parameters.logprob_token_ids",
            "not supported by vLLM's V1 model runner, where it spoils the logprobs of other requests",
        ),
        ({"text_input": "a", "priority": -1}, "priority", "must be 0 or absent, since the engine schedules by fcfs"),
        (
            {"text_input": "a", "truncate_prompt_tokens": 0},
            "truncate_prompt_tokens",
            "must be at least 1, or -1, not 0.",
        ),
        (
            {"text_input": "a", "truncate_prompt_tokens": 4097},
            "truncate_prompt_tokens",
            "truncate_prompt_tokens=4097 cannot be greater than max_total_tokens = 4096.",
        ),
        (
            parameters(structured_outputs={"json_object": True}) | {"reasoning_ended": False},
            "reasoning_ended",
            "must be true or absent with a structured output, since the engine has no reasoning parser: set "
            "structured_outputs_config.reasoning_parser in model.json.",
        ),
        ({"text_input": "a", "truncation_side": "left"}, "truncation_side", "must be absent, since "),
        ({"text_input": "a", "cache_salt": "a/b"}, "cache_salt", "must be 1 to 128 characters, without "),
        ({"text_input": "a", "session_id": ""}, "session_id", "must be 1 to 1024 characters."),
        (parameters(prompt_logprobs=1), "sampling_parameters.prompt_logprobs", "needs return_prompt_logprobs, "),
        (
            parameters(prompt_logprobs=21) | {"return_prompt_logprobs": True},
            "sampling_parameters.prompt_logprobs",
            "Requested prompt logprobs of 21",
        ),
        (
            parameters(prompt_logprobs=1, skip_reading_prefix_cache=False) | {"return_prompt_logprobs": True},
            "sampling_parameters.skip_reading_prefix_cache",
            "must be true or absent, since prompt_logprobs is given.",
        ),
        (
            parameters(watermarking=True),
            "sampling_parameters.watermarking",
            "the engine has no watermark for this request",
        ),
        (
            parameters(repetition_detection={"max_pattern_size": 2}),
            "sampling_parameters.repetition_detection",
            "min_count must be >= 2",
        ),
        (constraint(), STRUCTURED, "must hold exactly one of "),
        (constraint(json={}, regex="a"), STRUCTURED, "must hold exactly one of "),
        (constraint(json={"type": "nope"}), STRUCTURED, "Grammar error: Invalid type: nope."),
        (constraint(json={"uniqueItems": True}), STRUCTURED, 'Grammar error: Unimplemented keys: ["uniqueItems"].'),
        (constraint(json="{"), STRUCTURED, "Invalid grammar specification: "),
        (constraint(regex="("), STRUCTURED, "Grammar error: "),
        (constraint(grammar="root"), STRUCTURED, "Invalid grammar specification: "),
        (constraint(structural_tag="{}"), STRUCTURED, "Invalid grammar specification: "),
    ],
)
def test_a_refusal_names_its_place(backend: Backend, inputs: dict[str, Any], place: str, reason: str) -> None:
    text = backend.refusal(**inputs)
    assert text.startswith(f"INVALID_ARG {place}: {reason}")
    assert "\n" not in text
    assert "Traceback" not in text


def test_triton_takes_a_priority_beyond_32_bits_for_another_one(backend: Backend) -> None:
    """So whoever sends one has to check its range."""
    backend.generate(text_input="a", priority=2**32, sampling_parameters=sampling(max_tokens=1))
    assert backend.refusal(text_input="a", priority=2**32 + 1).startswith("INVALID_ARG priority: must be 0")


def test_a_refusal_comes_before_the_admission(backend: Backend) -> None:
    assert backend.refusal(send_admission=True, **constraint(json={"type": "nope"})).startswith("INVALID_ARG ")


UNSATISFIABLE: dict[str, Any] = {"allowed_token_ids": [4], "structured_outputs": {"regex": "a"}}
"""The grammar refuses the one token that may be sampled, an exclamation mark: the engine ends the request with an
error."""


def test_an_error_of_the_engine_names_the_constraint(backend: Backend) -> None:
    assert backend.refusal(**parameters(**UNSATISFIABLE)) == (
        "INTERNAL: the engine ended the request, which is constrained by structured_outputs.regex, "
        "with an error and gave no reason."
    )


def test_an_error_after_the_first_response_is_an_event(backend: Backend) -> None:
    first, last = backend.stream(send_admission=True, **parameters(**UNSATISFIABLE))
    assert first["text_output"] == ""
    assert set(last) == {"error"}
    assert last["error"].startswith("INTERNAL: ")


def test_the_engine_survives_what_it_refuses(backend: Backend) -> None:
    answer = backend.generate(
        text_input="a",
        exclude_input_in_output=True,
        sampling_parameters=sampling(max_tokens=10, structured_outputs={"json": {"const": 1}}),
    )
    assert json.loads(answer["text_output"]) == 1
