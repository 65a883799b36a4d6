"""Thinking first, then the answer that the constraint allows, in one grammar; asked of the grammar library itself.

`opened`: the prompt ends inside the thinking. `as_tokens`: the marks are tokens of their own, no text to the library.
"""

import json
import random
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gateway.output.events import Content, Reasoning
from gateway.output.parsers import OutputFormat
from gateway.output.reasoning import MARKS, ReasoningSplitter
from gateway.output.tools.base import END_TOKENS
from gateway.translate.after_reasoning import after_analysis, after_reasoning
from gateway.translate.schema_check import check, violation
from gateway.translate.structured import Constraint
from tests.data.schemas import PLACE, load_schemas
from tests.support.walk import HARMONY, allows, tokens, walk
from tests.support.walk import MARKS as MARK_TOKENS

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
JSON = Constraint("json", SCHEMA, PLACE)
THINK = MARKS["think"]

both_kinds_of_marks = pytest.mark.parametrize("as_tokens", [False, True])


def grammar(constraint: Constraint, opened: bool, as_tokens: bool) -> str:
    added_tokens = MARK_TOKENS if as_tokens else {"<tool_call>": 5}
    found = after_reasoning(check(constraint, "guidance"), THINK, opened, "guidance", added_tokens)
    assert found is not None
    assert (found.kind, found.place) == ("grammar", constraint.place)
    return str(found.value)


@both_kinds_of_marks
@pytest.mark.parametrize(
    ("text", "opened", "closed"),
    [
        ('So {"a": "x"}, or?</think>\n\n{"a": 1}', True, False),
        ('</think>{"a": 1}', True, False),
        ('<think>\nSo.\n</think>\n\n{"a": 1}', None, True),
        ('\n<think></think>{"a": 1}', None, True),
        ('{"a": 1}', False, True),
        ('So.</think>{"a": "x"}', False, False),
        ('<think>So.</think>{"a": "x"}', False, False),
        ('So.</think>again</think>{"a": 1}', False, False),
        ('<think>So.</think>again</think>{"a": 1}', False, False),
        ("So.</think>", False, False),
    ],
)
def test_an_answer_may_be_thought_about(text: str, opened: bool | None, closed: bool, as_tokens: bool) -> None:
    """Whether it is allowed where the prompt has opened the thinking, and where it has not. None: a second opening mark
    is text, and no token."""
    answer = tokens(text, as_tokens)
    assert allows(grammar(JSON, True, as_tokens), answer) == (not as_tokens if opened is None else opened)
    assert allows(grammar(JSON, False, as_tokens), answer) == closed


@pytest.mark.parametrize("opened", [True, False])
def test_a_mark_that_is_a_token_cannot_be_spelled_out(opened: bool) -> None:
    text = ("" if opened else "<think>") + 'So.</think>{"a": 1}'
    found = grammar(JSON, opened, as_tokens=True)
    assert allows(found, tokens(text, marks_are_tokens=True))
    thought, rest = text.split("</think>")
    spelled = [*tokens(thought, marks_are_tokens=True), *b"</think>"]
    assert not allows(found, [*spelled, *rest.encode()])
    assert not allows(found, [*spelled, *tokens(f"</think>{rest}", marks_are_tokens=True)])


@both_kinds_of_marks
def test_choices_and_any_object(as_tokens: bool) -> None:
    choices = ['a"b', "c/d", "é\n\\"]
    found = grammar(Constraint("choice", choices, "guided_choice"), True, as_tokens)
    hm = tokens("Hm.</think>", as_tokens)
    assert all(allows(found, [*hm, *f"\n{choice}".encode()]) for choice in choices)
    assert not allows(found, [*hm, *b"\ne"])
    any_object = grammar(Constraint("json_object", True, "response_format"), True, as_tokens)
    assert allows(any_object, [*hm, *b'{"x": [1]}'])
    assert not allows(any_object, [*hm, *b"[1]"])


@both_kinds_of_marks
@pytest.mark.parametrize(
    ("pattern", "answers", "others"),
    [
        ("(yes|no)", ["yes", "no"], ["", "yesno"]),
        (r"\d{2,3}/\d+", ["12/3"], ["12", "12\\/3"]),
        (r"a\/b", ["a/b"], ["a\\/b"]),
        ("//+", ["//", "///"], ["/"]),
        ("[/]*", ["", "//"], ["a"]),
        ("a\nb", ["a\nb"], ["a"]),
        ('"é" +', ['"é" '], ["é"]),
        (r"\\/", ["\\/"], ["/"]),
        ("(?i)ok#", ["OK#", "ok#"], ["ok"]),
        (" {2}x", ["  x"], []),
        ("", [""], ["x"]),
    ],
)
def test_a_regex(pattern: str, answers: list[str], others: list[str], as_tokens: bool) -> None:
    constraint = Constraint("regex", pattern, "guided_regex")
    opened, closed = (grammar(constraint, opened, as_tokens) for opened in (True, False))
    for text in answers:
        assert allows(opened, tokens(f"Hm.</think>{text}", as_tokens))
        assert allows(closed, tokens(f"<think>Hm.</think>{text}", as_tokens))
        assert allows(closed, tokens(text, as_tokens))
    for text in others:
        assert not allows(opened, tokens(f"Hm.</think>{text}", as_tokens))
        assert not allows(closed, tokens(text, as_tokens))


