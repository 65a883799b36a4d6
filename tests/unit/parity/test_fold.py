"""A stream as the answer that it tells, and what its format is called."""

import json
from typing import Any

import pytest

from bench.parity.fold import folded

Event = dict[str, Any]
USAGE = {"prompt_tokens": 1}


def event(*choices: Event, **members: Any) -> Event:
    return {
        "id": "x",
        "created": 1,
        "model": "m",
        "object": "chat.completion.chunk",
        "choices": list(choices),
    } | members


def part(index: int = 0, finish_reason: str | None = None, **delta: Any) -> Event:
    return {"index": index, "delta": delta, "finish_reason": finish_reason}


def stream(*events: Event, end: str = "data: [DONE]\n\n") -> str:
    return "".join(f"data: {json.dumps(one)}\n\n" for one in events) + end


TWO = (event(part(role="assistant", content="")), event(part(content="a")), event(part(content="b")))
LAST = event(part(finish_reason="stop"))
COUNT = event(usage=USAGE)


def test_texts_and_calls_grow_and_the_rest_is_said_once() -> None:
    calls = [
        [{"index": 0, "id": "1", "type": "function", "function": {"name": "f", "arguments": ""}}],
        [{"index": 0, "function": {"arguments": "{"}}, {"index": 1, "id": "2", "function": {"name": "g"}}],
        [{"index": 1, "function": {"arguments": "{}"}}, {"index": 0, "function": {"arguments": "}"}}],
    ]
    whole = folded(stream(*TWO, *(event(part(tool_calls=one)) for one in calls), LAST, COUNT))
    assert whole["object"] == "chat.completion"
    assert whole["usage"] == USAGE
    assert whole["done"] == 1
    (choice,) = whole["choices"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("stop", "ab")
    assert choice["message"]["tool_calls"] == [
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}},
        {"id": "2", "function": {"name": "g", "arguments": "{}"}},
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (stream(*TWO, LAST, COUNT), {"role": "first", "finish_reason": "last", "other": []}),
        (stream(*TWO, LAST, COUNT), {"usage": "in an event of its own, the last"}),
        (stream(*TWO, LAST), {"usage": "none", "constant": ["id", "created", "model"]}),
        (stream(*TWO, event(part(finish_reason="stop"), usage=USAGE)), {"usage": "in events with choices"}),
        (stream(*(one | {"usage": USAGE} for one in (*TWO, LAST, COUNT))), {"usage": "in all events"}),
        (stream(TWO[0], event(part(role="assistant", content="b")), LAST), {"role": [0, 1]}),
        (stream(*TWO[1:], LAST), {"role": "nowhere"}),
        (stream(*TWO[1:]), {"finish_reason": "nowhere"}),
        (stream(TWO[0], event(part(content="a", finish_reason="stop")), TWO[1]), {"finish_reason": [1]}),
        (stream(TWO[0], event(id="y")), {"constant": ["created", "model"]}),
        (": ping\n\nevent: x\n\n" + stream(*TWO), {"other": ["comment", "event"]}),
        (stream(TWO[0], LAST | {"object": "other"}), {"objects": ["chat.completion.chunk", "other"]}),
    ],
)
def test_the_format_of_a_stream(text: str, expected: Event) -> None:
    found = folded(text)["stream"]
    assert {name: found[name] for name in expected} == expected


def test_each_choice_is_looked_at() -> None:
    both = (event(part(0, role="assistant")), event(part(1, role="assistant")))
    ends = (event(part(1, "stop", content="b")), event(part(0, "length", content="a")))
    found = folded(stream(*both, *ends))
    assert (found["stream"]["role"], found["stream"]["finish_reason"]) == ("first", "last")
    assert [choice["finish_reason"] for choice in found["choices"]] == ["length", "stop"]
    late = event(part(0, content="late"))
    assert folded(stream(*both, *ends, late))["stream"]["finish_reason"] == [1]


@pytest.mark.parametrize("end", ["", "data: [DONE]\n\n" + stream(LAST, end="")])
def test_a_stream_that_does_not_end_with_its_last_word(end: str) -> None:
    assert folded(stream(*TWO, end=end))["done"] == 0
