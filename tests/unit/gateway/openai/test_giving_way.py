"""Large bodies are validated as small ones are: the same values, the same first mistake."""

import json
import sys
from array import array
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from gateway.openai import giving_way, schema
from gateway.openai.errors import ApiError
from gateway.openai.schema import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
    parse_chat,
    parse_completion,
)

KINDS: list[type[BaseModel]] = [ChatRequest, CompletionRequest, TokenizeRequest, DetokenizeRequest]

odd: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, 1, -1, 2**31, 1.5, "", "x", [], {}, [1], ["x"], [[1]], {"a": 1}, [{}], [None]]
)
unknown = st.dictionaries(st.sampled_from([f"u{number}" for number in range(9)]), odd, max_size=9)


def members(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """An object with some of these, each of which may be something else, and with others."""
    known = st.fixed_dictionaries({}, optional={name: one | one | one | odd for name, one in fields.items()})
    return st.tuples(known, st.just({}) | unknown).map(lambda both: both[0] | both[1])


token_ids = st.lists(st.integers(-1, 2**31) | st.integers(0, 9) | st.integers(0, 9), max_size=12)
parts = st.lists(members(type=st.just("text"), text=st.text(max_size=3)), max_size=4)
function = members(name=st.just("f"), arguments=st.just("{}"))
messages = st.lists(
    members(
        role=st.sampled_from(["user", "assistant", "nobody"]),
        content=st.text(max_size=3) | parts,
        tool_calls=st.lists(members(id=st.just("a"), type=st.just("function"), function=function), max_size=3),
    ),
    max_size=5,
)
tool = members(type=st.just("function"), function=members(name=st.just("f"), parameters=unknown, strict=st.booleans()))
bodies = members(
    model=st.just("m"),
    messages=messages,
    prompt=token_ids | st.lists(token_ids, max_size=4) | st.lists(st.text(max_size=3), max_size=4),
    tokens=token_ids,
    tools=st.lists(tool, max_size=3),
    stop=st.lists(st.text(max_size=2), max_size=3),
    allowed_token_ids=token_ids,
    logit_bias=unknown,
    documents=st.lists(unknown, max_size=3),
    stream_options=members(include_usage=st.booleans()),
    repetition_detection=members(min_count=st.integers(0, 3)),
    temperature=st.just(1.0),
    chat_template_kwargs=unknown,
)


def plain(value: Any) -> Any:
    """With all that a model holds."""
    if isinstance(value, BaseModel):
        return type(value), plain(dict(value)), plain(value.model_extra), sorted(value.model_fields_set)
    if isinstance(value, array):
        return value.tolist()
    if isinstance(value, dict):
        return [(name, plain(one)) for name, one in value.items()]
    return [plain(one) for one in value] if isinstance(value, list) else value


def outcome(kind: type[BaseModel], body: Any, *, is_large: bool) -> Any:
    try:
        return plain(giving_way.validate(kind, body) if is_large else kind.model_validate(body))
    except ValidationError as error:
        refused = schema._as_api_error(error)
        return refused.message, refused.param, refused.code


@given(st.sampled_from(KINDS), bodies | odd)
@settings(max_examples=600)
@example(ChatRequest, {"model": "m", "messages": [{"role": "user", "content": [{"type": "text"}] * 5 + [{}]}]})
@example(CompletionRequest, {"model": "m", "prompt": [[1, 2], [3], [4, True]]})
@example(CompletionRequest, {"model": "m", "prompt": [1, 2, 3, 4, 5, 6, 7, 8, "9"]})
@example(DetokenizeRequest, {"model": "m", "tokens": []})
def test_the_same_values_and_the_same_mistakes(kind: type[BaseModel], body: Any) -> None:
    text = json.dumps(body)
    assert outcome(kind, json.loads(text), is_large=True) == outcome(kind, body, is_large=False)


@given(st.sampled_from(KINDS), bodies)
@settings(max_examples=300)
def test_the_same_however_little_is_looked_at_in_one_call(kind: type[BaseModel], body: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(giving_way, "AT_ONCE", 3)
        validator = giving_way._validator.__wrapped__
        patch.setattr(giving_way, "_validator", validator)
        found = outcome(kind, json.loads(json.dumps(body)), is_large=True)
    expected = outcome(kind, body, is_large=False)
    # Which of many unknown members were given is not kept.
    assert without_given(found) == without_given(expected)


def without_given(value: Any) -> Any:
    if isinstance(value, tuple) and len(value) == 4:
        return value[0], without_given(value[1]), without_given(value[2])
    if isinstance(value, tuple | list):
        return [without_given(one) for one in value]
    return value


def test_token_ids_become_an_array_and_others_stay_a_list() -> None:
    asked = {"model": "m", "prompt": list(range(10_000)), "allowed_token_ids": list(range(9000))}
    request = giving_way.validate(CompletionRequest, asked)
    assert request.prompt == array("i", range(10_000))
    assert request.allowed_token_ids == list(range(9000))


def test_functions_of_python_are_called_all_along() -> None:
    """In each of them the interpreter can change hands."""
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_globals.get("__name__") == giving_way.__name__

    message = {"role": "user", "content": [{"type": "text", "text": "x"}] * 3}
    chat = json.dumps({"model": "m", "messages": [message] * 20})
    completion = json.dumps({"model": "m", "prompt": [[1, 2]] * 30})
    for kind, body in ((ChatRequest, chat), (CompletionRequest, completion)):
        # The validators are made.
        giving_way.validate(kind, json.loads(body))
    sys.setprofile(count)
    try:
        giving_way.validate(ChatRequest, json.loads(chat))
        assert calls >= 20 * 4
        giving_way.validate(CompletionRequest, json.loads(completion))
        assert calls >= 20 * 4 + 30
    finally:
        sys.setprofile(None)


def test_what_nobody_needs_any_more_is_emptied() -> None:
    inner, kept = {"c": [1]}, "text"
    request = ChatRequest.model_validate({"model": "m", "messages": [{"role": "user", "content": kept}], "x": [inner]})
    numbers = list(range(3 * giving_way.AT_ONCE))
    giving_way.empty(request, [[numbers], {"a": inner}], None, kept)
    assert (vars(request), request.model_extra, inner, numbers, kept) == ({}, {}, {}, [], "text")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"model":"m","messages":[{"role":"user","content":"x"}],"x":[' + b"[]," * 90_000 + b"[]]}", "is too much"),
        (b'{"model":"m","messages":[' + b"{}," * 100_000 + b"{}]}", "messages[0].role is required."),
        (b'{"model":"m","messages":[{"role":"user","content":"x"}' + b"  " * 200_000 + b"}", "expected `,` or `]`"),
        (b'{"model":"m","messages":[]' + b"  " * 200_000 + b',"model":"n"}', 'the key "model" stands twice'),
        (b'{"' + b"x" * 400_000 + b'":1,"model":"m","messages":[{"role":"user","content":"x"}]}', "is too much"),
        (b'{"x":[' + b"[]," * 90_000 + b'[]],"model":"m","messages":[{"role":"user","content":"x"}]}', "is too much"),
        (b'{"model":"m","messages":[{"x":[' + b"[]," * 90_000 + b'[]],"role":"user","content":"x"}]}', "is too much"),
        (b'{"model":"m","messages":[{"content":"x"},{"' + b"x" * 400_000 + b'":1}]}', "messages[0].role is required."),
        (b'{"model":"m","messages":[{"role":"user","content":"' + "é".encode() * 200_000 + b'\xff"}]}',
         "it is not UTF-8 (byte 400051)."),
    ],
)
def test_what_is_wrong_with_a_large_body(body: bytes, words: str) -> None:
    assert len(body) > schema.LARGE_BODY
    with pytest.raises(ApiError) as caught:
        parse_chat(body)
    assert caught.value.status == 400
    assert words in caught.value.message, caught.value.message


def test_unknown_members_by_the_ten_thousand() -> None:
    many = {f"u{number}": 1 for number in range(70_000)}
    message = {"role": "user", "content": "x"}
    for body, words in (
        ({"model": "m", "messages": [message], **many}, "The body has 70000 fields that this API does not know"),
        ({"model": "m", "messages": [message | many]}, "messages hold 70000 members"),
        ({"model": "m", "messages": [message], "stream_options": many}, "Unknown field stream_options.u0; remove it."),
    ):
        with pytest.raises(ApiError) as caught:
            parse_chat(json.dumps(body).encode())
        assert words in caught.value.message


def test_spaces_do_not_change_what_a_body_says() -> None:
    """They make a large one of a small one."""
    body = json.dumps({"model": "m", "prompt": [[1, 2], [3]], "temperature": 1, "nobody_knows": {"a": [1]}}).encode()
    small, large = parse_completion(body), parse_completion(body + b" " * schema.LARGE_BODY)
    assert plain(small) == plain(large)
