"""Raw answers of real models' formats and what a client must get for them, over every cut in two."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from gateway.output.events import Content, Event, OutputParser
from gateway.output.parsers import REASONING_PARSERS, TOOL_PARSERS, OutputFormat, finish_reason
from tests.support.output import Call, assert_same_for_all_cuts, read

LINES = (Path(__file__).parents[3] / "data" / "tool_calls.jsonl").read_text(encoding="utf-8").splitlines()
CASES = [json.loads(line) for line in LINES]

# The cases' family → tool parser, reasoning parser.
FORMATS = {
    "hermes": OutputFormat("hermes", None),
    "qwen3": OutputFormat("hermes", "think"),
    "qwen3_coder": OutputFormat("qwen3_coder", None),
    "llama3_json": OutputFormat("llama3_json", None),
    "llama4_pythonic": OutputFormat("llama4_pythonic", None),
    "mistral": OutputFormat("mistral", None),
    "magistral": OutputFormat("mistral", "mistral"),
    "deepseek_v3": OutputFormat("deepseek_v3", None),
    "deepseek_v31": OutputFormat("deepseek_v31", None),
    "deepseek_r1": OutputFormat("deepseek_v3", "think"),
    "glm45": OutputFormat("glm45", "think"),
    "kimi_k2": OutputFormat("kimi_k2", None),
    "kimi_k2_thinking": OutputFormat("kimi_k2", "think"),
    "gpt_oss": OutputFormat("gpt_oss", "gpt_oss"),
}


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_a_client_gets_what_the_model_said(case: dict[str, Any]) -> None:
    tools = {tool["function"]["name"]: tool["function"]["parameters"] for tool in case["tools"]}
    raw, engine_reason, expected = case["raw"], case["engine_finish_reason"], case["expect"]
    output_format = FORMATS[case["family"]]

    def make() -> OutputParser:
        return output_format.parser(case.get("prompt_ends_with", ""), tools) or _Unparsed()

    message = assert_same_for_all_cuts(make, raw, engine_reason)
    if "chunks" in case:
        assert "".join(case["chunks"]) == raw
        assert read(make(), case["chunks"], engine_reason).without_ids() == message.without_ids()

    how = case.get("compare", {})
    for got, key in ((message.content, "content"), (message.reasoning, "reasoning_content")):
        if key in expected:
            assert _comparable(got, how.get(key)) == _comparable(expected[key], how.get(key))
    if "tool_calls" in expected:
        _check_calls(message.calls, expected["tool_calls"])
    for call in message.calls:
        assert re.search(expected.get("id_pattern", "."), call.id)
    if "finish_reason" in expected:
        assert finish_reason(engine_reason, len(message.calls), named=False) == expected["finish_reason"]


class _Unparsed:
    """What the gateway does where a request needs no parser."""

    in_reasoning = False

    def feed(self, text: str) -> list[Event]:
        return [Content(text)] if text else []

    def finish(self, finish_reason: str) -> list[Event]:
        return []


def _comparable(text: str | None, how: str | None) -> str:
    if how == "exact":
        return text or ""
    text = (text or "").strip()
    return re.sub(r"\s+", " ", text) if how == "squeeze" else text


def _check_calls(calls: list[Call], expected: list[dict[str, Any]]) -> None:
    if len(calls) < len(expected):
        expected = [call for call in expected if not call.get("optional")]
    assert [call.name for call in calls] == [call["name"] for call in expected]
    for call, wanted in zip(calls, expected, strict=True):
        if isinstance(wanted["arguments"], str):
            assert _without_space(call.arguments) == _without_space(wanted["arguments"])
        else:
            # As text, since True is 1 and 1.0 is 1 in Python.
            assert json.dumps(json.loads(call.arguments)) == json.dumps(wanted["arguments"])


def _without_space(text: str) -> str:
    """Without the white space outside of strings."""
    return re.sub(r'("(?:[^"\\]|\\.)*"?)|\s+', r"\1", text)


def test_every_parser_has_a_case() -> None:
    assert {case["family"] for case in CASES} == set(FORMATS)
    assert {kind.tool_parser for kind in FORMATS.values()} == set(TOOL_PARSERS)
    assert {kind.reasoning_parser for kind in FORMATS.values()} - {None} == set(REASONING_PARSERS)
