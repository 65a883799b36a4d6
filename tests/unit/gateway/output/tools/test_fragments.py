"""Nonsense of every family: its marks and pieces of calls in any order. Whatever it is, no cut changes the result."""

import re
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.output.events import OutputParser
from gateway.output.parsers import OutputFormat
from gateway.output.tools.base import END_TOKENS
from tests.support.output import cut, read

TOOLS = {
    "f": {"type": "object", "properties": {"s": {"type": "string"}, "n": {"type": ["integer", "null"]}}},
    "get_time": {},
}
COMMON = [
    " ", "\n", "\n\n", "text", "<", "[", "{", "}", "]", "(", ")", ",", ":", "=", '"', "'", "\\", '\\"',
    "\\u00e9", "🌍", "\t", "1", "true", "f", "get_time", "g", '{"name": "f", "arguments": {"s": "x}"}}',
    '{"name": "f", "parameters": {"n": 1}}', '{"parameters": {}, "name": "f"}',
    '{"name": "g", "parameters": {}}', '"name"', '"arguments"', '{"a": [1, {"b": "]"}]}', "{}",
    '"{\\"s\\": 1}"', "<|im_end|>", "null",
]  # fmt: skip
FRAGMENTS = {
    "hermes": ["<tool_call>", "</tool_call>", "<tool_call>\n", "\n</tool_call>", "<tool_", "</tool"],
    "qwen3_coder": [
        "<tool_call>", "</tool_call>", "<tool_call>\n<function=f>\n", "<function=f>", "<function=", ">", "</function>",
        "<parameter=s>\n", "<parameter=n>\n", "<parameter=", "</parameter>", "\n</parameter>\n", "</para",
    ],
    "llama3_json": ["<|python_tag|>", "<|python_start|>", "<|python_end|>", "; ", "<|python", "<|eot_id|>"],
    "llama4_pythonic": [
        "<|python_start|>", "<|python_end|>", "[f(", "[g(", 's="a, b)"', "n=1", "n={'a': (1, None)}", ", ", ")]", "f(",
        "s=word", "<|eot|>",
    ],
    "mistral": [
        "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "abcdefghi", "</s>", "[TOOL_CALLS]f[ARGS]", "[TOOL", "[TOOL_CALLS] [",
    ],
    "deepseek_v3": [
        "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>",
        "<｜tool▁calls▁end｜>", "function", "f\n```json\n", "\n```", "`", "<｜tool", "<｜end▁of▁sentence｜>",
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n", "<｜tool▁call▁begin｜>f<｜tool▁sep｜>",
    ],
    "glm45": [
        "<tool_call>", "</tool_call>", "<tool_call>f", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
        "<arg_key>s</arg_key>\n<arg_value>", "<arg_key>n</arg_key><arg_value>2</arg_value>", "<arg_", "<|user|>",
    ],
    "kimi_k2": [
        "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_end|>",
        "<|tool_call_argument_begin|>", "functions.f:0", "functions.", "<|tool",
        "<|tool_call_begin|>functions.f:1<|tool_call_argument_begin|>",
    ],
    "gpt_oss": [
        "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>", "assistant",
        "analysis", "final", "commentary", " to=functions.f ", " to=python", "<|channel|>final<|message|>",
        "<|channel|>analysis<|message|>", "<|channel|>commentary to=functions.f <|constrain|>json<|message|>",
        "<|start|>assistant", "<|cha",
    ],
}  # fmt: skip
FRAGMENTS["deepseek_v31"] = FRAGMENTS["deepseek_v3"]
THINK = ["<think>", "</think>", "<think>\n", "\n</think>\n\n", "</thi"]
REASONS = st.sampled_from(["stop", "length"])


def texts(fragments: Iterable[str]) -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from([*COMMON, *fragments]), max_size=14).map("".join)


CUTS = st.lists(st.integers(0, 500), max_size=6)


DROPPED = re.compile("|".join(map(re.escape, [
    *END_TOKENS, "</s>", "<|python_end|>", "<｜tool▁calls▁begin｜>", "<|tool_calls_section_begin|>",
])))  # fmt: skip


def check(make: OutputFormat, prompt: str, text: str, cuts: list[int], reason: str, **bound: object) -> None:
    def parser() -> OutputParser:
        found = make.parser(prompt, TOOLS, **bound)  # type: ignore[arg-type]
        assert found is not None
        return found

    whole = read(parser(), [text], reason)
    assert read(parser(), cut(text, cuts), reason).without_ids() == whole.without_ids()
    assert read(parser(), text, reason).without_ids() == whole.without_ids()


@pytest.mark.parametrize("examples", [60, pytest.param(2_000, marks=[pytest.mark.long, pytest.mark.timeout(600)])])
@pytest.mark.parametrize("family", sorted(FRAGMENTS))
def test_no_cut_changes_what_a_family_reads(family: str, examples: int) -> None:
    kind = OutputFormat(family, None)

    @settings(max_examples=examples)
    @given(texts(FRAGMENTS[family]), CUTS, REASONS)
    def run(text: str, cuts: list[int], reason: str) -> None:
        check(kind, "", text, cuts, reason)

    run()


@pytest.mark.parametrize("family", sorted(FRAGMENTS.keys() - {"gpt_oss"}))
def test_text_that_is_no_call_is_kept(family: str) -> None:
    """All of it, but for the tokens that are none of the text's where it ends."""

    @settings(max_examples=60)
    @given(texts(FRAGMENTS[family]))
    def run(text: str) -> None:
        parser = OutputFormat(family, None).parser("", TOOLS)
        assert parser is not None
        message = read(parser, [text])
        if not message.calls:
            assert DROPPED.sub("", message.content) == DROPPED.sub("", text)

    run()


@pytest.mark.parametrize("prompt", ["", "<think>\n"])
def test_no_cut_changes_reasoning_with_tools_behind_it(prompt: str) -> None:
    kind = OutputFormat("hermes", "think")

    @given(texts([*THINK, *FRAGMENTS["hermes"]]), CUTS, REASONS)
    def run(text: str, cuts: list[int], reason: str) -> None:
        check(kind, prompt, text, cuts, reason)

    run()


@pytest.mark.parametrize("bound", [{"required": True}, {"named": "f"}], ids=["required", "named"])
@pytest.mark.parametrize("reasoning", [None, "gpt_oss"])
def test_no_cut_changes_a_bound_answer(bound: dict[str, object], reasoning: str | None) -> None:
    kind = OutputFormat(None, reasoning)

    @given(texts(FRAGMENTS["gpt_oss"] if reasoning else []), CUTS, REASONS)
    def run(text: str, cuts: list[int], reason: str) -> None:
        check(kind, "", text, cuts, reason, **bound)

    run()
