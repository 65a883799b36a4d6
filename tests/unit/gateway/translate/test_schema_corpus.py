"""Every schema of the corpus and every shared case: enforced or refused with its place; enforced ones really are.

"Really" is tried on the engine's own library: its grammar of the rewritten schema is walked at random, and
what comes out is validated against the client's schema.
"""

import json
import random
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from llguidance import LLMatcher

from gateway.openai.errors import ApiError
from gateway.translate.schema_check import check, violation
from gateway.translate.structured import FIELDS, Constraint, constraint_of
from tests.data.schemas import ACCEPTED_BY_XGRAMMAR, PLACE, REFUSED_BY_XGRAMMAR, Case, load_schemas
from tests.support.places import is_near
from tests.support.walk import json_grammar, walk

CASES = load_schemas()
ENFORCED = [case for case in CASES if case.expect == "enforced"]
REFUSED = [case for case in CASES if case.expect == "refused"]
SHARED = [
    json.loads(line)
    for line in (Path(__file__).parents[3] / "data" / "structured_output.jsonl").read_text("utf-8").splitlines()
]
WALKS = 12


def by_id(cases: list[Any]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases, ids=lambda case: case["id"] if isinstance(case, dict) else case.id)


def constraint(case: Case) -> Constraint:
    return Constraint("json", case.schema, PLACE)


def obeys(schema: Any, text: str) -> bool:
    return jsonschema_rs.validator_for(schema, validate_formats=True).is_valid(json.loads(text))


def test_there_are_enough_schemas() -> None:
    assert len(ENFORCED) >= 200
    assert len(REFUSED) >= 100


@by_id(ENFORCED)
def test_an_enforced_schema_yields_only_obeying_answers(case: Case) -> None:
    checked = check(constraint(case), "guidance")
    grammar = json_grammar(checked.engine_value()["json"])
    rng = random.Random(case.id)
    ended = 0
    for _ in range(WALKS):
        answer, why = walk(grammar, rng, case.max_tokens)
        assert why == "stop" or (why == "length" and not case.bounded), (why, answer)
        if why == "stop":
            ended += 1
            assert violation(checked, answer.decode()) is None
    assert ended or not case.bounded


@by_id(REFUSED)
def test_a_refused_schema_is_refused_with_its_place(case: Case) -> None:
    with pytest.raises(ApiError) as error:
        check(constraint(case), "guidance")
    assert error.value.status == 400
    assert case.param is not None
    assert is_near(error.value.param, PLACE + case.param), error.value.param
    assert len(error.value.message) < 600


def test_what_we_refuse_beyond_the_library_has_a_reason() -> None:
    """llguidance accepts these as the client wrote them; each is a known leak, an endless answer or a limit of ours."""
    beyond = {
        case.id
        for case in REFUSED
        if isinstance(case.schema, dict)
        and not LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(json.dumps(case.schema)))
    }
    assert beyond == {
        # no JSON Schema of its draft, which the library does not look at
        "bad-definitions", "bad-exclusive-in-newest-draft", "bad-required-repeated",
        # keywords that it takes for unknown ones, or that would change its own working
        "draft-3-disallow", "draft-3-divisible", "draft-3-extends", "x-guidance", "x-guidance-separator",
        "additional-items-in-newest", "prefix-items-in-draft-7", "const-in-draft-4", "content-encoding-in-draft-7",
        # endless answers
        "ref-itself", "ref-loop", "ref-property-to-itself", "recursion-mandatory", "recursion-mandatory-array",
        "recursion-mandatory-all-of", "recursion-trap-in-union",
        # references that it follows and others do not
        "ref-nested-id", "ref-nested-id-draft-4", "ref-to-map", "ref-to-value",
        # leaks
        "min-properties-of-map", "pattern-properties-open", "format-named-unknown", "const-beyond-double",
        "enum-beyond-double", "const-huge", "integer-between-doubles", "pattern-posix-class", "pattern-flags",
        # more than its limits, which show only when the grammar is used
        "items-too-many", "multiples-too-large", "too-many-optional",
        # limits of ours
        "items-too-many-needed", "enum-too-long", "name-too-long", "pattern-too-long",
        "additional-properties-beside-long-name",
    }  # fmt: skip


@pytest.mark.parametrize("backend", ["xgrammar", "auto", ""])
@by_id(CASES)
def test_backends_that_fail_open_get_only_what_they_enforce(case: Case, backend: str) -> None:
    refused = case.id in REFUSED_BY_XGRAMMAR or case.expect == "refused"
    if backend == "xgrammar" and case.id in ACCEPTED_BY_XGRAMMAR:
        refused = False
    if not refused:
        check(constraint(case), backend)
        return
    with pytest.raises(ApiError) as error:
        check(constraint(case), backend)
    assert error.value.param is not None
    assert error.value.param.startswith(PLACE)


@by_id([case for case in ENFORCED if case.id not in REFUSED_BY_XGRAMMAR])
def test_what_either_backend_may_get_holds_on_guidance(case: Case) -> None:
    checked = check(constraint(case), "auto")
    grammar = json_grammar(checked.engine_value()["json"])
    rng = random.Random(case.id)
    for _ in range(3):
        answer, why = walk(grammar, rng, case.max_tokens)
        assert why != "dead"
        if why == "stop":
            assert violation(checked, answer.decode()) is None


@by_id(SHARED)
def test_shared_cases(case: dict[str, Any]) -> None:
    request = case["request"]
    param = None
    try:
        found = constraint_of({name: request.get(name) for name in FIELDS})
        checked = check(found, "guidance") if found else None
        outcome = "enforced" if found else "accepted_unconstrained"
    except ApiError as error:
        outcome, param, checked = "refused", error.param, None
    assert outcome == case["expect"] or outcome in case.get("also_ok", ())
    if outcome == "refused" and case["param"]:
        assert any(is_near(param, place) for place in [case["param"], *case.get("param_also", ())]), param
    if checked is not None and checked.kind == "json":
        grammar = json_grammar(checked.engine_value()["json"])
        rng = random.Random(case["id"])
        for _ in range(WALKS):
            answer, why = walk(grammar, rng, 400)
            assert why != "dead"
            if why == "stop":
                assert obeys(case["check"].get("schema", checked.value), answer.decode())
                assert violation(checked, answer.decode()) is None
