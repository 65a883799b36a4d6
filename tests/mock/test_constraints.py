"""The field `constraints` on its way to the engine: what it goes with, and where its refusals point."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.mock_engine.running import MockEngine
from bench.mock_engine.words import WORDS
from tests.support.chat import MODEL, SCHEMA, ask, complete
from tests.support.gateway import running_gateway
from tests.support.tools import Talk

ONCE = {"no_repeat_ngram": {"size": 1}}
TITLES = {"catalog": {"name": "titles"}}
# The catalogue that the mock engine has.
WORD = {"catalog": {"name": "words"}}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
BINDING: dict[str, dict[str, Any]] = {
    "response_format": {"response_format": {"type": "json_object"}},
    "structured_outputs.regex": {"structured_outputs": {"regex": "a"}},
    "guided_json": {"guided_json": SCHEMA},
    "guided_choice": {"guided_choice": ["a", "b"]},
}
BOUND_CALLS: dict[str, dict[str, Any]] = {
    "required": {"tools": [TOOL], "tool_choice": "required"},
    "named": {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "look"}}},
}


@pytest.mark.parametrize("place", BINDING)
@pytest.mark.parametrize("send", [ask, complete])
def test_beside_a_structured_output_both_are_named(
    send: Any, place: str, client: httpx.Client, engine: MockEngine
) -> None:
    answer = send(client, constraints=ONCE, **BINDING[place])
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, "constraints", "invalid_value")
    assert error["message"] == f"constraints and {place} both bind the answer; keep one of them."
    assert engine.requests() == []


@pytest.mark.parametrize("choice", BOUND_CALLS)
def test_beside_calls_that_are_asked_for_both_are_named(choice: str, client: httpx.Client, engine: MockEngine) -> None:
    answer = ask(client, constraints=ONCE, **BOUND_CALLS[choice])
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "constraints")
    assert "constraints and tool_choice" in answer.json()["error"]["message"]
    assert engine.requests() == []


def test_where_the_model_is_free_to_call_it_may_stand(client: httpx.Client) -> None:
    answer = ask(client, constraints=ONCE, tools=[TOOL])
    assert answer.status_code == 200, answer.text
    assert "x-gateway-warning" not in answer.headers


@pytest.mark.parametrize("send", [ask, complete])
@pytest.mark.parametrize("stream", [False, True])
def test_the_engines_refusal_has_the_clients_place(stream: bool, send: Any, client: httpx.Client) -> None:
    answer = send(client, constraints=TITLES, vllm_xargs={"k": 1}, stream=stream)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "constraints.catalog.name")
    assert error["message"] == "constraints.catalog.name: is not among this engine's catalogues."


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ([], "constraints"),
        ("titles", "constraints"),
        ({}, "constraints"),
        ({"no_repeat_ngram": {"size": 2**64}}, "constraints"),
        ({"no_repeat_ngram": {"size": 0}}, "constraints.no_repeat_ngram"),
    ],
)
def test_a_wrong_one_is_refused_with_its_place(wrong: Any, param: str, client: httpx.Client) -> None:
    answer = ask(client, constraints=wrong)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_a_number_that_no_double_holds_is_refused(client: httpx.Client) -> None:
    body = '{"model":"mock","prompt":"a","constraints":{"no_repeat_ngram":{"size":1e999}}}'
    answer = client.post("/v1/completions", content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "constraints.no_repeat_ngram.size")


def test_an_engine_without_a_known_processor_gets_none(stock_client: httpx.Client, stock: MockEngine) -> None:
    """vLLM would ignore what no processor reads, and NVIDIA's stock backend does not look."""
    answer = ask(stock_client, constraints=ONCE)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, "constraints", "unsupported_parameter")
    assert "vllm_backend" in error["message"]
    assert stock.requests() == []


@pytest.mark.parametrize(
    ("model", "opening", "param"),
    [
        ("qwen3", "<think>\n", "constraints.catalog"),
        ("gpt_oss", "<|start|>assistant", "constraints.catalog"),
        # Thinking is over, or the constraint keeps the model from it: refused by the engine alone, which has none.
        ("qwen3", "<think>\n\n</think>\n\n", "constraints.catalog.name"),
        ("qwen3", "", "constraints.catalog.name"),
    ],
)
def test_no_entry_of_a_catalogue_in_place_of_the_thinking(model: str, opening: str, param: str, talk: Talk) -> None:
    body = {"model": model, "messages": [{"role": "user", "content": "hi"}], "constraints": TITLES}
    answer = httpx.post(
        f"{talk.gateway.url}/v1/chat/completions", json=body | {"chat_template_kwargs": {"opening": opening}}
    )
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_what_it_does_to_calls_is_told(repository: Path, engine: MockEngine) -> None:
    served = {"triton_model": MODEL, "tool_structural_tag": True, "structured_outputs_backend": "xgrammar"}
    flags = ("--triton", engine.url, "--model-repository", str(repository), "--models", json.dumps([served]))
    with (
        running_gateway(*flags) as gateway,
        httpx.Client(base_url=gateway.wait_until_ready().url, timeout=30, verify=False) as client,
    ):
        answers = [ask(client, **fields, tools=[TOOL]) for fields in ({}, {"constraints": ONCE}, {"constraints": WORD})]
    assert [answer.headers.get("x-gateway-warning") for answer in answers] == [
        None,
        "calls are not kept valid: constraints binds the answer",
        "tools cannot be called: constraints.catalog binds the answer",
    ]
    free, once, word = engine.wait_for_requests(3)
    assert "structured_outputs" in free["sampling_parameters"]
    assert not any("structured_outputs" in bound["sampling_parameters"] for bound in (once, word))


@pytest.mark.parametrize("send", [ask, complete])
def test_an_entry_of_a_catalogue_is_the_answer(send: Any, client: httpx.Client) -> None:
    (choice,) = send(client, constraints=WORD).json()["choices"]
    assert (choice.get("text") or choice["message"]["content"]) in WORDS
    assert choice["finish_reason"] == "stop"
