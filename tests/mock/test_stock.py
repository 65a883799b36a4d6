"""In front of NVIDIA's stock backend, as far as the mock breaks like it."""

import json
from pathlib import Path

import httpx
import pytest

from bench.mock_engine.running import MockEngine, running_mock_engine
from gateway.openai.fields import CHAT
from tests.support.chat import MODEL, SCHEMA, TELLING, ask, beside, events, joined
from tests.support.gateway import running_gateway

ON_STOCK = {name: value for name, value in TELLING.items() if CHAT[name].stock}
NOT_ON_STOCK = {name: value for name, value in TELLING.items() if not CHAT[name].stock}


def test_an_answer_streamed_and_whole(stock_client: httpx.Client) -> None:
    whole = ask(stock_client, seed=7).json()
    chunks = events(ask(stock_client, seed=7, stream=True, stream_options={"include_usage": True}))
    assert joined(chunks) == whole["choices"][0]["message"]["content"]
    assert chunks[-1]["usage"] == whole["usage"]
    assert whole["usage"]["completion_tokens"] == 20
    assert chunks[-2]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"] == "length"


def test_nothing_arrives_that_breaks_it(stock_client: httpx.Client, stock: MockEngine) -> None:
    assert ask(stock_client, "hi", **dict.fromkeys(ON_STOCK)).status_code == 200
    assert ask(stock_client, **ON_STOCK, logprobs=True, guided_json=SCHEMA).status_code == 200
    nulls, full = stock.wait_for_requests(2)
    assert nulls["sampling_parameters"] == {"top_p": 0.9, "max_tokens": 20}
    constraint = full["sampling_parameters"].pop("structured_outputs")
    assert json.loads(constraint) == {"json": SCHEMA}
    assert full["sampling_parameters"].pop("extra_args") == TELLING["vllm_xargs"]
    expected = {CHAT[name].key: value for name, value in ON_STOCK.items() if name != "vllm_xargs"}
    assert full["sampling_parameters"] == expected | {"max_tokens": 20}
    assert full["parameters"] == {}
    assert not full["inputs"].keys() & {"send_admission", "add_special_tokens", "input_ids"}


def test_the_bos_that_its_tokenizer_adds_is_not_written_too(stock_client: httpx.Client, stock: MockEngine) -> None:
    ask(stock_client, "hi")
    (request,) = stock.wait_for_requests(1)
    assert request["inputs"]["text_input"] == "<|user|>hi<|assistant|>"
    assert request["first_prompt_token_ids"].count(0) == 1


def test_an_absent_limit_is_the_rest_of_the_context_and_not_sixteen(stock_client: httpx.Client) -> None:
    answer = ask(stock_client, max_tokens=None, seed=5, ignore_eos=True).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["total_tokens"] == 512


@pytest.mark.parametrize("name", NOT_ON_STOCK)
def test_what_it_cannot_take_is_refused_by_name(name: str, stock_client: httpx.Client, stock: MockEngine) -> None:
    answer = ask(stock_client, **beside(name, is_chat=True), **{name: NOT_ON_STOCK[name]})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "unsupported_parameter")
    assert error["param"] in (name, *beside(name, is_chat=True))
    assert stock.requests() == []


def test_a_structured_answer(stock_client: httpx.Client) -> None:
    answer = ask(stock_client, guided_json=SCHEMA, max_tokens=100)
    assert json.loads(answer.json()["choices"][0]["message"]["content"]).keys() == {"name", "n"}
    assert "x-gateway-structured-output" not in answer.headers


def test_a_prompt_that_is_too_long_is_the_clients_error(stock_client: httpx.Client) -> None:
    answer = ask(stock_client, "x" * 2000)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", "messages")


def test_a_client_that_goes_away_ends_it_at_its_next_output(stock_client: httpx.Client, stock: MockEngine) -> None:
    stock.add_fault(token_interval_ms=20)
    with stock_client.stream("POST", "/v1/chat/completions", json={
        "model": MODEL, "messages": [{"role": "user", "content": "x"}], "max_tokens": 400, "stream": True,
    }) as answer:  # fmt: skip
        next(answer.iter_lines())
    (request,) = stock.wait_for_requests(1)
    assert request["ended"] == "cancelled"
    assert request["tokens"] < 100


@pytest.mark.parametrize("accept", [False, True])
def test_an_old_triton_is_refused_with_one_sentence_unless_accepted(accept: bool, repository: Path) -> None:
    flags = ["--model-repository", str(repository), *(["--accept-old-triton"] if accept else [])]
    with (
        running_mock_engine(model_repository=repository, stock=True, server_version="2.60.0") as old,
        running_gateway("--triton", old.url, *flags) as gateway,
        httpx.Client(base_url=gateway.url) as client,
    ):
        if accept:
            gateway.wait_until_ready()
            assert ask(client).status_code == 200
        else:
            while "answered yet" in (answer := ask(client)).text:
                pass
            assert answer.status_code == 503
            message = answer.json()["error"]["message"]
            assert "2.60.0" in message
            assert "26.01" in message


def test_our_backend_is_supported_whatever_the_server(repository: Path) -> None:
    with (
        running_mock_engine(model_repository=repository, server_version="2.51.0") as old,
        running_gateway("--triton", old.url, "--model-repository", str(repository)) as gateway,
        httpx.Client(base_url=gateway.wait_until_ready().url) as client,
    ):
        assert ask(client, logit_bias={"5": 1}).status_code == 200


def test_a_model_without_a_tokenizer_is_refused_for_chat_with_the_setting(stock: MockEngine) -> None:
    models = json.dumps([{"triton_model": MODEL}])
    with (
        running_gateway("--triton", stock.url, "--models", models) as gateway,
        httpx.Client(base_url=gateway.wait_until_ready().url) as client,
    ):
        answer = ask(client)
        assert answer.status_code == 400
        assert "models[].tokenizer" in answer.json()["error"]["message"]
