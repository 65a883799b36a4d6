"""Sampling parameters: what is forwarded, defaults, rules between fields."""

import json
from typing import Any

import pytest

from gateway.openai.errors import ApiError
from gateway.openai.fields import CHAT, COMPLETION, Fate
from gateway.openai.schema import ChatRequest, CompletionRequest, parse_chat, parse_completion
from gateway.translate.sampling import for_choice, inputs, model_defaults, refuse_missing, sampling_parameters
from gateway.triton.contract import Backend, ModelContract
from tests.support.chat import COMPLETION_TELLING, TELLING, beside


def request(**changes: Any) -> ChatRequest:
    return parse_chat(json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]} | changes).encode())


def completion(**changes: Any) -> CompletionRequest:
    return parse_completion(json.dumps({"model": "m", "prompt": "hi"} | changes).encode())


def test_telling_values_cover_every_forwarded_field() -> None:
    assert TELLING.keys() == {f.name for f in CHAT.values() if f.fate is Fate.FORWARDED}
    assert COMPLETION_TELLING.keys() == {f.name for f in COMPLETION.values() if f.fate is Fate.FORWARDED}


@pytest.mark.parametrize("name", TELLING)
def test_every_forwarded_field_of_a_chat_becomes_its_parameter_or_input(name: str) -> None:
    asked = request(**beside(name, is_chat=True), **{name: TELLING[name]})
    check_forwarded(asked, name, TELLING[name])


@pytest.mark.parametrize("name", COMPLETION_TELLING)
def test_every_forwarded_field_of_a_completion_becomes_its_parameter_or_input(name: str) -> None:
    asked = completion(**beside(name, is_chat=False), **{name: COMPLETION_TELLING[name]})
    check_forwarded(asked, name, COMPLETION_TELLING[name])


def check_forwarded(asked: ChatRequest | CompletionRequest, name: str, value: Any) -> None:
    field = (CHAT if isinstance(asked, ChatRequest) else COMPLETION)[name]
    assert (field.key is None) is not (field.input is None)
    if field.key is not None:
        assert sampling_parameters(asked, {}, None)[field.key] == value
    else:
        assert field.input is not None
        assert inputs(asked)[field.input] == value


def test_logprobs_of_a_chat() -> None:
    assert sampling_parameters(request(logprobs=True), {}, None)["logprobs"] == 0
    assert sampling_parameters(request(logprobs=True, top_logprobs=5), {}, None)["logprobs"] == 5
    assert sampling_parameters(request(logprobs=True, top_logprobs=-1), {}, None)["logprobs"] == -1
    for nothing in ({}, {"logprobs": False}, {"logprobs": False, "top_logprobs": 0}, {"top_logprobs": 0}):
        assert "logprobs" not in sampling_parameters(request(**nothing), {}, None)
    for changes in ({"top_logprobs": 1}, {"logprobs": False, "top_logprobs": -1}):
        with pytest.raises(ApiError, match="needs logprobs") as caught:
            sampling_parameters(request(**changes), {}, None)
        assert caught.value.param == "top_logprobs"


def test_named_tokens_take_the_place_of_the_best_ranked_ones() -> None:
    for asked in (request(logprobs=True, logprob_token_ids=[7]), completion(logprobs=0, logprob_token_ids=[7])):
        parameters = sampling_parameters(asked, {}, None)
        assert "logprobs" not in parameters
        assert parameters["logprob_token_ids"] == [7]
    for top in (1, -1):
        with pytest.raises(ApiError, match="beside logprob_token_ids") as caught:
            sampling_parameters(request(logprobs=True, top_logprobs=top, logprob_token_ids=[7]), {}, None)
        assert caught.value.param == "top_logprobs"
        with pytest.raises(ApiError, match="beside logprob_token_ids") as caught:
            sampling_parameters(completion(logprobs=top, logprob_token_ids=[7]), {}, None)
        assert caught.value.param == "logprobs"
    for asked in (request(logprob_token_ids=[7]), completion(logprob_token_ids=[7])):
        with pytest.raises(ApiError, match="needs logprobs") as caught:
            sampling_parameters(asked, {}, None)
        assert caught.value.param == "logprob_token_ids"


def test_the_limit_of_a_completion() -> None:
    assert sampling_parameters(completion(), {"max_tokens": 99}, 8)["max_tokens"] == 16
    assert sampling_parameters(completion(max_tokens=3), {}, 8)["max_tokens"] == 3
    # With echo, none means: the prompt alone. The engine generates at least one.
    assert sampling_parameters(completion(max_tokens=0, echo=True), {}, 8)["max_tokens"] == 1
    for changes in ({"max_tokens": 0}, {"max_tokens": 9}):
        with pytest.raises(ApiError) as caught:
            sampling_parameters(completion(**changes), {}, 8)
        assert caught.value.param == "max_tokens"


def test_echo_with_logprobs_asks_for_those_of_the_prompt() -> None:
    assert sampling_parameters(completion(echo=True, logprobs=2), {}, None)["prompt_logprobs"] == 2
    both = completion(echo=True, logprobs=2, prompt_logprobs=4)
    assert sampling_parameters(both, {}, None)["prompt_logprobs"] == 4
    for changes in ({"echo": True}, {"logprobs": 2}):
        assert "prompt_logprobs" not in sampling_parameters(completion(**changes), {}, None)


def test_prompt_logprobs_are_refused_in_a_stream() -> None:
    for asked in (request(prompt_logprobs=1, stream=True), completion(prompt_logprobs=1, stream=True)):
        with pytest.raises(ApiError) as caught:
            sampling_parameters(asked, {}, None)
        assert caught.value.param == "prompt_logprobs"


