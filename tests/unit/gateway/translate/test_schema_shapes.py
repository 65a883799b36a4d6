"""constraint_of, and the kinds of constraint that are no schema."""

import json
from typing import Any

import pytest

from gateway.openai.errors import ApiError
from gateway.openai.schema import parse_chat
from gateway.translate.schema_check import check, violation
from gateway.translate.structured import Constraint, constraint_of

SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "additionalProperties": False}


def response_format(**inner: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "out", **inner}}}


def in_every_field(schema: str) -> list[tuple[str, str]]:
    """Request fields as JSON text with the schema (JSON text) in each that takes one, and its place there."""
    text = json.dumps(schema)
    new = f'{{"type": "structural_tag", "format": {{"type": "json_schema", "json_schema": {schema}}}}}'
    old = f'{{"structures": [{{"begin": "<", "schema": {schema}, "end": ">"}}], "triggers": ["<"]}}'
    old_typed = f'{{"type": "structural_tag", {old[1:]}'
    return [
        (f'{{"response_format": {{"type": "json_schema", "json_schema": {{"name": "n", "schema": {schema}}}}}}}',
         "response_format.json_schema.schema"),
        (f'{{"structured_outputs": {{"json": {schema}}}}}', "structured_outputs.json"),
        (f'{{"structured_outputs": {{"json": {text}}}}}', "structured_outputs.json"),
        (f'{{"guided_json": {schema}}}', "guided_json"),
        (f'{{"guided_json": {text}}}', "guided_json"),
        (f'{{"response_format": {new}}}', "response_format.format.json_schema"),
        (f'{{"response_format": {old_typed}}}', "response_format.structures[0].schema"),
        (f'{{"structured_outputs": {{"structural_tag": {json.dumps(new)}}}}}',
         "structured_outputs.structural_tag.format.json_schema"),
        (f'{{"structured_outputs": {{"structural_tag": {json.dumps(old)}}}}}',
         "structured_outputs.structural_tag.structures[0].schema"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "kind", "value", "place"),
    [
        (response_format(schema=SCHEMA), "json", SCHEMA, "response_format.json_schema.schema"),
        (response_format(schema=SCHEMA, strict=None, description=None), "json", SCHEMA,
         "response_format.json_schema.schema"),
        ({"response_format": {"type": "json_object", "schema": None}}, "json_object", True, "response_format"),
        ({"structured_outputs": {"json": SCHEMA, "regex": None}}, "json", SCHEMA, "structured_outputs.json"),
        ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, "json", SCHEMA, "structured_outputs.json"),
        ({"structured_outputs": {"json_object": True}}, "json_object", True, "structured_outputs.json_object"),
        ({"structured_outputs": {"regex": "a", "disable_any_whitespace": False}}, "regex", "a",
         "structured_outputs.regex"),
        ({"structured_outputs": {"choice": ["a", ""]}}, "choice", ["a", ""], "structured_outputs.choice"),
        ({"structured_outputs": {"grammar": "root ::= \"a\""}}, "grammar", "root ::= \"a\"",
         "structured_outputs.grammar"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structural_tag", "{}", "structured_outputs.structural_tag"),
        ({"guided_json": json.dumps(SCHEMA)}, "json", SCHEMA, "guided_json"),
        ({"guided_json": True}, "json", True, "guided_json"),
        ({"guided_regex": "a+"}, "regex", "a+", "guided_regex"),
        ({"guided_choice": ["a"]}, "choice", ["a"], "guided_choice"),
        ({"guided_grammar": "start: \"a\""}, "grammar", "start: \"a\"", "guided_grammar"),
        ({"response_format": {"type": "text"}, "guided_choice": ["a"]}, "choice", ["a"], "guided_choice"),
    ],
)  # fmt: skip
def test_one_constraint(fields: dict[str, Any], kind: str, value: Any, place: str) -> None:
    found = constraint_of(fields)
    assert found is not None
    assert (found.kind, found.value, found.place) == (kind, value, place)
    assert found.engine_value() == {kind: value}


