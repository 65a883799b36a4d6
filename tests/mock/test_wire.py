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


TOOL = {"type": "function", "function": {"name": "telling", "parameters": {"type": "object", "properties": {}}}}

ONCE = {"no_repeat_ngram": {"size": 1}}

# Where a field's value has no effect beside the others. The tests' model does not think, and has a family of calls.
IDLE: dict[str, dict[str, dict[str, Any]]] = {
    "chat": {
        "echo": {"echo": True},
        "include_reasoning": {"include_reasoning": False},
        "tool_choice": {"tool_choice": "auto"},
        "parallel_tool_calls": {"parallel_tool_calls": False, "tools": [TOOL], "tool_choice": "none"},
        "skip_special_tokens": {"skip_special_tokens": True, "tools": [TOOL]},
        "spaces_between_special_tokens": {"spaces_between_special_tokens": False},
        "return_tokens_as_token_ids": {"return_tokens_as_token_ids": True},
        "stream_interval": {"stream_interval": 4},
    },
    "completion": {
        "add_special_tokens": {"add_special_tokens": True, "prompt": [65, 66]},
        "spaces_between_special_tokens": {"spaces_between_special_tokens": False, "skip_special_tokens": True},
        "return_tokens_as_token_ids": {"return_tokens_as_token_ids": True},
        "stream_interval": {"stream_interval": 4, "stream": False},
    },
}
# The fields that contradict another one, or need it: what to send, and the field that is at fault.
CONTRADICTED: dict[str, dict[str, tuple[dict[str, Any], str]]] = {
    "chat": {
        "stream_options": ({"stream_options": {"include_usage": True}}, "stream_options"),
        "max_completion_tokens": ({"max_completion_tokens": 3, "max_tokens": 4}, "max_tokens"),
        "max_tokens": ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
        "min_tokens": ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        "top_logprobs": ({"top_logprobs": 2}, "top_logprobs"),
        "logprob_token_ids": ({"logprob_token_ids": [3], "logprobs": True, "top_logprobs": 2}, "top_logprobs"),
        "prompt_logprobs": ({"prompt_logprobs": 2, "stream": True}, "prompt_logprobs"),
        "truncation_side": ({"truncation_side": "left"}, "truncation_side"),
        "tool_choice": ({"tool_choice": "required"}, "tool_choice"),
        "tools": ({"tools": [TOOL, TOOL]}, "tools[1].function.name"),
        "continue_final_message": (
            {"continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message",
        ),
        "reasoning_effort": (
            {"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "high"}},
            "chat_template_kwargs.reasoning_effort",
        ),
        "structured_outputs": (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
            "structured_outputs",
        ),
        "constraints": ({"constraints": ONCE, "tools": [TOOL], "tool_choice": "required"}, "constraints"),
    },
    "completion": {
        "stream_options": ({"stream_options": {"include_usage": True}}, "stream_options"),
        "max_tokens": ({"max_tokens": 0}, "max_tokens"),
        "min_tokens": ({"min_tokens": 1, "max_tokens": 0, "echo": True}, "min_tokens"),
        "logprob_token_ids": ({"logprob_token_ids": [3]}, "logprob_token_ids"),
        "logprobs": ({"logprobs": 1, "logprob_token_ids": [3]}, "logprobs"),
        "prompt_logprobs": ({"prompt_logprobs": 1, "logprobs": 2, "echo": True}, "prompt_logprobs"),
        "echo": ({"echo": True, "truncate_prompt_tokens": 3}, "echo"),
        "truncation_side": ({"truncation_side": "left"}, "truncation_side"),
        "structured_outputs": (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
            "structured_outputs",
        ),
        "constraints": ({"constraints": ONCE, "vllm_xargs": {"constraints": 1}}, "vllm_xargs.constraints"),
    },
}
# Fields whose values are obeyed whatever stands beside them, if only since nothing is left for them to do: with
# temperature 0 the likeliest token is within every top_p.
OBEYED = {
    *("model", "messages", "prompt", "stream", "n", "seed", "stop", "temperature", "top_p", "top_k", "min_p"),
    *("frequency_penalty", "presence_penalty", "repetition_penalty", "logit_bias", "stop_token_ids", "ignore_eos"),
    *("include_stop_str_in_output", "bad_words", "allowed_token_ids", "vllm_xargs", "repetition_detection"),
    *("watermarking", "priority", "cache_salt", "session_id", "truncate_prompt_tokens", "request_id", "logprobs"),
    *("return_token_ids", "return_prompt_text", "add_generation_prompt", "chat_template_kwargs", "documents"),
    *("response_format", "guided_json", "guided_regex", "guided_choice", "guided_grammar"),
    # Of chat, to what the template wrote.
    "add_special_tokens",
    # Of completions.
    "skip_special_tokens",
    # Refused by an engine without a reasoning_config.
    "thinking_token_budget",
}


def test_of_every_field_it_is_known_where_it_has_no_effect() -> None:
    for kind, table in TABLES.items():
        taken = {field.name for field in table.values() if field.fate in (Fate.FORWARDED, Fate.DONE)}
        idle, contradicted = IDLE[kind].keys(), CONTRADICTED[kind].keys()
        assert taken <= idle | contradicted | OBEYED
        assert not (idle | contradicted) - taken
        assert {field.name for field in table.values() if field.idle} == idle


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, idle in IDLE.items() for name in idle])
def test_a_field_without_effect_is_named_in_a_warning(kind: str, name: str, client: httpx.Client) -> None:
    answer = send(client, kind, **IDLE[kind][name])
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-gateway-warning"] == f"{name} has no effect where {TABLES[kind][name].idle}"


