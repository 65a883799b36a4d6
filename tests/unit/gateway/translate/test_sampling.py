"""Sampling parameters: what is forwarded, defaults, rules between fields."""

import json
from typing import Any

import pytest

from gateway.openai.errors import ApiError
from gateway.openai.fields import CHAT, Fate
from gateway.openai.schema import ChatRequest, parse_chat
from gateway.translate.sampling import model_defaults, refuse_on_stock, sampling_parameters
from tests.support.chat import TELLING


def request(**changes: Any) -> ChatRequest:
    return parse_chat(json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]} | changes).encode())


def test_every_forwarded_field_becomes_its_sampling_parameter() -> None:
    forwarded = {f.name: f.key for f in CHAT.values() if f.fate is Fate.FORWARDED}
    assert TELLING.keys() == forwarded.keys()
    parameters = sampling_parameters(request(**TELLING), {}, None)
    assert parameters == {forwarded[name]: value for name, value in TELLING.items()} | {"max_tokens": None}


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


@pytest.mark.parametrize("changes", [{"logit_bias": {"1": 1}}, {"stream_interval": 2}])
def test_what_the_stock_backend_cannot_take_is_refused_there(changes: dict[str, Any]) -> None:
    with pytest.raises(ApiError, match="stock vLLM backend") as caught:
        refuse_on_stock(request(**changes))
    assert caught.value.param in changes
    refuse_on_stock(request(temperature=1))
