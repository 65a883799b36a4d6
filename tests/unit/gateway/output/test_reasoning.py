"""Reasoning is told from the answer, whoever opened it, and so are the tokens that it cost."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.output import reader
from gateway.output.events import OutputParser, Tools
from gateway.output.parsers import OutputFormat
from gateway.output.reasoning import MARKS, ReasoningMarks, ReasoningSplitter
from tests.support.output import assert_same_for_all_cuts, cut, read

TOOLS: Tools = {"get_time": {}}
ANALYSIS, FINAL = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"
CALL = '<tool_call>{"name": "get_time", "arguments": {}}</tool_call>'


def make(prompt: str, name: str = "think", tools: Tools | None = None) -> OutputParser:
    parser = OutputFormat("hermes", name).parser(prompt, tools or {})
    assert parser is not None
    return parser


@pytest.mark.parametrize(
    ("prompt", "raw", "reasoning", "content"),
    [
        ("", "<think>a</think>b", "a", "b"),
        ("", "\n<think>\n\na b\n\n</think>\n\nc\n", "a b", "c\n"),
        ("x<think>\n", "a</think>b", "a", "b"),
        ("x<think>", "<think>a</think>b", "a", "b"),
        ("<think>\n\n</think>\n\n", " b", "", " b"),
        ("say <think> twice", "no </think> here", "", "no </think> here"),
        ("", "b, not <think>a</think>", "", "b, not <think>a</think>"),
        ("", " \n b", "", " \n b"),
        ("", "<think>a <think> b</think>c</think>", "a <think> b", "c</think>"),
        ("<think>", "", "", ""),
        ("<think>", "  \n", "", ""),
        ("<think>", "a\n<|im_end|>", "a", ""),
        ("<think>", "The token <|im_end|> ends.", "The token <|im_end|> ends.", ""),
        ("", "<think>", "", ""),
    ],
)
def test_reasoning_between_its_marks(prompt: str, raw: str, reasoning: str, content: str) -> None:
    for name, marks in MARKS.items():

        def written(text: str, marks: ReasoningMarks = marks) -> str:
            return text.replace("<think>", marks.opening).replace("</think>", marks.closing)

        def parser(name: str = name) -> OutputParser:
            return make(written(prompt), name)

        message = assert_same_for_all_cuts(parser, written(raw))
        assert (message.reasoning, message.content) == (written(reasoning), written(content))


def test_a_piece_of_a_mark_is_text() -> None:
    message = assert_same_for_all_cuts(lambda: make("<think>"), "a < b </thin </think>c </thin")
    assert (message.reasoning, message.content) == ("a < b </thin", "c </thin")
    assert assert_same_for_all_cuts(lambda: make(""), "<thin").content == "<thin"


def test_a_rehearsed_call_is_reasoning_and_the_call_behind_it_is_one() -> None:
    message = assert_same_for_all_cuts(
        lambda: make("<think>\n", tools=TOOLS), f"Say {CALL}?\n</think>\n\nOne moment.\n{CALL}"
    )
    assert message.reasoning == f"Say {CALL}?"
    assert message.content == "One moment."
    assert [call.name for call in message.calls] == ["get_time"]


def test_reasoning_that_never_ends_makes_no_call() -> None:
    message = assert_same_for_all_cuts(lambda: make("<think>\n", tools=TOOLS), f"Say {CALL}", "length")
    assert (message.reasoning, message.content, message.calls) == (f"Say {CALL}", "", [])


TEXTS = st.text(alphabet="ab <>/\n🌍{", max_size=30)


@settings(max_examples=60)
@given(TEXTS, TEXTS, st.booleans(), st.lists(st.integers(0, 100), max_size=5))
def test_any_reasoning_and_any_answer(reasoning: str, content: str, opened: bool, cuts: list[int]) -> None:
    raw = f"{'' if opened else '<think>'}{reasoning}</think>{content}"
    message = read(make("<think>" if opened else ""), cut(raw, cuts))
    assert (message.reasoning, message.content) == (reasoning.strip(), content.lstrip())


def test_what_is_inside_the_reasoning() -> None:
    """The tokens of reasoning are those that came while the parser was inside it, before or behind the piece."""
    for prompt, pieces, inside in (
        ("", ["<think>", "a", "</think>", "b"], [True, True, False, False]),
        ("<think>", ["a", " b", "</think>", "c"], [True, True, False, False]),
        ("", ["a", "b"], [False, False]),
    ):
        parser = make(prompt)
        assert parser.in_reasoning == (prompt != "")
        seen = []
        for piece in pieces:
            parser.feed(piece)
            seen.append(parser.in_reasoning)
        assert seen == inside


def test_what_is_inside_the_reasoning_of_harmony() -> None:
    parser = OutputFormat("gpt_oss", "gpt_oss").parser("<|start|>assistant", {})
    assert parser is not None
    seen = []
    pieces = "<|channel|> analysis <|message|> a <|end|> <|start|> assistant <|channel|> final <|message|> b <|return|>"
    for piece in pieces.split():
        parser.feed(piece)
        seen.append(parser.in_reasoning)
    assert seen == [False, False, True, True, *[False] * 8]


@pytest.mark.parametrize(
    ("prompt", "raw", "reasoning", "content"),
    [
        (f"<|start|>assistant{ANALYSIS}", f"a<|end|><|start|>assistant{FINAL}b", "a", "b"),
        (f"<|start|>assistant{FINAL}It is", " 4.<|return|>", "", " 4."),
        ("<|start|>assistant<|channel|>", "analysis<|message|>a<|end|>", "a", ""),
        ("<|start|>user<|message|>hi<|end|><|start|>assistant", "<|channel|>final<|message|>b", "", "b"),
        ("", f"{ANALYSIS}a<|end|><|start|>assistant{ANALYSIS}b<|end|>", "a\nb", ""),
        ("", f"<|channel|>commentary<|message|>a<|end|><|start|>assistant{FINAL}b", "", "a\nb"),
        ("", "<|channel|>analysis to=python code<|message|>1+1<|call|>", "1+1", ""),
        ("", "<|channel|>commentary to=browser.search<|message|>x<|call|>", "", "x"),
        ("", "<|channel|>commentary to=functions.get_time<|message|>{}<|call|>", "", "{}"),
        ("", "<|channel|>final<|message|>a < b and <|x|> too<|end|>", "", "a < b and <|x|> too"),
    ],
)
def test_harmony_without_tools(prompt: str, raw: str, reasoning: str, content: str) -> None:
    def parser() -> OutputParser:
        found = OutputFormat(None, "gpt_oss").parser(prompt, {})
        assert found is not None
        return found

    message = assert_same_for_all_cuts(parser, raw)
    assert (message.reasoning, message.content, message.calls) == (reasoning, content, [])


def test_white_space_past_the_limit_opens_no_reasoning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MAX_HELD", 100)
    text = " " * 101 + "<think>a</think>"
    for pieces in ([text], list(text)):
        message = read(ReasoningSplitter(MARKS["think"], ""), pieces)
        assert (message.reasoning, message.content) == ("", text)