@both_kinds_of_marks
def test_white_space_has_an_end(as_tokens: bool) -> None:
    found = grammar(Constraint("json", {"type": "array", "items": {"type": "integer"}}, PLACE), True, as_tokens)
    for text, is_allowed in {
        "\n\n[1, 2,3]": True,
        "\n" * 9 + "[1]": False,
        "[1,  2]": False,
        "[1\n]": False,
    }.items():
        assert allows(found, tokens(f"Hm.</think>{text}", as_tokens)) == is_allowed


PIECES = ["<", "</", "</think", "think>", "/think>", "{", "}", '"', '{"a": 1}', "\n\n", "\0", "🌍"]
THOUGHTS = st.lists(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(PIECES), max_size=12
).map("".join)
CONSTRAINTS = [
    *(Constraint("json", case.schema, PLACE) for case in load_schemas() if case.expect == "enforced" and case.bounded),
    Constraint("json_object", True, "response_format"),
    Constraint("choice", ["red", "reddish", 'gr"een', "blue\n"], "guided_choice"),
    Constraint("regex", r"[a-z]{1,4}/[0-9]{2}", "guided_regex"),
]


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(CONSTRAINTS),
    THOUGHTS,
    st.text(" \n\t", max_size=8),
    st.booleans(),
    st.booleans(),
    st.integers(0, 2**32),
)
def test_whatever_is_thought_an_answer_that_obeys_follows(
    constraint: Constraint, thought: str, space: str, opened: bool, as_tokens: bool, seed: int
) -> None:
    """What the grammar allows behind any thinking, the reader of answers finds, and it obeys the constraint."""
    opening = "" if opened else "<think>"
    # Half a mark at the thought's end is half of the mark. A second mark is no thought.
    assume("<think>" not in thought and f"{thought}</think>".index("</think>") == len(thought))
    assume(not any(token in thought for token in END_TOKENS))
    begin = f"{opening}{thought}</think>{space}"
    found = grammar(constraint, opened, as_tokens)
    rest, why = walk(found, random.Random(seed), 400, tokens(begin, as_tokens))
    assume(why != "length")
    assert why == "stop"
    reader = ReasoningSplitter(THINK, "<think>\n" if opened else "")
    events = [*reader.feed(begin + rest.decode()), *reader.finish("stop")]
    assert "".join(event.text for event in events if isinstance(event, Reasoning)) == thought.strip()
    content = "".join(event.text for event in events if isinstance(event, Content))
    assert violation(constraint, content) is None


ASSISTANT = "<|start|>user<|message|>Hi<|end|><|start|>assistant"
ANALYSIS = "<|channel|>analysis<|message|>{}<|end|><|start|>assistant"
FINAL = "<|channel|>final<|message|>"


def harmony(constraint: Constraint, as_tokens: bool) -> str:
    found = after_analysis(check(constraint, "guidance"), ASSISTANT, "guidance", HARMONY if as_tokens else {})
    assert found is not None
    assert (found.kind, found.place) == ("grammar", constraint.place)
    return str(found.value)


@both_kinds_of_marks
@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        (FINAL + '{"a": 1}', True),
        ('<|channel|>final <|constrain|>json<|message|>{"a": 1}', True),
        (ANALYSIS.format('So {"a": "x"}?') + FINAL + '{"a": 1}', True),
        (ANALYSIS.format("One.") + ANALYSIS.format("Two.") + FINAL + '{"a": 1}', True),
        (ANALYSIS.format("") + FINAL + '{"a": 1}', True),
        (FINAL + '{"a": "x"}', False),
        ('{"a": 1}', False),
        (ANALYSIS.format("So.") + '{"a": 1}', False),
        ("<|channel|>analysis<|message|>So.", False),
        ("<|channel|>commentary<|message|>So.<|end|><|start|>assistant" + FINAL + '{"a": 1}', False),
        (FINAL + '{"a": 1}<|end|>', False),
    ],
)
def test_in_harmony_the_final_channel_is_bound(text: str, allowed: bool, as_tokens: bool) -> None:
    answer = tokens(text, as_tokens, HARMONY)
    assert allows(harmony(JSON, as_tokens), answer) == allowed


