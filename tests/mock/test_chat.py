"""Chat completions: what arrives at the engine, and what comes back."""

import json
from typing import Any

import httpx
import openai
import pytest

from bench.mock_engine.running import MockEngine
from tests.support.chat import MODEL, SCHEMA, ask, chat, events, joined
from tests.support.gateway import Gateway


def test_a_whole_answer(client: httpx.Client) -> None:
    answer = ask(client, max_tokens=5)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert "x-gateway-warning" not in answer.headers
    body = answer.json()
    assert body["id"].startswith("chatcmpl-")
    assert (body["object"], body["model"]) == ("chat.completion", MODEL)
    (choice,) = body["choices"]
    assert choice["index"] == 0
    assert choice["finish_reason"] == "length"
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["content"]
    usage = body["usage"]
    assert usage["completion_tokens"] == 5
    assert usage["total_tokens"] == usage["prompt_tokens"] + 5


def test_a_stream_says_the_same_as_the_whole_answer(client: httpx.Client) -> None:
    whole = ask(client, seed=7).json()["choices"][0]
    answer = ask(client, seed=7, stream=True)
    assert answer.headers["content-type"].startswith("text/event-stream")
    chunks = events(answer)
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert joined(chunks) == whole["message"]["content"]
    assert [c["choices"][0]["finish_reason"] for c in chunks] == [None] * (len(chunks) - 1) + [whole["finish_reason"]]
    assert len({c["id"] for c in chunks}) == 1
    assert {c["object"] for c in chunks} == {"chat.completion.chunk"}
    assert all("usage" not in c for c in chunks)


def test_usage_in_a_stream_on_request(client: httpx.Client) -> None:
    chunks = events(ask(client, max_tokens=4, stream=True, stream_options={"include_usage": True}))
    assert [c["usage"] for c in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 4


def test_continuous_usage(client: httpx.Client) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = events(ask(client, max_tokens=4, stream=True, stream_options=options))
    counts = [c["usage"]["completion_tokens"] for c in chunks]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (0, 4)


def test_continuous_usage_needs_the_usage(client: httpx.Client) -> None:
    answer = ask(client, stream=True, stream_options={"continuous_usage_stats": True})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "stream_options.continuous_usage_stats")


def test_stream_options_without_a_stream(client: httpx.Client) -> None:
    answer = ask(client, stream_options={"include_usage": True})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "stream_options")


def test_merged_tokens_are_counted_and_not_lost(client: httpx.Client, engine: MockEngine) -> None:
    whole = ask(client, seed=3).json()
    engine.add_fault(merge=7)
    chunks = events(ask(client, seed=3, stream=True, stream_options={"include_usage": True}))
    assert joined(chunks) == whole["choices"][0]["message"]["content"]
    assert chunks[-1]["usage"] == whole["usage"]


@pytest.mark.parametrize("seed", range(5))
def test_any_cut_of_the_upstreams_bytes_is_the_same_answer(seed: int, client: httpx.Client, engine: MockEngine) -> None:
    def without_identity(answer: httpx.Response) -> list[dict[str, Any]]:
        return [{k: v for k, v in chunk.items() if k not in ("id", "created")} for chunk in events(answer)]

    expected = without_identity(ask(client, seed=seed, stream=True))
    engine.add_fault(split_writes=seed)
    assert without_identity(ask(client, seed=seed, stream=True)) == expected


