"""The field table: complete, and what it says is what happens."""

from typing import Any, get_type_hints

import pytest
from openai.types.chat import completion_create_params

from gateway.openai.errors import ApiError
from gateway.openai.fields import CHAT, Fate, judge_extras
from gateway.openai.schema import ChatRequest

# ChatCompletionRequest of vLLM 0.32, and its names before 0.12.
VLLM_FIELDS = [
    "add_generation_prompt",
    "add_special_tokens",
    "allowed_token_ids",
    "bad_words",
    "cache_salt",
    "chat_template",
    "chat_template_kwargs",
    "continue_final_message",
    "documents",
    "ec_transfer_params",
    "echo",
    "frequency_penalty",
    "ignore_eos",
    "include_reasoning",
    "include_stop_str_in_output",
    "kv_transfer_params",
    "length_penalty",
    "logit_bias",
    "logprob_token_ids",
    "logprobs",
    "max_completion_tokens",
    "max_tokens",
    "media_io_kwargs",
    "messages",
    "min_p",
    "min_tokens",
    "mm_payload",
    "mm_processor_kwargs",
    "model",
    "n",
    "parallel_tool_calls",
    "presence_penalty",
    "priority",
    "prompt_logprobs",
    "reasoning_effort",
    "repetition_detection",
    "repetition_penalty",
    "request_id",
    "response_format",
    "return_mm_kwargs",
    "return_prompt_text",
    "return_token_ids",
    "return_token_offsets",
    "return_tokens_as_token_ids",
    "routed_experts_prompt_start",
    "seed",
    "session_id",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "stop",
    "stop_token_ids",
    "stream",
    "stream_interval",
    "stream_options",
    "structured_outputs",
    "temperature",
    "thinking_token_budget",
    "tool_choice",
    "tools",
    "top_k",
    "top_logprobs",
    "top_p",
    "truncate_prompt_tokens",
    "truncation_side",
    "use_beam_search",
    "user",
    "vllm_xargs",
    "watermarking",
    "best_of",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "guided_decoding_backend",
    "guided_whitespace_pattern",
    "logits_processors",
]


def test_every_field_of_openais_chat_request_has_an_entry() -> None:
    streamed = get_type_hints(completion_create_params.CompletionCreateParamsStreaming)
    assert "messages" in streamed
    assert streamed.keys() - CHAT.keys() == set()


def test_every_field_of_vllms_chat_request_has_an_entry() -> None:
    assert set(VLLM_FIELDS) - CHAT.keys() == set()


def test_the_request_type_holds_what_is_forwarded_or_done_and_nothing_else() -> None:
    acted_on = {f.name for f in CHAT.values() if f.fate in (Fate.FORWARDED, Fate.DONE)}
    assert ChatRequest.model_fields.keys() == acted_on


def test_only_what_cannot_change_the_answer_is_ignored() -> None:
    ignored = {f.name for f in CHAT.values() if f.fate is Fate.IGNORED}
    assert ignored == {"user", "metadata", "store", "safety_identifier", "prompt_cache_key", "service_tier"}


@pytest.mark.parametrize("name", [f.name for f in CHAT.values() if f.fate is Fate.REFUSED])
def test_refused_fields_are_refused_by_name(name: str) -> None:
    with pytest.raises(ApiError) as caught:
        judge_extras({name: {"some": "value"}}, CHAT, strict=False)
    assert (caught.value.status, caught.value.param) == (400, name)
    assert ("not supported yet" in caught.value.message) is CHAT[name].later
    for harmless in (None, *CHAT[name].harmless):
        assert judge_extras({name: harmless}, CHAT, strict=True) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [("n", True), ("logprobs", 0), ("top_logprobs", False), ("n", 1.0), ("modalities", ["text", "audio"])],
)
def test_a_harmless_value_is_that_json_value_and_no_other(name: str, value: Any) -> None:
    with pytest.raises(ApiError):
        judge_extras({name: value}, CHAT, strict=False)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("user", "u"),
        ("metadata", {"a": "b"}),
        ("store", False),
        ("safety_identifier", "x"),
        ("prompt_cache_key", "x"),
        ("service_tier", "auto"),
        ("service_tier", "default"),
    ],
)
def test_ignored_fields_are_named_in_a_warning(name: str, value: Any) -> None:
    (warning,) = judge_extras({name: value}, CHAT, strict=True)
    assert name in warning


@pytest.mark.parametrize(("name", "value"), [("store", True), ("service_tier", "priority")])
def test_values_that_ask_for_more_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ApiError) as caught:
        judge_extras({name: value}, CHAT, strict=False)
    assert caught.value.param == name


def test_a_flood_of_unknown_fields_is_refused_at_once() -> None:
    with pytest.raises(ApiError, match="1000 fields"):
        judge_extras(dict.fromkeys(map(str, range(1000)), 1), CHAT, strict=False)


def test_unknown_fields_are_named_or_with_strict_fields_refused() -> None:
    (warning,) = judge_extras({"temprature": 1}, CHAT, strict=False)
    assert "temprature" in warning
    with pytest.raises(ApiError, match="temprature"):
        judge_extras({"temprature": 1}, CHAT, strict=True)
