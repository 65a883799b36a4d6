"""The cases of `tests/data/tool_calls.jsonl`: raw answers of real models' formats, and what a client must get."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gateway.output.parsers import OutputFormat
from tests.support.output import Call

_LINES = (Path(__file__).parents[1] / "data" / "tool_calls.jsonl").read_text(encoding="utf-8").splitlines()
CASES: list[dict[str, Any]] = [json.loads(line) for line in _LINES]

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


def check_case(case: dict[str, Any], content: str, reasoning: str, calls: Sequence[Call], finish_reason: str) -> None:
    """What a client got is what the case expects."""
    expected, how = case["expect"], case.get("compare", {})
    for got, key in ((content, "content"), (reasoning, "reasoning_content")):
        if key in expected:
            assert _comparable(got, how.get(key)) == _comparable(expected[key], how.get(key))
    if "tool_calls" in expected:
        _check_calls(calls, expected["tool_calls"])
    for call in calls:
        assert re.search(expected.get("id_pattern", "."), call.id)
    if "finish_reason" in expected:
        assert finish_reason == expected["finish_reason"]


def _comparable(text: str | None, how: str | None) -> str:
    if how == "exact":
        return text or ""
    text = (text or "").strip()
    return re.sub(r"\s+", " ", text) if how == "squeeze" else text


def _check_calls(calls: Sequence[Call], expected: list[dict[str, Any]]) -> None:
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
