"""Every family reads what it writes: any content, any calls, any cut."""

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.output.events import OutputParser
from gateway.output.parsers import OutputFormat
from tests.support.families import FAMILIES, Family, WrittenCall, written
from tests.support.output import Message, assert_same_for_all_cuts, cut, read

EVERY = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)

ANYTHING = {"type": "object", "properties": {"value": {}}}
STRINGS = {"type": "object", "properties": {"text": {"type": "string"}, "other": {"type": "string"}}}
TOOLS: dict[str, Any] = {
    "save": STRINGS,
    "set-options.v2": {
        "type": "object",
        "properties": {
            "count": {"type": "integer"},
            "ratio": {"type": "number"},
            "on": {"type": "boolean"},
            "tags": {"type": "array"},
            "extra": {"type": "object"},
            "limit": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "label": {"$ref": "#/$defs/label"},
        },
        "$defs": {"label": {"enum": ["a", "1", "true"]}},
    },
    "get_time": {},
}

# Pieces of text that a careless parser stumbles over.
AWKWARD = st.sampled_from(
    ["{", "}", "[", "]", '"', "'", "\\", "\\n", "\n", "\t", "<", ">", "</", "<|", "|>", "<tool", "tool_call",
     "```", "{}", "🌍", "日本", "é", "\u2028", "\x7f", "0", "null", "=", ", ", ":", "(", ")", "a b", "<b>", "[1]",
     "\\u0041", "\\ud83d"]
)  # fmt: skip
LINES = st.lists(AWKWARD, min_size=1, max_size=8).map("".join)
# In a format without escapes, what ends a value cannot stand in it; a newline at either end belongs to the frame.
VALUES = LINES.filter(lambda text: text == text.strip("\n"))
INTEGERS = st.integers(-(10**25), 10**25)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | INTEGERS | NUMBERS | LINES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(LINES, inner, max_size=3),
    max_leaves=6,
)
CALLS: st.SearchStrategy[WrittenCall] = st.one_of(
    st.tuples(st.just("save"), st.fixed_dictionaries({"text": VALUES}, optional={"other": VALUES})),
    st.tuples(
        st.just("set-options.v2"),
        st.fixed_dictionaries(
            {},
            optional={
                "count": INTEGERS,
                "ratio": NUMBERS,
                "on": st.booleans(),
                "tags": st.lists(JSON_VALUES, max_size=3),
                "extra": st.dictionaries(LINES, JSON_VALUES, max_size=3),
                "limit": st.none() | st.integers(),
                "label": st.sampled_from(["a", "1", "true"]),
            },
        ),
    ),
    st.tuples(st.just("get_time"), st.just({})),
)
# White space beside calls is part of their frame. What begins a line with a bracket may be JSON up to its end.
CONTENT = LINES.map(lambda text: "".join(f"- {line}" for line in text.splitlines(keepends=True)).strip())


def parser(family: Family) -> OutputParser:
    found = OutputFormat(family.parser, None).parser("", TOOLS)
    assert found is not None
    return found


def check(family: Family, message: Message, content: str, calls: list[WrittenCall]) -> None:
    assert message.content == content
    assert [(call.name, json.loads(call.arguments)) for call in message.calls] == calls
    # Also what Python takes for equal: 1, 1.0 and True.
    assert [json.dumps(json.loads(call.arguments)) for call in message.calls] == [json.dumps(args) for _, args in calls]
    assert all(re.fullmatch(family.id_pattern, call.id) for call in message.calls)
    assert not message.reasoning


@EVERY
def test_a_family_reads_what_it_writes(family: Family) -> None:
    @settings(max_examples=30)
    @given(CONTENT, st.lists(CALLS, max_size=3), st.lists(st.integers(0, 2000), max_size=6), st.booleans())
    def run(content: str, calls: list[WrittenCall], cuts: list[int], with_end_token: bool) -> None:
        raw = written(family, content, calls) + (family.end_token if with_end_token else "")
        check(family, read(parser(family), cut(raw, cuts)), content, calls)
        check(family, read(parser(family), raw), content, calls)

    run()


@EVERY
def test_a_call_in_the_middle_of_a_long_text(family: Family) -> None:
    words = "A lot of text, with a < sign, {braces} and [brackets]. " * 5 + "Now:"
    call: WrittenCall = ("save", {"text": 'mkdir {a,b && echo "}}" # \\ 🌍'})
    after = "And more text."
    if family.parser == "gpt_oss":
        raw = written(family, words, [call]) + f"<|start|>assistant<|channel|>final<|message|>{after}<|return|>"
    else:
        raw = written(family, words, [call]) + f"\n{after}"
    message = assert_same_for_all_cuts(lambda: parser(family), raw)
    check(family, message, message.content, [call])
    assert message.content.split("\n") == [words, *[""] * family.bare, after]


@EVERY
def test_a_call_that_the_token_limit_cuts_off_is_the_beginning_of_the_whole_one(family: Family) -> None:
    call: WrittenCall = ("save", {"text": 'a "b" {c}\n<d>', "other": "🌍"})
    raw = written(family, "Now:", [call])
    whole = read(parser(family), [raw])
    is_frame = False
    for length in range(1, len(raw)):
        part = read(parser(family), [raw[:length]], "length")
        # Until it is certain that a frame begins, its beginning is text; from then on it never is again.
        is_frame = is_frame or (length > 4 and part.content == "Now:" and raw[length - 1] != "\n")
        if family.parser == "gpt_oss":
            # A token is never cut, but a text may end with its first characters.
            assert "Now:<|end|>".startswith(part.content)
        else:
            assert part.content.strip() == ("Now:" if is_frame else raw[:length].strip())
        if part.calls:
            assert [part.calls[0].name] == ["save"]
            assert whole.calls[0].arguments.startswith(part.calls[0].arguments)
            assert is_frame
    assert part.calls


@EVERY
@pytest.mark.parametrize("end", ["", "length"])
def test_without_tools_all_is_content(family: Family, end: str) -> None:
    raw = written(family, "Like this: ", [("save", {"text": "x"})])
    kind = OutputFormat(family.parser, None)
    if family.parser == "gpt_oss":
        found = kind.parser("", {})
        assert found is not None
        assert read(found, raw).calls == []
    else:
        assert kind.parser("", {}) is None
