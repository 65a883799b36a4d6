"""A parser says when a call was not written as its family writes them, for the operator's counter."""

import pytest

from gateway.output.events import MAX_HELD, Tools
from gateway.output.parsers import OutputFormat

TOOLS: Tools = {"f": {}}


def has_failed(family: str, text: str, reason: str = "stop") -> bool:
    parser = OutputFormat(family, None).parser("", TOOLS)
    assert parser is not None
    for character in text if len(text) < 1000 else [text]:
        parser.feed(character)
    parser.finish(reason)
    return parser.has_failed


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("hermes", "No call at all."),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call> and text'),
        ("llama3_json", '{"name": "f", "parameters": {}}'),
        ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"),
        ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {}}]'),
    ],
)
def test_what_is_written_well_is_no_failure(family: str, text: str) -> None:
    assert not has_failed(family, text)


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("hermes", "<tool_call>I would call f.</tool_call>"),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": ]}</tool_call>'),
        ("hermes", '<tool_call>{"name": "f", "arguments": <a>1</a>}</tool_call>'),
        ("hermes", '<tool_call>{"name": "' + "x" * MAX_HELD + '", "arguments": {}}</tool_call>'),
        ("mistral", "[TOOL_CALLS]nothing"),
    ],
)
def test_what_is_not_is_one(family: str, text: str) -> None:
    assert has_failed(family, text)


def test_a_call_that_the_limit_cut_off_is_none() -> None:
    assert not has_failed("hermes", '<tool_call>{"name": "f', "length")
