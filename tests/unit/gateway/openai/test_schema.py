"""Bodies that are no requests: a 400 that names the place."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from gateway.openai.errors import ApiError
from gateway.openai.schema import ChatRequest, parse_chat


def request(**changes: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]} | changes).encode()


def refusal(body: bytes) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse_chat(body)
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"hello",
        b"\xff\xfe",
        b'{"model":"\xff"}',
        b'{"model":"m","messages":[{"role":"user","content":"\\ud800"}]}',
        request(guided_json="HERE").replace(b'"HERE"', b"[" * 10_000),
        request(guided_json="HERE").replace(b'"HERE"', b'{"a":' * 10_000 + b"1" + b"}" * 10_000),
        request(guided_json="HERE").replace(b'"HERE"', b"NaN"),
        request(guided_json="HERE").replace(b'"HERE"', b'{"a":-Infinity}'),
        request(temperature="HERE").replace(b'"HERE"', b"NaN"),
    ],
)
def test_what_is_not_json(body: bytes) -> None:
    assert "not valid JSON" in refusal(body).message


def test_nan_inside_a_string_is_text() -> None:
    assert parse_chat(request(messages=[{"role": "user", "content": "NaN Infinity"}])).messages[0].content


@pytest.mark.parametrize("body", [b"[]", b"null", b'"x"', b"1"])
def test_what_is_no_object(body: bytes) -> None:
    assert refusal(body).message == "The body must be an object."


@pytest.mark.parametrize(
    ("changes", "param", "message"),
    [
        ({"model": None}, "model", "model must be a string."),
        ({"model": ""}, "model", "model must not be empty."),
        ({"messages": []}, "messages", "messages must not be empty."),
        ({"messages": "hi"}, "messages", "messages must be a list."),
        ({"messages": ["hi"]}, "messages[0]", "messages[0] must be an object."),
        ({"messages": [{"content": "x"}]}, "messages[0].role", "messages[0].role is required."),
        ({"messages": [{"role": "bot", "content": "x"}]}, "messages[0].role", "must be 'system', 'developer', 'user'"),
        (
            {"messages": [{"role": "user", "content": 5}]},
            "messages[0].content",
            "messages[0].content must be a string or be a list.",
        ),
        (
            {"messages": [{"role": "user", "content": [{"text": "x"}]}]},
            "messages[0].content[0].type",
            "messages[0].content[0].type is required.",
        ),
        ({"temperature": -0.1}, "temperature", "greater than or equal to 0"),
        ({"temperature": 2.1}, "temperature", "less than or equal to 2"),
        ({"temperature": "0.5"}, "temperature", "temperature must be a number."),
        ({"top_p": 0}, "top_p", "greater than 0"),
        ({"top_p": 1.01}, "top_p", "less than or equal to 1"),
        ({"top_k": -2}, "top_k", "greater than or equal to -1"),
        ({"top_k": True}, "top_k", "top_k must be an integer."),
        ({"min_p": 1.5}, "min_p", "less than or equal to 1"),
        ({"frequency_penalty": -2.5}, "frequency_penalty", "greater than or equal to -2"),
        ({"presence_penalty": 2.5}, "presence_penalty", "less than or equal to 2"),
        ({"repetition_penalty": 0}, "repetition_penalty", "greater than 0"),
        ({"seed": 2**63}, "seed", "less than"),
        ({"seed": 1.5}, "seed", "seed must be an integer."),
        ({"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
        ({"max_completion_tokens": -1}, "max_completion_tokens", "greater than or equal to 1"),
        ({"min_tokens": -1}, "min_tokens", "greater than or equal to 0"),
        ({"stop": ""}, "stop", "must not be empty"),
        ({"stop": ["a", ""]}, "stop[1]", "stop[1] must not be empty."),
        ({"stop": [1]}, "stop[0]", "stop[0] must be a string."),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]", "greater than or equal to 0"),
        ({"allowed_token_ids": []}, "allowed_token_ids", "must not be empty"),
        ({"bad_words": [""]}, "bad_words[0]", "must not be empty"),
        ({"stream": "true"}, "stream", "stream must be true or false."),
        ({"stream_options": {"x": 1}}, "stream_options.x", "Unknown field"),
        ({"stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation", "must be False"),
        ({"skip_special_tokens": "false"}, "skip_special_tokens", "true or false"),
        ({"messages": [{"role": "user", "content": "x"}] * 10_001}, "messages", "at most 10000 elements"),
        ({"stop": ["x"] * 10_001}, "stop", "at most 10000 elements"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs", "must be an object"),
    ],
)
def test_wrong_values(changes: dict[str, Any], param: str, message: str) -> None:
    error = refusal(request(**changes))
    assert error.param == param
    assert message in error.message


def test_null_is_the_same_as_absent() -> None:
    nullable = set(parse_chat(request()).model_fields_set ^ type(parse_chat(request())).model_fields.keys())
    parsed = parse_chat(request(**dict.fromkeys(nullable)))
    assert all(getattr(parsed, name) is None for name in nullable)


def test_edges_of_the_bounds_are_accepted() -> None:
    parsed = parse_chat(
        request(
            temperature=2,
            top_p=1,
            top_k=-1,
            min_p=0,
            frequency_penalty=-2,
            presence_penalty=2,
            seed=-(2**63),
            max_tokens=1,
            stop=["a"] * 5,
            logit_bias={"5": -100},
        )
    )
    assert parsed.seed == -(2**63)
    assert parsed.temperature == 2.0


def test_a_schema_keeps_order_and_large_integers() -> None:
    parsed = parse_chat(request(guided_json={"z": 1, "a": 10**30}))
    assert list(parsed.guided_json.items()) == [("z", 1), ("a", 10**30)]


@pytest.mark.parametrize(
    "changes",
    [
        {"messages": [1] * 20_000},
        {"messages": [{}] * 20_000},
        {"messages": [{"role": "user", "content": [1] * 20_000}]},
        {"stop": [1] * 20_000},
        {"bad_words": [""] * 20_000},
        {"stop_token_ids": [-1] * 20_000},
        {"allowed_token_ids": ["x"] * 20_000},
        {"documents": [1] * 20_000},
        {"logit_bias": dict.fromkeys(map(str, range(20_000)))},
        {"vllm_xargs": {"a": [None] * 20_000}},
        {"unheard_of": [{}] * 20_000},
    ],
)
def test_a_mistake_made_a_thousand_times_is_reported_once(changes: dict[str, Any]) -> None:
    """A report on every wrong element would hold the event loop for seconds."""
    assert mistakes(request(**changes)) <= 3


def mistakes(body: bytes) -> int:
    try:
        ChatRequest.model_validate_json(body)
    except ValidationError as error:
        return error.error_count()
    return 0
