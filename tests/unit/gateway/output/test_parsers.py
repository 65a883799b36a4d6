"""Which parser reads what: by setting, or by the chat template; and answers that a constraint binds."""

import json
import re
from pathlib import Path

import pytest

from gateway.output.events import OutputParser
from gateway.output.parsers import REASONING_PARSERS, TOOL_PARSERS, OutputFormat, finish_reason, recognise
from gateway.output.tools import FAMILIES
from tests.support.output import assert_same_for_all_cuts

TOOLS = {"get_time": {}, "get_weather": {"type": "object", "properties": {"city": {"type": "string"}}}}

# What tells in the chat template of each kind of model, in words of our own.
TEMPLATES = {
    '<tool_call>\n{"name": "{{ c.name }}", "arguments": {{ c.arguments }}}\n</tool_call>': ("hermes", None),
    "{{- '<tool_call>\\n{\\\"name\\\": \\\"' + c.name }}{{ message.split('</think>')[-1] }}": ("hermes", "think"),
    "<tool_call>\n<function={{ c.name }}>\n<parameter={{ key }}>\n": ("qwen3_coder", None),
    "<|python_tag|>{{ c }} <|eot_id|>": ("llama3_json", None),
    'Respond in the format {"name": function name, "parameters": dictionary}. <|python_start|>': ("llama3_json", None),
    "Use the format [func_name1(param1=value1), func_name2()] <|python_tag|>": ("llama4_pythonic", None),
    "[TOOL_CALLS] [{{ calls }}]": ("mistral", None),
    "[THINK]{{ r }}[/THINK] [TOOL_CALLS]{{ name }}[ARGS]": ("mistral", "mistral"),
    "<｜tool▁calls▁begin｜>function<｜tool▁sep｜>{{ name }}\n```json\n{{ a }}": ("deepseek_v3", None),
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{{ name }}<｜tool▁sep｜> </think>": ("deepseek_v31", "think"),
    "<tool_call>{{ name }}<arg_key>{{ k }}</arg_key> <think></think>": ("glm45", "think"),
    "<|tool_calls_section_begin|><|tool_call_begin|>": ("kimi_k2", None),
    "<|start|>assistant<|channel|>analysis<|message|>": ("gpt_oss", "gpt_oss"),
    "{{ messages[0].content }}": (None, None),
    "<tool_call>{{ name }}<tool_sep>": (None, None),
}  # fmt: skip


@pytest.mark.parametrize(("template", "expected"), TEMPLATES.items())
def test_a_chat_template_shows_the_format(template: str, expected: tuple[str | None, str | None]) -> None:
    found = recognise(template)
    assert (found.tool_parser, found.reasoning_parser) == expected
    for name in expected:
        assert name is None or f"parser {name}" in found.why
    assert found.why


def test_every_parser_can_be_recognised() -> None:
    assert {tool for tool, _ in TEMPLATES.values()} - {None} == set(TOOL_PARSERS)
    assert {reasoning for _, reasoning in TEMPLATES.values()} - {None} == set(REASONING_PARSERS)


@pytest.mark.parametrize(
    ("kind", "has_tools", "needs"),
    [
        (OutputFormat("hermes", "think"), True, True),
        (OutputFormat("hermes", "think"), False, False),
        (OutputFormat("mistral", "mistral"), False, True),
        (OutputFormat("gpt_oss", None), False, True),
        (OutputFormat(None, "gpt_oss"), False, True),
        (OutputFormat(None, None), True, False),
    ],
)
def test_which_formats_need_special_tokens(kind: OutputFormat, has_tools: bool, needs: bool) -> None:
    assert kind.needs_special_tokens(has_tools) == needs


def test_a_request_that_needs_no_parser_has_none() -> None:
    assert OutputFormat("hermes", None).parser("", {}) is None
    assert OutputFormat(None, None).parser("", TOOLS) is None


def test_whether_the_prompt_opens_the_reasoning() -> None:
    kind = OutputFormat(None, "think")
    assert kind.begins_in_reasoning("x <think>\n")
    assert not kind.begins_in_reasoning("x <think>\n\n</think>\n\n")
    assert not OutputFormat("hermes", None).begins_in_reasoning("<think>")


