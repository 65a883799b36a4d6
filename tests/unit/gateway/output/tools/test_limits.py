"""Reading is linear in the text, and what is held back has a limit.

Linear: between two pieces no more than a marker's length of text waits to be read again, whatever came. Time is not
measured, for it says more about the machine.
"""

import pytest

from gateway.output import reader
from gateway.output.parsers import OutputFormat
from gateway.output.reader import TextReader
from gateway.output.tools import base
from tests.support.families import FAMILIES, Family, written
from tests.support.output import Message, cut, read

TOOLS = {"save": {"type": "object", "properties": {"text": {"type": "string"}, "count": {"type": "integer"}}}}
EVERY = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
LONGEST_MARK = 40

HARD = [
    "plain words ", "<", "<tool_call", "<|", "<｜tool▁call▁begin｜", "[TOOL_CALLS", "{", "[", "\n[", "\n{", '"', "\\",
    " ", "\n", "1", "a", "<tool_call>", "<|tool_call_begin|>", "<|start|>", "[TOOL_CALLS]", '\n{"name": ', "\n[save(",
    "<function=", "(", "<|im_end|> ", "<|channel|>", "</s>",
]  # fmt: skip


def make(family: Family) -> TextReader:
    parser = OutputFormat(family.parser, None).parser("", TOOLS)
    assert isinstance(parser, TextReader)
    return parser


@EVERY
def test_nothing_is_read_again_and_again(family: Family) -> None:
    call = written(family, "", [("save", {"text": 'x"\\<' * 1500})])
    for text in (*(hard * (3000 // len(hard)) for hard in HARD), call, call[:-200], call[:40] + "\\" * 3000):
        parser = make(family)
        for character in text:
            parser.feed(character)
            assert len(parser._text) - parser._at < LONGEST_MARK


@EVERY
def test_a_very_long_call_passes(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    """Strings of any length do not have to be held, but where Python's have to be rewritten."""
    monkeypatch.setattr(reader, "MAX_HELD", 1000)
    text = "line of text, and more\n" * 200 + "end"
    message = read(make(family), cut(written(family, "", [("save", {"text": text})]), range(0, 5000, 7)))
    if family.parser == "llama4_pythonic":
        assert [call.arguments for call in message.calls] == [""]
    else:
        assert [call.arguments for call in message.calls] == [f'{{"text": {_json(text)}}}']
        assert message.content == ""


# What has to be held back, and how it begins.
HELD = {
    "hermes": ('<tool_call>{"name": "', "a"),
    "qwen3_coder": ("<tool_call>\n<function=save>\n<parameter=count>\n", "1"),
    "llama3_json": ('{"parameters": {"a": "', "a"),
    "llama4_pythonic": ("[save(text='", "a"),
    "mistral_list": ('[TOOL_CALLS] [{"x": "', "🌍"),
    "mistral_named": ("[TOOL_CALLS]", "a"),
    "deepseek_v3": ("<｜tool▁call▁begin｜>", "a"),
    "deepseek_v31": ("<｜tool▁call▁begin｜>get_time<｜tool▁sep｜>\"", "\\n"),
    "glm45": ("<tool_call>save<arg_key>", "a"),
    "glm47": ("<tool_call>save<arg_key>count</arg_key><arg_value>", "1"),
    "kimi_k2": ("<|tool_call_begin|>", "a"),
    "gpt_oss": ("<|channel|>", "a"),
}


@pytest.mark.parametrize("name", HELD)
def test_past_the_limit_everything_is_content(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MAX_HELD", 1000)
    family = FAMILIES[name]
    head, filler = HELD[name]
    call = written(family, "", [("save", {"text": "x"})])
    text = head + filler * 1100 + call

    def added_up(pieces: list[str]) -> Message:
        parser = make(family)
        message = Message()
        for piece in pieces:
            message.add(parser.feed(piece))
            assert sum(map(len, parser._held)) <= 1000
        message.add(parser.finish("stop"))
        return message

    message = added_up([text])
    assert message.content.endswith(filler * 1100 + call)
    assert text.endswith(message.content)
    assert [call.arguments for call in message.calls] in ([], [""])
    assert added_up(list(text)).without_ids() == message.without_ids()
    assert added_up(cut(text, [900, 1010, 1020])).without_ids() == message.without_ids()


def test_up_to_the_limit_it_is_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MAX_HELD", 1000)
    raw = '<tool_call>{"name":"%s","arguments":{}}</tool_call>'
    longest = 1000 - raw.index("{}") + len("%s")
    for length, calls in ((longest, 1), (longest + 1, 0)):
        assert len(read(make(FAMILIES["hermes"]), [raw % ("a" * length)]).calls) == calls


@EVERY
def test_a_run_of_white_space_past_the_limit_is_content(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "MAX_HELD", 1000)
    for length, content in ((1000, ""), (1001, " " * 1001)):
        text = written(family, "", [("save", {"text": "x"})]) + " " * length
        message = read(make(family), [text])
        assert message.content == content
        assert len(message.calls) == 1
        assert read(make(family), text).without_ids() == message.without_ids()


def _json(text: str) -> str:
    return '"' + text.replace("\n", "\\n") + '"'
