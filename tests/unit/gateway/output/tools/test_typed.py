"""Bare text becomes JSON by the schema of the parameter that it is for."""

from typing import Any

import pytest

from gateway.output.tools.typed import ParameterTypes, python_to_json

CASES: list[tuple[Any, str, str]] = [
    ({"type": "string"}, "7", '"7"'),
    ({"type": "string"}, 'a "b"\n\\ 🌍', '"a \\"b\\"\\n\\\\ 🌍"'),
    ({"type": "integer"}, " 12345678901234567890\n", "12345678901234567890"),
    ({"type": "integer"}, "3.0", "3.0"),
    ({"type": "integer"}, "3.5", '"3.5"'),
    ({"type": "number"}, "-1.50e-7", "-1.50e-7"),
    ({"type": "number"}, "NaN", '"NaN"'),
    ({"type": "boolean"}, "True", "true"),
    ({"type": "boolean"}, "yes", '"yes"'),
    ({"type": ["integer", "null"]}, "None", "null"),
    ({"type": ["string", "null"]}, "null", "null"),
    ({"type": ["string", "null"]}, '"quoted"', '"\\"quoted\\""'),
    ({"type": ["string", "integer"]}, "007", '"007"'),
    ({"type": "array"}, "['a', (1, None)]", '["a", [1, null]]'),
    ({"type": "array"}, "{}", '"{}"'),
    ({"type": "object"}, '{"a": 1.10}', '{"a": 1.10}'),
    ({"enum": ["1", "2"]}, "1", '"1"'),
    ({"enum": [1, 2]}, "1", "1"),
    ({"const": True}, "true", "true"),
    ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "5", "5"),
    ({"oneOf": [{"type": "string"}]}, "5", '"5"'),
    ({"allOf": [{"description": "x"}, {"type": "string"}]}, "5", '"5"'),
    ({"$ref": "#/$defs/a~1b"}, "5", '"5"'),
    ({"$ref": "#/$defs/nothing/here"}, "5", "5"),
    ({"$ref": "#/$defs/loop"}, "5", "5"),
    ({"$ref": "https://example.com/x"}, "5", "5"),
    ({}, "5", "5"),
    ({}, "five", '"five"'),
    ({}, "", '""'),
    ({"type": 7}, "5", "5"),
    ({"anyOf": {}, "enum": 3}, "5", "5"),
    (True, "[1, 2", '"[1, 2"'),
    ({"type": "array"}, "[" * 100_000, '"' + "[" * 100_000 + '"'),
    ({"type": "array"}, "('a'," * 9_000, '"' + "('a'," * 9_000 + '"'),
    ({"type": "array"}, "['a']" + " " * 10 + "," * 70_000, '"[\'a\']' + " " * 10 + "," * 70_000 + '"'),
]


@pytest.mark.parametrize(("schema", "text", "expected"), CASES)
def test_text_to_json(schema: Any, text: str, expected: str) -> None:
    types = ParameterTypes(
        {
            "properties": {"p": schema},
            "$defs": {"a/b": {"type": "string"}, "loop": {"anyOf": [{"$ref": "#/$defs/loop"}] * 50}},
        }
    )
    assert types.to_json("p", text) == expected


def test_additional_properties_have_types_too() -> None:
    types = ParameterTypes({"properties": {}, "additionalProperties": {"type": "string"}})
    assert types.is_string("any")
    assert not ParameterTypes({"properties": [], "additionalProperties": False}).is_string("any")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("'it\\'s'", '"it\'s"'),
        ('"\\ud83d\\ude00"', '"\\ud83d\\ude00"'),
        ("'\\d'", '"\\\\d"'),
        ("0x10", "16"),
        ("1_000", "1000"),
        ("{1: 'a'}", '{"1": "a"}'),
        ("{(1,): 'a'}", None),
        ("b'a'", None),
        ("{1, 2}", None),
        ("1e999 ", "1e999"),
        ("-1e999j", None),
        ("open('x')", None),
        ("word", None),
        ("", None),
    ],
)
def test_python_to_json(text: str, expected: str | None) -> None:
    assert python_to_json(text) == expected