@pytest.mark.parametrize("changes", [{"truncate_prompt_tokens": 0}, {"truncation_side": "left"}])
def test_a_truncation_that_says_nothing_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ApiError) as caught:
        inputs(request(**changes))
    assert caught.value.param in changes


def test_each_choice_has_a_seed_of_its_own() -> None:
    parameters = {"seed": 5, "top_k": 1}
    assert [for_choice(parameters, i) for i in range(3)] == [{"seed": 5 + i, "top_k": 1} for i in range(3)]
    assert for_choice({"top_k": 1}, 2) == {"top_k": 1}
    with pytest.raises(ApiError) as caught:
        for_choice({"seed": 2**63 - 1}, 1)
    assert caught.value.param == "seed"


def test_zero_and_false_are_values() -> None:
    parameters = sampling_parameters(
        request(temperature=0, top_k=0, seed=0, ignore_eos=False), {"temperature": 0.7}, None
    )
    assert parameters == {"temperature": 0.0, "top_k": 0, "seed": 0, "ignore_eos": False, "max_tokens": None}


def test_nothing_is_invented() -> None:
    assert sampling_parameters(request(), {}, 4096) == {"max_tokens": None}


def test_defaults_are_the_models_and_the_client_wins() -> None:
    config = {
        "temperature": 0.6,
        "top_p": 0.9,
        "max_new_tokens": 99,
        "eos_token_id": 2,
        "top_k": None,
        "do_sample": True,
    }
    defaults = model_defaults(config)
    assert defaults == {"temperature": 0.6, "top_p": 0.9, "max_tokens": 99}
    parameters = sampling_parameters(request(temperature=1, max_tokens=200), defaults, 4096)
    assert parameters == {"temperature": 1.0, "top_p": 0.9, "max_tokens": 200}
    assert sampling_parameters(request(), defaults, 4096)["max_tokens"] == 99


def test_both_names_of_the_limit() -> None:
    assert sampling_parameters(request(max_completion_tokens=5), {}, None)["max_tokens"] == 5
    assert sampling_parameters(request(max_tokens=5, max_completion_tokens=5), {}, None)["max_tokens"] == 5
    with pytest.raises(ApiError, match="two names"):
        sampling_parameters(request(max_tokens=5, max_completion_tokens=6), {}, None)


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_a_limit_above_the_context_is_refused(name: str) -> None:
    assert sampling_parameters(request(**{name: 4096}), {}, 4096)["max_tokens"] == 4096
    with pytest.raises(ApiError, match="4096 tokens") as caught:
        sampling_parameters(request(**{name: 4097}), {}, 4096)
    assert caught.value.param == name


def test_min_tokens_above_the_limit() -> None:
    with pytest.raises(ApiError) as caught:
        sampling_parameters(request(min_tokens=6, max_tokens=5), {}, None)
    assert caught.value.param == "min_tokens"


@pytest.mark.parametrize("token", ["", "a", "-1", "1.0", "²"])
def test_logit_bias_keys_are_token_ids(token: str) -> None:
    with pytest.raises(ApiError) as caught:
        sampling_parameters(request(logit_bias={token: 1}), {}, None)
    assert caught.value.param == f"logit_bias.{token}"


@pytest.mark.parametrize("value", [-100.5, 101, "1", None, True])
def test_logit_bias_values_are_numbers_in_bounds(value: Any) -> None:
    with pytest.raises(ApiError) as caught:
        sampling_parameters(request(logit_bias={"1": value}), {}, None)
    assert caught.value.param == "logit_bias.1"


@pytest.mark.parametrize("value", [None, {}, [None], [[]], True])
def test_xargs_are_strings_numbers_and_lists_of_them(value: Any) -> None:
    with pytest.raises(ApiError) as caught:
        sampling_parameters(request(vllm_xargs={"good": [1, 2.5, "x"], "bad": value}), {}, None)
    assert caught.value.param == "vllm_xargs.bad"


def test_a_number_that_json_cannot_write_is_refused() -> None:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], "vllm_xargs": {"a": 0}})
    with pytest.raises(ApiError, match=r"vllm_xargs\.a"):
        sampling_parameters(parse_chat(body.replace('"a": 0', '"a": 1e999').encode()), {}, None)


STOCK = ModelContract(Backend.STOCK, frozenset({"text_input"}))
NOT_ON_STOCK = {
    "logit_bias",
    "stream_interval",
    "thinking_token_budget",
    "repetition_detection",
    "watermarking",
    "priority",
    "cache_salt",
    "session_id",
    "truncate_prompt_tokens",
    "truncation_side",
    "prompt_logprobs",
    "logprob_token_ids",
}


@pytest.mark.parametrize("name", TELLING)
def test_what_the_stock_backend_cannot_take_is_refused_there(name: str) -> None:
    asked = request(**{name: TELLING[name]})
    if name not in NOT_ON_STOCK:
        refuse_missing(asked, STOCK)
        return
    with pytest.raises(ApiError, match="stock vLLM backend") as caught:
        refuse_missing(asked, STOCK)
    assert caught.value.param == name


def test_values_that_ask_for_nothing_are_taken_everywhere() -> None:
    refuse_missing(request(priority=0, return_token_ids=False), STOCK)


NEEDED = {f.name: f.needs for f in (*CHAT.values(), *COMPLETION.values()) if f.needs is not None}


@pytest.mark.parametrize("name", NEEDED)
def test_an_input_that_the_backend_does_not_declare_is_refused(name: str) -> None:
    """Triton would take it as a parameter of no meaning."""
    asked = request(**{name: TELLING.get(name, True)})
    refuse_missing(asked, ModelContract(Backend.OURS, frozenset({NEEDED[name]})))
    with pytest.raises(ApiError, match="newer") as caught:
        refuse_missing(asked, ModelContract(Backend.OURS, frozenset()))
    assert caught.value.param == name