@both_kinds_of_marks
def test_in_harmony_every_kind_of_constraint_binds(as_tokens: bool) -> None:
    for constraint, answer, other in (
        (Constraint("choice", ["yes", "no"], "guided_choice"), "yes", "maybe"),
        (Constraint("regex", "[a-c]/+", "guided_regex"), "a/", "d"),
        (Constraint("json_object", True, "response_format"), '{"x": [1]}', "[1]"),
    ):
        found = harmony(constraint, as_tokens)
        begin = ANALYSIS.format("Hm.") + FINAL
        assert allows(found, tokens(begin + answer, as_tokens, HARMONY))
        assert not allows(found, tokens(begin + other, as_tokens, HARMONY))


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(CONSTRAINTS), THOUGHTS, st.booleans(), st.integers(0, 2**32))
def test_whatever_is_analysed_an_answer_that_obeys_follows(
    constraint: Constraint, thought: str, as_tokens: bool, seed: int
) -> None:
    assume("<|" not in thought and f"{thought}<|end|>".index("<|end|>") == len(thought))
    begin = ANALYSIS.format(thought) + FINAL
    rest, why = walk(harmony(constraint, as_tokens), random.Random(seed), 400, tokens(begin, as_tokens, HARMONY))
    assume(why != "length")
    assert why == "stop"
    reader = OutputFormat("gpt_oss", "gpt_oss").parser(ASSISTANT, {})
    assert reader is not None
    events = [*reader.feed(begin + rest.decode()), *reader.finish("stop")]
    content = "".join(event.text for event in events if isinstance(event, Content))
    # The reader takes white space at the ends for the frame.
    assert violation(constraint, content) is None or content != rest.decode()


def test_in_harmony_the_prompt_says_where_the_constraint_begins() -> None:
    """A prompt that ends within the final message is bound from the first token; any other one cannot be."""
    for prompt, begins in (
        (ASSISTANT, "grammar"),
        (ASSISTANT + FINAL, "json"),
        (ASSISTANT + FINAL + '{"a"', "json"),
        (ASSISTANT + "<|channel|>analysis<|message|>", None),
        ("Hello", None),
    ):
        found = after_analysis(JSON, prompt, "guidance", HARMONY)
        assert (found.kind if found else None) == begins


def form_of_tag(constraint: Constraint, opened: bool) -> dict[str, Any]:
    found = after_reasoning(check(constraint, "xgrammar"), THINK, opened, "xgrammar", None)
    assert found is not None
    # What the gateway lets through for this backend.
    check(found, "xgrammar")
    form: dict[str, Any] = json.loads(found.value)["format"]
    return form


def test_xgrammar_takes_it_as_a_structural_tag() -> None:
    """What the library itself makes of it is in tests/real/test_after_reasoning.py."""
    opened = form_of_tag(JSON, opened=True)
    tag, space, answer = opened["elements"]
    assert tag == {"type": "tag", "begin": "", "content": {"type": "any_text"}, "end": "</think>"}
    assert answer == {"type": "json_schema", "json_schema": SCHEMA}
    assert form_of_tag(JSON, opened=False)["elements"] == [
        answer,
        *(
            {"type": "sequence", "elements": [tag | {"begin": begin}, space, answer]}
            for begin in ("<think>", "\n<think>")
        ),
    ]
    one_of = form_of_tag(Constraint("choice", ["yes", "no"], "guided_choice"), opened=True)["elements"][2]
    assert [one["value"] for one in one_of["elements"]] == ["yes", "no"]
    any_object = form_of_tag(Constraint("json_object", True, "response_format"), opened=False)
    assert any_object["elements"][0]["json_schema"] == {"type": "object"}


@pytest.mark.parametrize("opened", [True, False])
def test_auto_gives_a_structural_tag_to_xgrammar(opened: bool) -> None:
    checked = check(JSON, "auto")
    found = after_reasoning(checked, THINK, opened, "auto", None)
    assert found == after_reasoning(checked, THINK, opened, "xgrammar", None)
    assert found is not None
    assert after_analysis(checked, ASSISTANT, "auto", None) == after_analysis(checked, ASSISTANT, "xgrammar", None)


@pytest.mark.parametrize(
    ("constraint", "backend"),
    [
        (Constraint("grammar", "start: /a/", "guided_grammar"), "guidance"),
        (Constraint("structural_tag", "{}", "response_format"), "guidance"),
        (Constraint("regex", "a+", "guided_regex"), "xgrammar"),
        (Constraint("regex", "a+", "guided_regex"), "auto"),
        (JSON, "outlines"),
        (JSON, ""),
    ],
)
def test_what_cannot_be_expressed(constraint: Constraint, backend: str) -> None:
    assert after_reasoning(constraint, THINK, True, backend, {}) is None


def test_without_the_vocabulary_it_is_not_known_what_the_marks_are_to_guidance() -> None:
    assert after_reasoning(JSON, THINK, True, "guidance", None) is None
