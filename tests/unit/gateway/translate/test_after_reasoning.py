"""Thinking first, then the answer that the constraint allows, in one grammar; asked of the grammar library itself."""

import json
from typing import Any

import pytest

from gateway.output.reasoning import MARKS
from gateway.translate.after_reasoning import after_reasoning
from gateway.translate.schema_check import check
from gateway.translate.schema_guidance import matches, text_error
from gateway.translate.structured import Constraint

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
JSON = Constraint("json", SCHEMA, "response_format.json_schema.schema")
THINK = MARKS["think"]


def grammar(constraint: Constraint, opened: bool) -> str:
    found = after_reasoning(check(constraint, "guidance"), THINK, opened, "guidance")
    assert found is not None
    assert (found.kind, found.place) == ("grammar", constraint.place)
    assert text_error("grammar", found.value) is None
    return str(found.value)


@pytest.mark.parametrize(
    ("text", "opened", "closed"),
    [
        ('So {"a": "x"}, or?</think>\n\n{"a": 1}', True, False),
        ('</think>{"a": 1}', True, False),
        ('<think>\nSo.\n</think>\n\n{"a": 1}', True, True),
        ('\n<think></think>{"a": 1}', True, True),
        ('{"a": 1}', False, True),
        ('So.</think>{"a": "x"}', False, False),
        ('<think>So.</think>{"a": "x"}', False, False),
        ('So.</think>again</think>{"a": 1}', False, False),
        ("So.</think>", False, False),
    ],
)
def test_an_answer_may_be_thought_about(text: str, opened: bool, closed: bool) -> None:
    """`opened` and `closed`: whether it is allowed where the prompt has opened the thinking, and where it has not."""
    assert matches("grammar", grammar(JSON, opened=True), text) == opened
    assert matches("grammar", grammar(JSON, opened=False), text) == closed


def test_choices_and_any_object() -> None:
    choices = ['a"b', "c/d", "é\n\\", "</think>"]
    found = grammar(Constraint("choice", choices, "guided_choice"), opened=True)
    assert all(matches("grammar", found, f"Hm.</think>\n{choice}") for choice in choices)
    assert not matches("grammar", found, "Hm.</think>\ne")
    any_object = grammar(Constraint("json_object", True, "response_format"), opened=True)
    assert matches("grammar", any_object, 'Hm.</think>{"x": [1]}')
    assert not matches("grammar", any_object, "Hm.</think>[1]")


def elements(constraint: Constraint, opened: bool) -> list[Any]:
    found = after_reasoning(check(constraint, "xgrammar"), THINK, opened, "xgrammar")
    assert found is not None
    # What the gateway lets through for this backend.
    check(found, "xgrammar")
    forms: list[Any] = json.loads(found.value)["format"]["elements"]
    return forms


def test_xgrammar_takes_it_as_a_structural_tag() -> None:
    answer = {"type": "json_schema", "json_schema": SCHEMA}
    opened, closed = elements(JSON, opened=True), elements(JSON, opened=False)
    assert {form["elements"][0]["begin"] for form in opened} == {""}
    assert {form["elements"][0]["end"] for form in opened} == {"</think>", "</think>\n", "</think>\n\n"}
    assert all(form["elements"][1] == answer for form in opened)
    assert closed[0] == answer
    assert {form["elements"][0]["begin"] for form in closed[1:]} == {"<think>", "\n<think>"}
    any_object = elements(Constraint("json_object", True, "response_format"), opened=False)[0]
    assert any_object["json_schema"] == {"type": "object"}


@pytest.mark.parametrize(
    ("constraint", "backend"),
    [
        (Constraint("regex", "a+", "guided_regex"), "guidance"),
        (Constraint("grammar", "start: /a/", "guided_grammar"), "guidance"),
        (Constraint("choice", ["a"], "guided_choice"), "xgrammar"),
        (JSON, "outlines"),
        (JSON, ""),
    ],
)
def test_what_cannot_be_expressed(constraint: Constraint, backend: str) -> None:
    assert after_reasoning(constraint, THINK, True, backend) is None


def test_marks_that_are_special_tokens_are_no_text_to_a_grammar() -> None:
    assert after_reasoning(JSON, MARKS["mistral"], True, "guidance") is None
