"""Proof on the wire: every row of the field tables, for each kind of request, is what arrives at the engine."""

from collections.abc import Callable, Mapping
from typing import Any

import httpx
import pytest

from bench.mock_engine.running import MockEngine
from gateway.openai.fields import CHAT, COMPLETION, Fate, Field
from tests.support.chat import COMPLETION_TELLING, MODEL, SCHEMA, TELLING, ask, beside, complete, events

TABLES = {"chat": CHAT, "completion": COMPLETION}
VALUES = {"chat": TELLING, "completion": COMPLETION_TELLING}


def rows(fate: Fate) -> list[tuple[str, Field]]:
    return [(kind, field) for kind, table in TABLES.items() for field in table.values() if field.fate is fate]


def each(fate: Fate, left_out: Mapping[str, set[str]] | None = None) -> pytest.MarkDecorator:
    found = [(kind, field) for kind, field in rows(fate) if field.name not in (left_out or {}).get(kind, ())]
    return pytest.mark.parametrize(("kind", "field"), found, ids=[f"{kind}-{field.name}" for kind, field in found])


def send(client: httpx.Client, kind: str, **fields: Any) -> httpx.Response:
    return ask(client, **fields) if kind == "chat" else complete(client, **fields)


@each(Fate.FORWARDED)
def test_every_forwarded_field_arrives(kind: str, field: Field, client: httpx.Client, engine: MockEngine) -> None:
    value = VALUES[kind][field.name]
    answer = send(client, kind, **beside(field.name, is_chat=kind == "chat"), **{field.name: value})
    assert answer.status_code == 200, answer.text
    assert "x-gateway-warning" not in answer.headers
    (request,) = engine.wait_for_requests(1)
    # A key that is no input of the model would be dropped without a word.
    assert request["parameters"] == {}
    if field.key is not None:
        assert request["sampling_parameters"][field.key] == value
    else:
        assert request["inputs"][field.input] == value


@each(Fate.FORWARDED)
def test_nothing_arrives_for_a_field_that_is_not_given(
    kind: str, field: Field, client: httpx.Client, engine: MockEngine
) -> None:
    assert send(client, kind, **{field.name: None}).status_code == 200
    (request,) = engine.wait_for_requests(1)
    always = {"top_p", "max_tokens"}  # The model's own default, and the limit of every request.
    assert field.key in always or field.key not in request["sampling_parameters"]
    assert field.input is None or field.input not in request["inputs"]


@each(Fate.REFUSED)
def test_every_refused_field_is_400_and_reaches_no_engine(
    kind: str, field: Field, client: httpx.Client, engine: MockEngine
) -> None:
    answer = send(client, kind, **{field.name: {"telling": 1}})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["type"]) == (400, field.name, "invalid_request_error")
    assert engine.requests() == []


@each(Fate.IGNORED)
def test_every_ignored_field_is_named_in_a_warning(
    kind: str, field: Field, client: httpx.Client, engine: MockEngine
) -> None:
    plain = send(client, kind)
    answer = send(client, kind, **{field.name: field.only[0] if field.only else "a value"})
    assert answer.status_code == 200
    assert field.name in answer.headers["x-gateway-warning"]
    before, after = engine.wait_for_requests(2)
    assert before["sampling_parameters"] == after["sampling_parameters"]
    assert before["inputs"].keys() == after["inputs"].keys()
    assert answer.json()["choices"] == plain.json()["choices"]


Proof = tuple[dict[str, Any], Callable[[dict[str, Any], dict[str, Any]], bool]]
"""A request with a telling value, and what must hold of the engine's request and the client's answer."""


def _asked(**constraint: Any) -> Callable[[dict[str, Any], dict[str, Any]], bool]:
    return lambda engine, answer: engine["sampling_parameters"]["structured_outputs"] == constraint


TOOL = {"type": "function", "function": {"name": "telling", "parameters": {"type": "object", "properties": {}}}}

# Seen where a model thinks, in test_tools.py.
ELSEWHERE = {"chat": {"include_reasoning"}, "completion": set[str]()}