def test_stop_strings_end_the_answer_with_stop(client: httpx.Client) -> None:
    text = ask(client, seed=1, max_tokens=40).json()["choices"][0]["message"]["content"]
    word = text.split()[2]
    choice = ask(client, seed=1, max_tokens=40, stop=[word]).json()["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["content"] == text[: text.index(word)]


def test_the_prompt_has_exactly_one_bos(client: httpx.Client, engine: MockEngine) -> None:
    ask(client, "hi")
    (request,) = engine.wait_for_requests(1)
    assert request["inputs"]["text_input"] == "<s><|user|>hi<|assistant|>"
    assert request["inputs"]["add_special_tokens"] is False
    assert request["first_prompt_token_ids"].count(0) == 1


def test_the_models_defaults_and_the_rest_of_the_context(client: httpx.Client, engine: MockEngine) -> None:
    engine.add_fault(text="short")
    ask(client, max_tokens=None)
    (request,) = engine.wait_for_requests(1)
    assert request["sampling_parameters"] == {"top_p": 0.9, "max_tokens": None}


def test_an_absent_limit_is_not_sixteen(client: httpx.Client) -> None:
    body = ask(client, max_tokens=None, seed=5, ignore_eos=True).json()
    usage = body["usage"]
    assert body["choices"][0]["finish_reason"] == "length"
    assert usage["total_tokens"] == 512


def test_warnings_name_what_was_ignored(client: httpx.Client) -> None:
    answer = ask(client, user="u", metadata={"a": "b"}, colour="red", stream=True)
    assert answer.status_code == 200
    warning = answer.headers["x-gateway-warning"]
    assert all(name in warning for name in ("user", "metadata", "colour"))


def test_a_warning_header_is_safe_whatever_the_name(client: httpx.Client) -> None:
    answer = ask(client, "hi", **{"x\r\nset-cookie: a=b": 1, "日本": 2, "y" * 10_000: 3})
    assert answer.status_code == 200
    assert "set-cookie" not in answer.headers
    assert len(answer.headers["x-gateway-warning"]) <= 2048


@pytest.mark.parametrize(
    ("constraint", "sent"),
    [
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
            {"json": SCHEMA},
        ),
        ({"response_format": {"type": "json_object"}}, {"json_object": True}),
        ({"structured_outputs": {"regex": "[a-c]{3}"}}, {"regex": "[a-c]{3}"}),
        ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, {"json": SCHEMA}),
        ({"guided_json": SCHEMA}, {"json": SCHEMA}),
        ({"guided_choice": ["yes", "no"]}, {"choice": ["yes", "no"]}),
        ({"guided_regex": "[a-c]{3}"}, {"regex": "[a-c]{3}"}),
        ({"guided_grammar": 'root ::= "a" | "b"'}, {"grammar": 'root ::= "a" | "b"'}),
    ],
)
def test_each_constraint_arrives_as_exactly_one(
    constraint: dict[str, Any], sent: dict[str, Any], client: httpx.Client, engine: MockEngine
) -> None:
    answer = ask(client, max_tokens=100, **constraint)
    assert answer.status_code == 200, answer.text
    (request,) = engine.wait_for_requests(1)
    assert request["sampling_parameters"]["structured_outputs"] == sent


def test_an_unconstrained_request_carries_no_constraint(client: httpx.Client, engine: MockEngine) -> None:
    for nothing in (None, {"type": "text"}):
        assert ask(client, response_format=nothing, structured_outputs=None, guided_json=None).status_code == 200
    assert all("structured_outputs" not in r["sampling_parameters"] for r in engine.wait_for_requests(2))


def test_a_schema_that_would_not_be_enforced_is_refused_by_place(client: httpx.Client, engine: MockEngine) -> None:
    schema = {"type": "object", "properties": {"a": {"not": {"type": "string"}}}}
    answer = ask(client, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "response_format.json_schema.schema.properties.a.not"
    assert engine.requests() == []


def test_a_violation_is_marked_counted_and_logged(client: httpx.Client, engine: MockEngine, gateway: Gateway) -> None:
    before = gateway.metric("gateway_structured_output_violations_total")
    obeyed = ask(client, guided_json=SCHEMA, max_tokens=100)
    assert "x-gateway-structured-output" not in obeyed.headers
    engine.add_fault(text='{"name": 5}')
    answer = ask(client, guided_json=SCHEMA, max_tokens=100)
    assert answer.status_code == 200
    assert answer.headers["x-gateway-structured-output"] == "violation"
    assert gateway.metric("gateway_structured_output_violations_total") == before + 1
    assert any("violates" in line["message"] for line in gateway.logs)


def test_the_official_client(gateway: Gateway, engine: MockEngine) -> None:
    client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0)
    assert [m.id for m in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL
    whole = client.chat.completions.create(**chat("hi", seed=2))
    parts = client.chat.completions.create(**chat("hi", seed=2, stream=True))
    assert "".join(p.choices[0].delta.content or "" for p in parts) == whole.choices[0].message.content
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(**chat(model="nope"))
    assert (missing.value.param, missing.value.code) == ("model", "model_not_found")
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(**chat(temperature=3))
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nope")
