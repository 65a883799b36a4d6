"""tool_choice: what may be called, and what binds the answer."""

import json
from typing import Any

import pytest

from gateway.openai.errors import ApiError
from gateway.openai.schema import Tool
from gateway.translate.schema_check import check, violation
from gateway.translate.tool_choice import ToolUse, calls_constraint, tool_use


def tool(name: str, **parameters: Any) -> Tool:
    function = {"name": name} | ({"parameters": parameters} if parameters else {})
    return Tool.model_validate({"type": "function", "function": function})


F, G = tool("f", type="object", properties={"a": {"type": "string"}}), tool("g")


def function(name: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def allowed(mode: Any, *names: str) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [function(name) for name in names]}}


@pytest.mark.parametrize(
    ("choice", "parallel", "expected"),
    [
        (None, None, ToolUse([F, G])),
        ("auto", True, ToolUse([F, G])),
        ("auto", False, ToolUse([F, G], single=True)),
        ("none", None, ToolUse()),
        ("required", None, ToolUse([F, G], required=True)),
        (function("g"), None, ToolUse([F, G], named="g", single=True)),
        (allowed("auto", "g"), None, ToolUse([G])),
        (allowed("required", "g", "f", "g"), False, ToolUse([G, F], required=True, single=True)),
    ],
)
def test_each_choice(choice: Any, parallel: bool | None, expected: ToolUse) -> None:
    assert tool_use([F, G], choice, parallel) == expected


@pytest.mark.parametrize("choice", [None, "none", "auto"])
def test_no_tools_are_no_tools(choice: Any) -> None:
    assert tool_use(None, choice, None) == tool_use([], choice, None) == ToolUse()


@pytest.mark.parametrize(
    ("tools", "choice", "param"),
    [
        ([], "required", "tool_choice"),
        ([], function("f"), "tool_choice"),
        ([F], "any", "tool_choice"),
        ([F], 5, "tool_choice"),
        ([F], {}, "tool_choice"),
        ([F], {"type": "custom"}, "tool_choice.type"),
        ([F], function("g"), "tool_choice.function.name"),
        ([F], function(None), "tool_choice.function.name"),
        ([F], {"type": "function"}, "tool_choice.function.name"),
        ([F], allowed("any", "f"), "tool_choice.allowed_tools.mode"),
        ([F], allowed("auto"), "tool_choice.allowed_tools.tools"),
        ([F], allowed("auto", "f", "g"), "tool_choice.allowed_tools.tools[1].function.name"),
        ([F], {"type": "allowed_tools"}, "tool_choice.allowed_tools.mode"),
        ([F, F], None, "tools[1].function.name"),
    ],
)
def test_mistakes_are_refused_by_place(tools: list[Tool], choice: Any, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        tool_use(tools, choice, None)
    assert (caught.value.status, caught.value.param) == (400, param)


def test_a_named_function_binds_the_answer_to_its_arguments() -> None:
    constraint = calls_constraint(ToolUse([F, G], named="f"), [F, G])
    assert constraint.engine_value() == {"json": {"type": "object", "properties": {"a": {"type": "string"}}}}


def test_required_binds_the_answer_to_one_call_or_more() -> None:
    schema = calls_constraint(ToolUse([F, G], required=True), [F, G]).value
    assert schema["minItems"] == 1
    assert "maxItems" not in schema
    assert [call["properties"]["name"] for call in schema["items"]["anyOf"]] == [{"const": "f"}, {"const": "g"}]
    assert calls_constraint(ToolUse([F], required=True, single=True), [F]).value["maxItems"] == 1
    assert schema["$defs"]["parameters_1"]["additionalProperties"] is False


def test_each_of_many_functions_is_named_by_its_own_place() -> None:
    tools = [tool(f"f{number}") for number in range(12)]
    constraint = calls_constraint(ToolUse(tools, required=True), tools)
    for number in range(12):
        assert constraint.clients(f"tools.$defs.parameters_{number}.a") == f"tools[{number}].function.parameters.a"


@pytest.mark.parametrize("backend", ["guidance", "xgrammar"])
def test_references_of_a_schema_still_point_into_it(backend: str) -> None:
    point = {
        "type": "object",
        "properties": {"x": {"type": "integer"}},
        "required": ["x"],
        "additionalProperties": False,
    }
    nested = tool(
        "f",
        type="object",
        properties={"p": {"$ref": "#/$defs/point"}, "v": {"const": {"$ref": "#/$defs/point"}}},
        required=["p", "v"],
        additionalProperties=False,
        **{"$defs": {"point": point}},
    )
    constraint = calls_constraint(ToolUse([G, nested], required=True), [G, nested])
    assert constraint.value["items"]["anyOf"][1]["properties"]["parameters"] == {"$ref": "#/$defs/parameters_1"}
    moved = constraint.value["$defs"]["parameters_1"]
    assert moved["properties"]["p"] == {"$ref": "#/$defs/parameters_1/$defs/point"}
    assert moved["properties"]["v"] == {"const": {"$ref": "#/$defs/point"}}
    checked = check(constraint, backend)
    good = [{"name": "f", "parameters": {"p": {"x": 1}, "v": {"$ref": "#/$defs/point"}}}]
    assert violation(checked, json.dumps(good)) is None
    good[0]["parameters"]["p"]["x"] = "1"  # type: ignore[index]
    assert violation(checked, json.dumps(good)) is not None
