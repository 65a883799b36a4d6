"""The structural tag that keeps calls valid in an answer that may also be text."""

import json
from typing import Any

import pytest

from gateway.openai.errors import ApiError
from gateway.openai.schema import Tool
from gateway.output.tools import FAMILIES
from gateway.translate.call_tag import call_tag
from gateway.translate.schema_check import check, violation
from gateway.translate.tool_choice import ToolUse, calls_constraint
from tests.data.tools import FUNCTIONS
from tests.support import families as written

TOOLS = [Tool.model_validate(function.tool(name)) for name, function in FUNCTIONS.items()]
FRAMED = {name: family for name, family in FAMILIES.items() if family.frame}


def tag(use: ToolUse, family: str) -> dict[str, Any]:
    frame = FAMILIES[family].frame
    assert frame is not None
    found: dict[str, Any] = json.loads(call_tag(use, frame).value)["format"]
    return found


def calls_of(found: dict[str, Any]) -> list[dict[str, Any]]:
    tags: list[dict[str, Any]] = found["tags"]
    return tags[0]["content"]["tags"] if tags[0]["content"]["type"] == "tags_with_separator" else tags


@pytest.mark.parametrize("family", FRAMED)
def test_a_call_by_the_tag_is_a_call_as_the_family_writes_it(family: str) -> None:
    """Begin, arguments and end of each function's tag, put together, are what the family writes."""
    found = tag(ToolUse(TOOLS), family)
    separator = found["tags"][0]["content"].get("separator", "\n")
    calls = list(FUNCTIONS.items())[:3]
    texts = [
        part["begin"] + json.dumps(function.arguments, ensure_ascii=False) + part["end"]
        for part, (_, function) in zip(calls_of(found), calls, strict=False)
    ]
    text = separator.join(texts)
    if calls_of(found) is not found["tags"]:
        text = found["tags"][0]["begin"] + text + found["tags"][0]["end"]
    expected = written.FAMILIES[family].write([(name, function.arguments) for name, function in calls])
    assert text.replace("\n", "") == expected.replace("\n", "").replace("<|start|>assistant", "")
    assert all(part["begin"].startswith(tuple(found["triggers"])) for part in found["tags"])


@pytest.mark.parametrize("family", FRAMED)
def test_who_may_be_called_and_how_often(family: str) -> None:
    free = tag(ToolUse(TOOLS[:2]), family)
    assert (free["at_least_one"], free["stop_after_first"], len(calls_of(free))) == (False, False, 2)
    single = tag(ToolUse(TOOLS[:2], single=True), family)
    assert single["stop_after_first"]
    required = tag(ToolUse(TOOLS[:2], required=True), family)
    assert required["at_least_one"]
    named = tag(ToolUse(TOOLS[:2], named="get_time", single=True), family)
    assert [part["content"]["json_schema"] for part in calls_of(named)] == [
        {"type": "object", "properties": {}, "additionalProperties": False}
    ]


@pytest.mark.parametrize("family", FRAMED)
def test_the_engine_is_sure_to_hold_it(family: str) -> None:
    frame = FRAMED[family].frame
    assert frame is not None
    checked = check(call_tag(ToolUse(TOOLS), frame), "xgrammar")
    assert len(calls_of(json.loads(checked.engine_value()["structural_tag"])["format"])) == len(TOOLS)
    with pytest.raises(ApiError):
        check(call_tag(ToolUse(TOOLS), frame), "guidance")


def test_a_schema_that_cannot_be_held_is_refused() -> None:
    function = {"name": "f", "parameters": {"type": "object", "not": {}}}
    wrong = Tool.model_validate({"type": "function", "function": function})
    frame = FAMILIES["hermes"].frame
    assert frame is not None
    with pytest.raises(ApiError) as caught:
        check(call_tag(ToolUse([wrong]), frame), "xgrammar")
    assert caught.value.param is not None
    assert caught.value.param.startswith("tools.format.tags[0].content.json_schema")


def test_functions_of_real_apis_bind_an_answer() -> None:
    checked = check(calls_constraint(ToolUse(TOOLS, required=True), TOOLS), "guidance")
    calls = [{"name": name, "parameters": function.arguments} for name, function in FUNCTIONS.items()]
    assert violation(checked, json.dumps(calls)) is None
    for name, function in FUNCTIONS.items():
        for backend in ("guidance", "xgrammar"):
            named = check(calls_constraint(ToolUse(TOOLS, named=name), TOOLS), backend)
            assert violation(named, json.dumps(function.arguments)) is None
