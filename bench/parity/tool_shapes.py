"""The requests with tools: calls that are bound, free or none, in the history, and what has to be refused. Pure."""

from typing import Any

from bench.parity.shape import ABSENT_FIELD, CHAT, COUNTED, ENOUGH, Body, Group, Shape, shapes_of, user

_PARIS = "How warm is it in Paris, in celsius?"


def _function(name: str, **properties: Any) -> Body:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "description": "A tool.", "parameters": parameters}}


_WEATHER = _function(
    "get_weather",
    city={"type": "string", "enum": ["Paris", "Rome"]},
    unit={"type": "string", "enum": ["celsius", "fahrenheit"]},
)
_ADD = _function("add", a={"type": "integer", "minimum": 0, "maximum": 9}, b={"type": "boolean"})
_NAMED: Body = {"tool_choice": {"type": "function", "function": {"name": "get_weather"}}}
_ONE: Body = {"tools": [_WEATHER], "tool_choice": "required", "parallel_tool_calls": False}
_CALL: Body = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "get_weather", "arguments": '{"city": "Paris", "unit": "celsius"}'},
}
_AFTER_A_CALL: list[Body] = [
    *user(_PARIS),
    {"role": "assistant", "content": None, "tool_calls": [_CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": '{"celsius": 21}'},
]


def tool_shapes() -> list[Shape]:
    base: Body = {"messages": user(_PARIS), "tools": [_WEATHER, _ADD]}
    bound: dict[str, Body] = {
        "tool_choice none": {"tool_choice": "none"},
        "a named function": {**_NAMED, "max_tokens": ENOUGH},
        "a named function, streamed": {**_NAMED, **COUNTED, "max_tokens": ENOUGH},
        "tool_choice required": {**_ONE, "max_tokens": ENOUGH},
        "tool_choice required, streamed": {**_ONE, **COUNTED, "max_tokens": ENOUGH},
        "a call that is cut off": {**_NAMED, "max_tokens": 4},
        "a call and its result": {"messages": _AFTER_A_CALL, "tool_choice": "none"},
        "a call and its result, without tools": {"messages": _AFTER_A_CALL, "tools": ABSENT_FIELD},
    }
    # Servers take free calls only where they are told how the model writes them.
    free: dict[str, Body] = {"tool_choice auto": {}, "tool_choice auto, streamed": COUNTED}
    refused: dict[str, Body] = {
        "tool_choice without tools": {"tools": ABSENT_FIELD, "tool_choice": "required"},
        "a function that is not offered": {"tool_choice": {"type": "function", "function": {"name": "nothing"}}},
        "an unknown tool_choice": {"tool_choice": "perhaps"},
        "a tool without a name": {"tools": [{"type": "function", "function": {}}]},
    }
    return [
        *shapes_of(Group.TOOLS, CHAT, base, bound),
        *shapes_of(Group.TOOLS, CHAT, base, free, refused=None),
        *shapes_of(Group.TOOLS, CHAT, base, refused, refused=True),
    ]
