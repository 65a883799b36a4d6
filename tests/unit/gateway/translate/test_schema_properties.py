"""Any schema at all: the check neither crashes nor points elsewhere, and what it lets through is obeyed."""

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.openai.errors import ApiError
from gateway.translate.schema_check import check, violation
from gateway.translate.schema_keywords import DRAFTS, KNOWN, LIST_OF_SCHEMAS, MAP_OF_SCHEMAS, ONE_SCHEMA
from gateway.translate.structured import Constraint
from tests.support.walk import json_grammar, walk

PLACE = "response_format.json_schema.schema"

names = st.sampled_from(["a", "b", "ab", "a/b", 'q"', "é", "k1"])
values = st.sampled_from([None, True, False, 0, 1, -3, 2.5, "a", "", "x\ny", [1], {"a": 1}, {}, [], 1.0, "ab"])
counts = st.integers(0, 3)
numbers = st.sampled_from([-5, -1, 0, 1, 2.5, 7, 0.1, 100])
patterns = st.sampled_from(
    ["^a", "b$", "^[a-c]{1,3}$", "a|b", r"^\d+$", '^[^"]{1,4}$', r"^\w*$", ".", "^k[0-9]$", r"^\S+$", "^(?:a|bc){1,2}$"]
)
types = st.sampled_from(["string", "integer", "number", "object", "array", "null", "boolean"])
references = st.sampled_from(["#", "#/$defs/one", "#/$defs/two", "#/properties/a"])
leaves = st.one_of(
    st.sampled_from([True, {}, {"type": "null"}, {"type": "boolean"}, {"type": "integer", "minimum": 0, "maximum": 9}]),
    st.builds(lambda value: {"const": value}, values),
    st.builds(lambda ref: {"$ref": ref}, references),
)


def nodes(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """One schema with a few keywords that go together more often than not."""
    lists = st.lists(inner, min_size=1, max_size=3)
    string = {
        "type": st.sampled_from(["string", ["string", "null"]]), "minLength": counts, "maxLength": st.integers(0, 6),
        "pattern": patterns, "format": st.sampled_from(["date", "time", "uuid", "ipv4", "email", "hostname"]),
    }  # fmt: skip
    number = {
        "type": st.sampled_from(["integer", "number", ["integer", "string"]]), "minimum": numbers, "maximum": numbers,
        "exclusiveMinimum": numbers, "exclusiveMaximum": numbers, "multipleOf": st.sampled_from([2, 3, 0.5, 0.1, 0.25]),
    }  # fmt: skip
    array = {
        "type": st.sampled_from(["array", ["array", "object"]]), "items": inner, "prefixItems": lists,
        "minItems": counts, "maxItems": counts,
    }  # fmt: skip
    obj = {
        "type": st.just("object"), "properties": st.dictionaries(names, inner, max_size=3),
        "required": st.lists(names, max_size=2, unique=True), "additionalProperties": st.one_of(st.booleans(), inner),
        "patternProperties": st.dictionaries(patterns, inner, max_size=1), "minProperties": counts,
        "maxProperties": counts,
    }  # fmt: skip
    combined = {
        "type": types, "anyOf": lists, "allOf": lists, "oneOf": lists, "$ref": references,
        "enum": st.lists(values, min_size=1, max_size=4), "not": inner, "if": inner, "title": st.just("t"),
    }  # fmt: skip
    kinds = [st.fixed_dictionaries({}, optional=keywords) for keywords in (string, number, array, obj, combined)]
    both = st.builds(lambda one, two: {**one, **two}, kinds[3], kinds[4])
    return st.one_of(*kinds, both)


schemas = st.recursive(leaves, nodes, max_leaves=6)
roots = st.builds(
    lambda root, one, two: {**(root if isinstance(root, dict) else {}), "$defs": {"one": one, "two": two}},
    schemas, schemas, leaves,
)  # fmt: skip
quiet = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


def judge(constraint: Constraint, backend: str) -> Constraint | None:
    """The checked constraint, or None for a refusal that points into it; anything else fails the test."""
    refusal = None
    try:
        return check(constraint, backend)
    except ApiError as error:
        refusal = error
    assert refusal.status == 400
    assert refusal.param is not None
    assert refusal.param.startswith(constraint.place)
    return None


@quiet
@given(roots, st.integers(0, 2**32))
def test_what_passes_is_obeyed(schema: dict[str, Any], seed: int) -> None:
    constraint = Constraint("json", schema, PLACE)
    checked = judge(constraint, "guidance")
    if checked is None:
        return
    grammar = json_grammar(checked.engine_value()["json"])
    for turn in range(4):
        answer, why = walk(grammar, random.Random(seed + turn), 300)
        assert why != "dead", answer
        if why == "stop":
            assert violation(constraint, answer.decode()) is None


@pytest.mark.parametrize("draft", [*sorted(DRAFTS), None])
@pytest.mark.parametrize("key", sorted(ONE_SCHEMA | LIST_OF_SCHEMAS | MAP_OF_SCHEMAS))
def test_what_is_no_schema_is_refused_wherever_it_stands(key: str, draft: str | None) -> None:
    """Also where the draft does not know the keyword, so that its meta-schema says nothing."""
    wrong = {"allOf": None}
    value: Any = wrong if key in ONE_SCHEMA else [wrong] if key in LIST_OF_SCHEMAS else {"a": wrong}
    schema = {key: value} | ({"$schema": draft} if draft else {})
    for backend in ("guidance", "xgrammar", "auto"):
        assert judge(Constraint("json", schema, PLACE), backend) is None


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**60), 2**60), st.floats(allow_nan=False), st.text(max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.one_of(
                st.text(max_size=8),
                st.sampled_from(sorted(KNOWN)),
            ),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=20,
)


@pytest.mark.parametrize("backend", ["guidance", "xgrammar", "auto"])
@quiet
@given(st.one_of(st.dictionaries(st.text(max_size=5), json_values), json_values.filter(lambda v: isinstance(v, dict))))
def test_any_object_is_judged(backend: str, schema: Any) -> None:
    judge(Constraint("json", schema, PLACE), backend)


@quiet
@given(roots, st.sampled_from(["xgrammar", "auto"]))
def test_the_rewritten_schema_is_stable(schema: dict[str, Any], backend: str) -> None:
    """Order and names of members survive, and the client's schema is left as it was."""
    before = repr(schema)
    checked = judge(Constraint("json", schema, PLACE), backend)
    assert repr(schema) == before
    if checked is None:
        return
    rewritten = checked.engine_value()["json"]
    assert list(rewritten.get("properties", ())) == list(schema.get("properties", ()))