CONTRADICTIONS = [(kind, *case) for kind, cases in CONTRADICTED.items() for case in cases.values()]


@pytest.mark.parametrize(("kind", "request_fields", "param"), CONTRADICTIONS)
def test_a_field_that_contradicts_another_one_is_refused(
    kind: str, request_fields: dict[str, Any], param: str, client: httpx.Client, engine: MockEngine
) -> None:
    answer = send(client, kind, **request_fields)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert error["code"]
    assert engine.requests() == []


CHOSEN = [f.name for f in COMPLETION.values() if f.key and f.name not in ("max_tokens", "logprobs", "prompt_logprobs")]
CONSTRAINTS: dict[str, Any] = {
    "response_format": {"type": "json_object"},
    "structured_outputs": {"regex": "[a-c]{3}"},
    "guided_json": SCHEMA,
    "guided_regex": "[a-c]{3}",
    "guided_choice": ["yes", "no"],
    "guided_grammar": 'root ::= "a" | "b"',
    "constraints": ONCE,
}


@pytest.mark.parametrize("name", [*CHOSEN, *CONSTRAINTS])
def test_where_nothing_is_generated_what_concerns_it_is_named(
    name: str, client: httpx.Client, engine: MockEngine
) -> None:
    value = 0 if name == "min_tokens" else (VALUES["completion"] | CONSTRAINTS)[name]
    fields = {**beside(name, is_chat=False), name: value}
    answer = send(client, "completion", echo=True, **fields, max_tokens=0)
    assert answer.status_code == 200, answer.text
    assert f"{name} has no effect where max_tokens is 0" in answer.headers["x-gateway-warning"]
    (request,) = engine.wait_for_requests(1)
    assert "structured_outputs" not in request["sampling_parameters"]


def test_a_call_that_cannot_be_kept_strict_is_named(client: httpx.Client) -> None:
    tool = {"type": "function", "function": {**TOOL["function"], "strict": True}}  # type: ignore[dict-item]
    free = send(client, "chat", tools=[tool])
    assert "strict of the function telling is not enforced" in free.headers["x-gateway-warning"]
    for choice in ("required", "none"):
        assert "x-gateway-warning" not in send(client, "chat", tools=[tool], tool_choice=choice).headers


Proof = tuple[dict[str, Any], Callable[[dict[str, Any], dict[str, Any]], bool]]
"""A request with a telling value, and what must hold of the engine's request and the client's answer."""


def _asked(**constraint: Any) -> Callable[[dict[str, Any], dict[str, Any]], bool]:
    return lambda engine, answer: engine["sampling_parameters"]["structured_outputs"] == constraint


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
    "constraints": (
        {"constraints": ONCE, "vllm_xargs": {"k": 1}},
        lambda engine, answer: engine["sampling_parameters"]["extra_args"] == {"k": 1, "constraints": ONCE},
    ),
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
