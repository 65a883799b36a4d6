"""Structured outputs: instances obey their constraint, and what the engine refuses is refused in its words."""

import json
import re
from typing import Any

import jsonschema_rs
import pytest

from bench.mock_engine.generation import generate
from bench.mock_engine.sampling import Constraint, SamplingParams
from bench.mock_engine.structured import ConstraintError, EngineGaveUp, check, instance


def closed(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


TREE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": closed(
            name={"type": "string", "maxLength": 8},
            children={"type": "array", "maxItems": 2, "items": {"$ref": "#/$defs/node"}},
        )
    },
}

SCHEMAS: list[dict[str, Any]] = [
    {},
    {"type": "object"},
    {"type": "string"},
    {"type": "string", "minLength": 20, "maxLength": 25},
    {"type": "string", "maxLength": 0},
    {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"},
    {"type": "string", "pattern": "^(foo|bar)+$", "maxLength": 9},
    {"type": "integer"},
    {"type": "integer", "minimum": -5, "maximum": 5},
    {"type": "integer", "minimum": 1000000},
    {"type": "integer", "multipleOf": 7},
    {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    {"type": "number", "multipleOf": 0.25},
    {"type": "boolean"},
    {"type": "null"},
    {"type": ["string", "null"]},
    {"const": 'ä€😀 "quoted" \\ \n'},
    {"const": {"a": [1, None, True, 2.5]}},
    {"enum": ["red", "green", 3, None, [1], {"a": 1}]},
    {"type": "array", "items": {"type": "integer"}},
    {"type": "array", "items": {"type": "string"}, "minItems": 3, "maxItems": 3},
    {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "items": False},
    {"type": "array", "prefixItems": [{"type": "string"}], "items": {"type": "boolean"}, "minItems": 4},
    {"type": "array", "items": {"type": "array", "items": {"type": "null"}, "minItems": 1}, "minItems": 1},
    closed(),
    closed(a={"type": "string"}, b={"type": "integer"}),
    closed(**{"名前": {"type": "string"}, 'quote"back\\slash': {"type": "null"}}),
    {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}},
    {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a", "extra"]},
    {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 1},
    {"type": "object", "patternProperties": {"^k[0-9]$": {"type": "integer"}}, "additionalProperties": False},
    closed(inner=closed(deeper=closed(deepest={"type": "boolean"}))),
    {"anyOf": [{"type": "string"}, {"type": "integer"}]},
    {"oneOf": [closed(kind={"const": "cat"}), closed(kind={"const": "dog"}, good={"type": "boolean"})]},
    {"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}}, {"required": ["a"]}]},
    {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 9}]},
    {"$defs": {"x": {"enum": ["low", "high"]}}, **closed(level={"$ref": "#/$defs/x"})},
    closed(v={"type": "integer"}, next={"anyOf": [{"$ref": "#"}, {"type": "null"}]}),
    TREE,
    {"minimum": 3, "maxLength": 4},
    *(
        closed(value={"type": "string", "format": name})
        for name in ("date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
    ),
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: json.dumps(schema)[:60])
def test_json_instances_are_valid(schema: dict[str, Any]) -> None:
    constraint = Constraint("json", schema)
    check(constraint)
    validator = jsonschema_rs.validator_for(schema, validate_formats=True)
    for seed in range(5):
        drawn = instance(constraint, seed, max_bytes=1000)
        assert drawn == instance(constraint, seed, max_bytes=1000)
        validator.validate(json.loads(drawn))


def test_instances_differ_by_seed() -> None:
    constraint = Constraint("json", closed(a={"type": "string"}, b={"type": "integer"}))
    assert len({instance(constraint, seed, 1000) for seed in range(10)}) > 5


def test_strings_are_words() -> None:
    drawn = json.loads(instance(Constraint("json", closed(a={"type": "string", "minLength": 3})), 1, 1000))
    assert re.fullmatch(r"[a-z ]+", drawn["a"])


def test_json_object() -> None:
    for seed in range(10):
        assert isinstance(json.loads(instance(Constraint("json_object", True), seed, 1000)), dict)


@pytest.mark.parametrize("regex", [r"[0-9]{3}-[a-f]{2}", r"(yes|no)", r"\d+", r"[^a-z]{4}", r"a*b"])
def test_regex(regex: str) -> None:
    for seed in range(10):
        assert re.fullmatch(regex, instance(Constraint("regex", regex), seed, 1000).decode())


def test_choice() -> None:
    drawn = {instance(Constraint("choice", ["red", "grün", ""]), seed, 100).decode() for seed in range(30)}
    assert drawn == {"red", "grün", ""}


@pytest.mark.parametrize(
    "grammar",
    ['start: "SELECT " ("a" | "b") " FROM t"', 'root ::= "SELECT " ("a" | "b") " FROM t"'],
    ids=["lark", "gbnf"],
)
def test_grammar(grammar: str) -> None:
    for seed in range(5):
        assert instance(Constraint("grammar", grammar), seed, 100) in (b"SELECT a FROM t", b"SELECT b FROM t")


def test_structural_tag() -> None:
    tag = {
        "structures": [{"begin": "<f=add>", "schema": closed(a={"type": "integer"}), "end": "</f>"}],
        "triggers": ["<f="],
    }
    text = instance(Constraint("structural_tag", json.dumps(tag)), 1, 1000).decode()
    assert isinstance(json.loads(text.removeprefix("<f=add>").removesuffix("</f>"))["a"], int)


@pytest.mark.parametrize(
    ("constraint", "error"),
    [
        (Constraint("json", {"type": "nope"}), "Grammar error: Invalid type: nope"),
        (Constraint("json", {"not": {}}), 'Grammar error: Unimplemented keys: ["not"]'),
        (Constraint("regex", "(unclosed"), "Grammar error: "),
        (Constraint("json", "true"), "Invalid grammar specification: Expecting object schema to apply options"),
        (Constraint("grammar", "nonsense"), "Invalid grammar specification: "),
        (Constraint("grammar", "start: UNKNOWN"), "Grammar error: "),
        (
            Constraint("structural_tag", '{"type":"structural_tag","format":{}}'),
            "Invalid grammar specification: 'triggers'",
        ),
    ],
)
def test_refusals(constraint: Constraint, error: str) -> None:
    with pytest.raises(ConstraintError) as refused:
        check(constraint)
    assert str(refused.value).startswith(error)


def text_of(constraint: Constraint, **sampling: Any) -> tuple[str, str | None]:
    params = SamplingParams.of({"max_tokens": None} | sampling, constraint)
    deltas = list(generate([1, 2, 3], params, 4096))
    return "".join(delta.text for delta in deltas), deltas[-1].finish_reason


def test_a_limit_cuts_an_instance() -> None:
    constraint = Constraint("json", {"type": "array", "items": {"type": "integer"}, "minItems": 50})
    text, finish = text_of(constraint, max_tokens=8)
    assert (text[0], finish) == ("[", "length")
    with pytest.raises(ValueError, match="Expecting"):
        json.loads(text)


def test_min_tokens_adds_nothing_to_an_instance() -> None:
    assert text_of(Constraint("choice", ["yes"]), min_tokens=50) == ("yes", "stop")


def test_ignore_eos_adds_text_to_an_instance() -> None:
    text, finish = text_of(Constraint("choice", ["yes"]), ignore_eos=True, max_tokens=20)
    assert text.startswith("yes")
    assert len(text) > 20
    assert finish == "length"


def test_a_long_instance_ends_also_where_a_number_is_followed_by_another() -> None:
    schema = closed(text={"const": "x" * 200}, a={"type": "number"}, b={"type": "integer"})
    for seed in range(5):
        drawn = instance(Constraint("json", schema), seed, max_bytes=10_000)
        assert len(drawn) < 300
        json.loads(drawn)


def test_a_grammar_that_cannot_be_followed_ends_with_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def give_up(*_: Any, **__: Any) -> bytes:
        raise EngineGaveUp

    monkeypatch.setattr("bench.mock_engine.generation.instance", give_up)
    assert text_of(Constraint("json", {})) == ("", "error")