# What a field that the gateway does itself changes, in what arrives or in what comes back.
DONE: dict[str, Proof] = {
    "model": ({}, lambda engine, answer: answer["model"] == engine["model"] == MODEL),
    "stream": ({"stream": True}, lambda engine, answer: answer["object"].endswith(("chunk", "text_completion"))),
    "stream_options": (
        {"stream": True, "stream_options": {"include_usage": True}},
        lambda engine, answer: answer["usage"]["completion_tokens"] == engine["tokens"],
    ),
    "response_format": ({"response_format": {"type": "json_object"}}, _asked(json_object=True)),
    "structured_outputs": ({"structured_outputs": {"regex": "[a-c]{3}"}}, _asked(regex="[a-c]{3}")),
    "guided_json": ({"guided_json": SCHEMA}, _asked(json=SCHEMA)),
    "guided_regex": ({"guided_regex": "[a-c]{3}"}, _asked(regex="[a-c]{3}")),
    "guided_choice": ({"guided_choice": ["yes", "no"]}, _asked(choice=["yes", "no"])),
    "guided_grammar": ({"guided_grammar": 'root ::= "a" | "b"'}, _asked(grammar='root ::= "a" | "b"')),
    "n": ({"n": 3}, lambda engine, answer: [c["index"] for c in answer["choices"]] == [0, 1, 2]),
    "request_id": (
        {"request_id": "mine"},
        lambda engine, answer: answer["id"] == engine["request_id"] and answer["id"].endswith("-mine"),
    ),
    "return_token_ids": (
        {"return_token_ids": True},
        lambda engine, answer: len(answer["choices"][0]["token_ids"]) == engine["tokens"],
    ),
    "max_tokens": ({"max_tokens": 3}, lambda engine, answer: engine["sampling_parameters"]["max_tokens"] == 3),
}
CHAT_DONE = DONE | {
    "messages": (
        {"messages": [{"role": "user", "content": "telling"}]},
        lambda engine, answer: "telling" in engine["inputs"]["text_input"],
    ),
    "max_completion_tokens": (
        {"max_completion_tokens": 3, "max_tokens": None},
        lambda engine, answer: engine["sampling_parameters"]["max_tokens"] == 3,
    ),
    "logprobs": ({"logprobs": True}, lambda engine, answer: len(answer["choices"][0]["logprobs"]["content"]) == 20),
    "return_tokens_as_token_ids": (
        {"return_tokens_as_token_ids": True, "logprobs": True},
        lambda engine, answer: answer["choices"][0]["logprobs"]["content"][0]["token"].startswith("token_id:"),
    ),
    "add_generation_prompt": (
        {"add_generation_prompt": False},
        lambda engine, answer: not engine["inputs"]["text_input"].endswith("<|assistant|>"),
    ),
    "continue_final_message": (
        {"messages": [{"role": "assistant", "content": "telling"}], "continue_final_message": True},
        lambda engine, answer: engine["inputs"]["text_input"].endswith("telling"),
    ),
    "add_special_tokens": (
        {"add_special_tokens": True},
        lambda engine, answer: engine["inputs"]["add_special_tokens"] is True,
    ),
    "chat_template_kwargs": (
        {"chat_template_kwargs": {"mood": "telling"}},
        lambda engine, answer: "telling" in engine["inputs"]["text_input"],
    ),
    "documents": (
        {"documents": [{"title": "telling"}]},
        lambda engine, answer: "telling" in engine["inputs"]["text_input"],
    ),
    "tools": ({"tools": [TOOL]}, lambda engine, answer: "telling" in engine["inputs"]["text_input"]),
    "tool_choice": (
        {"tools": [TOOL], "tool_choice": "required"},
        lambda engine, answer: engine["sampling_parameters"]["structured_outputs"]["json"]["minItems"] == 1,
    ),
    "parallel_tool_calls": (
        {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False},
        lambda engine, answer: engine["sampling_parameters"]["structured_outputs"]["json"]["maxItems"] == 1,
    ),
    "reasoning_effort": (
        {"reasoning_effort": "minimal"},
        lambda engine, answer: "minimal" in engine["inputs"]["text_input"],
    ),
    "echo": (
        {"messages": [{"role": "assistant", "content": "telling"}], "continue_final_message": True, "echo": True},
        lambda engine, answer: answer["choices"][0]["message"]["content"].startswith("telling"),
    ),
    "return_prompt_text": (
        {"return_prompt_text": True},
        lambda engine, answer: answer["prompt_text"] == engine["inputs"]["text_input"],
    ),
}
COMPLETION_DONE = {name: proof for name, proof in DONE.items() if name != "max_tokens"} | {
    "prompt": ({"prompt": [65, 66]}, lambda engine, answer: engine["inputs"]["input_ids"] == [65, 66]),
    "return_tokens_as_token_ids": (
        {"return_tokens_as_token_ids": True, "logprobs": 1},
        lambda engine, answer: answer["choices"][0]["logprobs"]["tokens"][0].startswith("token_id:"),
    ),
    "add_special_tokens": (
        {"add_special_tokens": False},
        lambda engine, answer: engine["inputs"]["add_special_tokens"] is False,
    ),
    "echo": ({"echo": True}, lambda engine, answer: answer["choices"][0]["text"].startswith("Say something.")),
}
PROOFS = {"chat": CHAT_DONE, "completion": COMPLETION_DONE}


def test_every_field_that_the_gateway_does_has_a_proof() -> None:
    for kind, table in TABLES.items():
        done = {field.name for field in table.values() if field.fate is Fate.DONE}
        assert PROOFS[kind].keys() | ELSEWHERE[kind] == done


@each(Fate.DONE, ELSEWHERE)
def test_every_field_that_the_gateway_does_is_done(
    kind: str, field: Field, client: httpx.Client, engine: MockEngine
) -> None:
    request, holds = PROOFS[kind][field.name]
    answer = send(client, kind, **request)
    assert answer.status_code == 200, answer.text
    assert "x-gateway-warning" not in answer.headers
    body = events(answer)[-1] if request.get("stream") else answer.json()
    arrived = engine.wait_for_requests(request.get("n", 1))
    assert holds(arrived[0], body), (arrived, body)
    # A key that is no input of the model would be dropped without a word.
    assert all(one["parameters"] == {} for one in arrived)