def test_finish_reasons() -> None:
    assert finish_reason("stop", 1, named=False) == "tool_calls"
    assert finish_reason("stop", 1, named=True) == "stop"
    assert finish_reason("stop", 0, named=False) == "stop"
    assert finish_reason("length", 1, named=False) == "length"
    assert finish_reason("repetition", 1, named=False) == "repetition"


BOUND = '[{"name": "get_weather", "parameters": {"city": "Zürich }]"}}, {"name": "get_time", "parameters": {}}]'
ANALYSIS, FINAL = "<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"
FORMATS = [
    ("hermes", None, "", "", r"call_\w{24}"),
    (None, None, "", "", r"call_\w{24}"),
    ("hermes", "think", "<think>\n", "Hm.\n</think>\n\n", r"call_\w{24}"),
    ("mistral", "mistral", "", "[THINK]Hm.[/THINK]", r"\w{9}"),
    ("kimi_k2", "think", "", "<think>Hm.</think>", r"functions\.\w+:\d"),
    ("gpt_oss", "gpt_oss", "", f"{ANALYSIS}Hm.{FINAL}", r"call_\w{24}"),
]
EVERY = pytest.mark.parametrize(("tool_parser", "reasoning_parser", "prompt", "thinking", "id_pattern"), FORMATS)


@EVERY
def test_an_answer_bound_to_calls(
    tool_parser: str | None, reasoning_parser: str | None, prompt: str, thinking: str, id_pattern: str
) -> None:
    def make() -> OutputParser:
        parser = OutputFormat(tool_parser, reasoning_parser).parser(prompt, TOOLS, required=True)
        assert parser is not None
        return parser

    message = assert_same_for_all_cuts(make, thinking + BOUND)
    assert [(call.name, call.arguments) for call in message.calls] == [
        ("get_weather", '{"city": "Zürich }]"}'),
        ("get_time", "{}"),
    ]
    assert (message.content, message.reasoning) == ("", "Hm." if thinking else "")
    assert all(re.fullmatch(id_pattern, call.id) for call in message.calls)
    for length in range(len(thinking), len(thinking + BOUND)):
        part = assert_same_for_all_cuts(make, (thinking + BOUND)[:length], "length") if length % 10 == 0 else None
        assert part is None or part.content == ""


@EVERY
def test_an_answer_bound_to_one_function(
    tool_parser: str | None, reasoning_parser: str | None, prompt: str, thinking: str, id_pattern: str
) -> None:
    def make() -> OutputParser:
        parser = OutputFormat(tool_parser, reasoning_parser).parser(prompt, TOOLS, named="get_weather")
        assert parser is not None
        return parser

    arguments = '{\n  "city": "Zürich \\"}"\n}'
    message = assert_same_for_all_cuts(make, f"{thinking} {arguments}\n")
    assert [(call.name, call.arguments) for call in message.calls] == [("get_weather", arguments)]
    assert (message.content, message.reasoning) == ("", "Hm." if thinking else "")
    cut_off = assert_same_for_all_cuts(make, thinking + arguments[:12], "length")
    assert [call.arguments for call in cut_off.calls] == [arguments[:12]]
    assert assert_same_for_all_cuts(make, thinking, "length").calls == []
    with pytest.raises(ValueError, match="char 12"):
        json.loads(cut_off.calls[0].arguments)


def test_the_page_on_tools_has_every_parser_and_what_it_is_recognised_by() -> None:
    page = (Path(__file__).parents[4] / "docs" / "tools.md").read_text(encoding="utf-8")
    lines = [line.replace("\\|", "¦") for line in page.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.split("|")] for line in lines]
    for name, family in FAMILIES.items():
        of_family = [row[4].replace("¦", "|") for row in rows if len(row) > 4 and row[2] == f"`{name}`"]
        for text in (text for group in family.recognised_by for text in group):
            assert any(text in cell for cell in of_family), (name, text)
    for name in REASONING_PARSERS:
        assert any(f"`{name}`" in row[3] for row in rows if len(row) > 4)
    framed = {f"`{name}`" for name, family in FAMILIES.items() if family.frame}
    assert set(re.findall("`[a-z0-9_]+`", page.partition("begin with marks")[2])) == framed