def test_structural_tag_of_response_format_is_the_whole_object() -> None:
    tag = {"type": "structural_tag", "format": {"type": "any_text"}}
    found = constraint_of({"response_format": tag})
    assert found is not None
    assert (found.kind, json.loads(found.value)) == ("structural_tag", tag)


@pytest.mark.parametrize(
    "fields",
    [
        {}, {"response_format": None, "structured_outputs": None, "guided_json": None, "guided_decoding_backend": None},
        {"response_format": {"type": "text"}}, {"response_format": {"type": "text", "json_schema": None}},
    ],
)  # fmt: skip
def test_no_constraint(fields: dict[str, Any]) -> None:
    assert constraint_of(fields) is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": "json_object"}, "response_format"),
        ({"response_format": []}, "response_format"),
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": {"type": None}}, "response_format.type"),
        ({"response_format": {"type": ["text"]}}, "response_format.type"),
        ({"response_format": {"type": "text", "schema": SCHEMA}}, "response_format.schema"),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, "response_format.schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": "x"}}, "response_format.json_schema"),
        (response_format(), "response_format.json_schema.schema"),
        (response_format(schema="{}"), "response_format.json_schema.schema"),
        (response_format(schema=SCHEMA, strict="yes"), "response_format.json_schema.strict"),
        (response_format(schema=SCHEMA, description=1), "response_format.json_schema.description"),
        (response_format(schema=SCHEMA, schemas=1), "response_format.json_schema.schemas"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
         "response_format.json_schema.name"),
        (response_format(schema=SCHEMA, name=""), "response_format.json_schema.name"),
        ({"structured_outputs": "x"}, "structured_outputs"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"json": None}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
        ({"structured_outputs": {"regx": "a"}}, "structured_outputs.regx"),
        ({"structured_outputs": {"regex": "a", "whitespace_pattern": " "}}, "structured_outputs.whitespace_pattern"),
        ({"structured_outputs": {"regex": "a", "disable_any_whitespace": True}},
         "structured_outputs.disable_any_whitespace"),
        ({"structured_outputs": {"json_object": False}}, "structured_outputs.json_object"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json"),
        ({"structured_outputs": {"json": "[]"}}, "structured_outputs.json"),
        ({"structured_outputs": {"json": ""}}, "structured_outputs.json"),
        ({"structured_outputs": {"regex": 1}}, "structured_outputs.regex"),
        ({"structured_outputs": {"regex": "a\x00"}}, "structured_outputs.regex"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"structured_outputs": {"choice": "a"}}, "structured_outputs.choice"),
        ({"structured_outputs": {"choice": ["a", 1]}}, "structured_outputs.choice[1]"),
        ({"structured_outputs": {"grammar": " "}}, "structured_outputs.grammar"),
        ({"structured_outputs": {"structural_tag": {}}}, "structured_outputs.structural_tag"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_decoding_backend": "xgrammar"}, "guided_decoding_backend"),
        ({"guided_whitespace_pattern": " ?"}, "guided_whitespace_pattern"),
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex"),
        ({"guided_json": SCHEMA, "guided_choice": ["a"]}, "guided_choice"),
    ],
)  # fmt: skip
def test_refused_shape(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as error:
        constraint_of(fields)
    assert (error.value.status, error.value.param) == (400, param)


def check_request(fields: str) -> Constraint:
    request = parse_chat(f'{{"model": "m", "messages": [{{"role": "user", "content": "q"}}], {fields[1:]}'.encode())
    constraint = constraint_of(request.model_dump())
    assert constraint is not None
    return check(constraint, "xgrammar")


@pytest.mark.parametrize(
    ("schema", "where"),
    [
        ('{"const": 1e999}', ".const"), ('{"const": -1e999}', ".const"), ('{"enum": [1, {"a": [null, 1e400]}]}',
        ".enum[1].a[1]"), ('{"properties": {"a b": {"maximum": 1e999}}}', '.properties["a b"].maximum'),
        ('{"default": 1e999}', ".default"), (f'{{"default": 1{"0" * 309}}}', ".default"),
        (f'{{"maximum": -1{"0" * 4000}}}', ".maximum"), (f'{{"const": {2**64 + 1}}}', ".const"),
        ('{"maxLength": 1e300}', ".maxLength"),
    ],
)  # fmt: skip
def test_numbers_that_cannot_be_held_are_refused_in_every_field(schema: str, where: str) -> None:
    for body, place in in_every_field(schema):
        with pytest.raises(ApiError) as error:
            check_request(body)
        assert (error.value.status, error.value.param) == (400, place + where)


def test_numbers_that_can_be_held_are_taken_in_every_field() -> None:
    schema = f'{{"type": "number", "default": 1.7e308, "examples": [-{10**30}, {2**64}, null, "1e999"]}}'
    for body, _ in in_every_field(schema):
        checked = json.dumps(check_request(body).engine_value()).replace("e+", "e")
        for number in ("1.7e308", "-1e30", "1.8446744073709552e19"):
            assert number in checked


@pytest.mark.parametrize(
    ("kind", "value", "ok"),
    [
        ("json_object", True, True),
        ("choice", ["yes", "no", "", "日本", '"', "\n", "😀"], True),
        ("choice", ["a"] * 6000, False),
        ("regex", "[A-Z]{2}-[0-9]{3}", True), ("regex", "^[A-Z]{3}$", True), ("regex", "", True),
        ("regex", "(ab", False), ("regex", "a(?=b)", False), ("regex", r"(a)\1", False), ("regex", "a^", False),
        ("grammar", 'root ::= num ("+" num)*\nnum ::= [0-9]{1,2}', True), ("grammar", 'start: "a" | "b"', True),
        ("grammar", 'root ::= "a" tail', False), ("grammar", 'start: tail', False), ("grammar", 'x ::= "a"', False),
        ("grammar", 'root ::= root "a"', False), ("grammar", 'root ::= "a" root', False),
        ("grammar", "nonsense", False),
        ("grammar", 'start: %json {"not": {}}', False),
        ("structural_tag", '{"structures": [], "triggers": []}', False),
    ],
)  # fmt: skip
@pytest.mark.parametrize("backend", ["guidance", "auto"])
def test_kinds_without_schema(kind: Any, value: Any, ok: bool, backend: str) -> None:
    constraint = Constraint(kind, value, "structured_outputs.x")
    if ok:
        assert check(constraint, backend).engine_value() == {kind: value}
        return
    with pytest.raises(ApiError) as error:
        check(constraint, backend)
    assert (error.value.status, error.value.param) == (400, "structured_outputs.x")


@pytest.mark.parametrize("backend", ["outlines", "lm-format-enforcer"])
def test_other_backends_get_only_what_is_certain(backend: str) -> None:
    assert check(Constraint("choice", ["a"], "p"), backend).value == ["a"]
    assert check(Constraint("regex", "[a-z]+", "p"), backend).value == "[a-z]+"
    for kind, value in (("json", {}), ("json_object", True), ("grammar", 'root ::= "a"'), ("regex", "^a$")):
        with pytest.raises(ApiError) as error:
            check(Constraint(kind, value, "p"), backend)  # type: ignore[arg-type]
        assert error.value.param == "p"


def tag(**value: Any) -> Constraint:
    return Constraint("structural_tag", json.dumps(value), "response_format")


STRUCTURE = {"begin": "<f>", "schema": {"type": "string", "maxLength": 3}, "end": "</f>"}


def test_structural_tags_are_for_xgrammar_and_their_schemas_are_checked() -> None:
    old = check(tag(structures=[STRUCTURE], triggers=["<f"]), "xgrammar").engine_value()["structural_tag"]
    assert json.loads(old)["structures"][0]["schema"]["pattern"]
    new = tag(
        type="structural_tag",
        format={
            "type": "triggered_tags", "triggers": ["<f"], "at_least_one": True,
            "tags": [
                {"type": "tag", "begin": "<f>", "end": "</f>", "content": {"type": "json_schema", "json_schema": {}}}
            ],
        },
    )  # fmt: skip
    assert json.loads(check(new, "xgrammar").engine_value()["structural_tag"])["format"]["tags"]
    for backend in ("guidance", "auto", ""):
        with pytest.raises(ApiError):
            check(new, backend)


@pytest.mark.parametrize(
    ("constraint", "param"),
    [
        (Constraint("structural_tag", "{", "response_format"), "response_format"),
        (Constraint("structural_tag", "[]", "response_format"), "response_format"),
        (tag(structures=[], triggers=["<"]), "response_format.structures"),
        (tag(structures=[STRUCTURE], triggers=[]), "response_format.triggers"),
        (tag(structures=[STRUCTURE], triggers=["<g"]), "response_format.structures[0].begin"),
        (tag(structures=[{**STRUCTURE, "schema": {"not": {}}}], triggers=["<"]),
         "response_format.structures[0].schema.not"),
        (tag(structures=[{"begin": "<", "end": ">"}], triggers=["<"]), "response_format.structures[0].schema"),
        (tag(type="x"), "response_format.type"),
        (tag(type="structural_tag"), "response_format.format.type"),
        (tag(type="structural_tag", format={"type": "qwen"}), "response_format.format.type"),
        (tag(type="structural_tag", format={"type": "json_schema"}), "response_format.format.json_schema"),
        (tag(type="structural_tag", format={"type": "json_schema", "json_schema": {"if": {}, "then": {}}}),
         "response_format.format.json_schema.if"),
        (tag(type="structural_tag", format={"type": "sequence", "elements": [{"type": "tag"}]}),
         "response_format.format.elements[0].begin"),
        (tag(type="structural_tag", format={"type": "any_text", "more": 1}), "response_format.format.more"),
        (tag(type="structural_tag", format={"type": "const_string", "value": 1}), "response_format.format.value"),
    ],
)  # fmt: skip
def test_refused_structural_tags(constraint: Constraint, param: str) -> None:
    with pytest.raises(ApiError) as error:
        check(constraint, "xgrammar")
    assert error.value.param == param


@pytest.mark.parametrize(
    ("kind", "value", "good", "bad"),
    [
        ("choice", ["yes", "no"], "yes", "yes."),
        ("regex", "[a-z]+", "abc", "abc1"),
        ("json_object", True, '{"a": 1}', "[1]"),
        ("json", SCHEMA, '{"a": true}', '{"a": 1}'),
        ("json", SCHEMA, " {}\n", '{"a": true'),
        ("json", {"type": "number"}, "1e999", "NaN"),
        ("json", {"type": "string", "format": "date"}, '"2024-02-29"', '"2023-02-29"'),
        ("json", {"type": "array", "items": [{"type": "null"}]}, "[null, 1]", "[1]"),
        ("json", True, "1", "{"),
        ("json", {"type": "integer"}, "1" * 400, "1.5"),
    ],
)  # fmt: skip
def test_violation(kind: Any, value: Any, good: str, bad: str) -> None:
    constraint = Constraint(kind, value, "p")
    assert violation(constraint, good) is None
    assert violation(constraint, bad)


def test_violation_names_the_place() -> None:
    schema = {"properties": {"a": {"items": {"type": "null"}}}}
    assert str(violation(Constraint("json", schema, "p"), '{"a": [null, 1]}')).startswith("at $.a[1]: ")


def test_violation_of_an_answer_that_is_no_unicode() -> None:
    assert violation(Constraint("json", {"type": "string"}, "p"), '"\\ud800"')
    assert violation(Constraint("grammar", 'root ::= "a"', "p"), "b") is None
