"""Is a constraint one that the engine's backend really enforces, and does an answer obey it.

`check` answers the first question before the request is sent, `violation` the second when a whole answer
is there. Both may be slow or run into a hostile expression, so they run in the child process of
`gateway.checker`, never on the event loop.

Per backend: guidance is asked itself and its leaks are mended (`schema_guidance`); xgrammar fails open,
so a list of what it enforces decides (`schema_xgrammar`); `auto` and unknown engines may use either, so
both must enforce it; of outlines and lm-format-enforcer only what is beyond doubt is let through.
"""

import json
import math
from dataclasses import replace
from typing import Any, Final

import jsonschema_rs
import orjson

from gateway.openai.errors import ApiError, bad_request
from gateway.openai.json_text import loads
from gateway.translate import (
    patterns,
    schema_either,
    schema_guidance,
    schema_normal,
    schema_xgrammar,
    structural_tag,
)
from gateway.translate.schema_keywords import COUNTS, DRAFTS, META_SCHEMA_READS
from gateway.translate.schema_walk import Document, Schema, refuse
from gateway.translate.structured import Constraint, refuse_numbers_beyond_double

MAX_DEPTH: Final = 64
"""Objects and arrays inside each other; vLLM's own limit."""
MAX_SCHEMAS: Final = 5_000
"""Subschemas in one schema; a check takes about 0.1 ms for each."""
MAX_VALUES: Final = 5_000
"""Values in one enum, choices in one choice."""
MAX_ITEMS: Final = 10_000
"""For minItems and maxItems: each counted member is a rule in guidance's grammar, which panics above 65,000."""
MAX_COUNT: Final = 2**31 - 1
"""For every other count: xgrammar holds them in 32 bits."""
MAX_NAME: Final = 1_000
"""Characters of a property's name; a longer one is no name."""

_DRAFT_7: Final = "http://json-schema.org/draft-07/schema#"
_NEWEST: Final = "https://json-schema.org/draft/2020-12/schema"


def check(constraint: Constraint, backend: str) -> Constraint:
    """The constraint with its form for the engine; raises `ApiError` 400 with the place otherwise.

    `backend`: guidance, xgrammar, auto, outlines, lm-format-enforcer, or anything else for "unknown".
    """
    if backend in ("outlines", "lm-format-enforcer"):
        return _check_cautiously(constraint, backend)
    if constraint.kind == "json":
        return _check_schema(constraint, backend)
    if constraint.kind == "structural_tag":
        return _check_structural_tag(constraint, backend)
    if constraint.kind != "json_object":
        _check_text(constraint, backend)
    return constraint


def violation(constraint: Constraint, text: str) -> str | None:
    """Does a finished answer obey the client's constraint? None, or a sentence with the JSON path.

    Formats are asserted. Grammars and structural tags are not judged: nothing here could do it better than the engine.
    """
    if constraint.kind == "choice":
        return None if text in constraint.value else "the answer is none of the choices"
    if constraint.kind == "regex":
        return _regex_violation(constraint.value, text)
    if constraint.kind not in ("json", "json_object"):
        return None
    try:
        # A number that no double can hold is still a number.
        answer = json.loads(text, parse_float=_finite, parse_constant=_no_constant)
    except ValueError as problem:
        return f"the answer is no JSON: {problem}"
    schema = {"type": "object"} if constraint.kind == "json_object" else _schema_as_read(constraint.value)
    try:
        error = next(_validator(schema).iter_errors(answer), None)
    except ValueError as problem:  # a lone surrogate cannot be handed to the validator
        return f"the answer cannot be validated: {problem}"
    if error is None:
        return None
    where = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.instance_path)
    return f"at ${where}: {error.message[:200]}"


def _check_schema(constraint: Constraint, backend: str) -> Constraint:
    place = constraint.place
    root = _schema_as_read(constraint.value)
    if root is False:
        raise bad_request(f"{place}: no answer can satisfy the schema `false`.", place)
    if root is True:
        return replace(constraint, rewritten={})
    _check_depth(root, place)
    _check_meta(root, place)
    document = Document(root, place)
    draft = schema_normal.draft_of(root)
    _check_meta_of_the_rest(document, draft)
    _check_limits(document)
    schema_normal.check(document, draft)
    rules: Any = {"guidance": schema_guidance, "xgrammar": schema_xgrammar}.get(backend, schema_either)
    rules.check(document)
    rebuilt: Schema = _within_64_bits(schema_normal.rebuild(document, rules.edit))
    if backend != "xgrammar":
        schema_guidance.verify(document, rebuilt)
    _check_depth(rebuilt, place)
    return replace(constraint, rewritten=rebuilt)


def _schema_as_read(schema: Any) -> Any:
    """The schema with `$schema` naming the draft that it is read as.

    Without `$schema` it is the newest draft, unless only draft 7 makes it a schema: `items` as a list
    is still what many generators write.
    """
    if not isinstance(schema, dict):
        return schema
    url = schema.get("$schema")
    known = isinstance(url, str) and url.rstrip("#") in DRAFTS
    if known:
        return schema
    plain = {key: value for key, value in schema.items() if key != "$schema"}
    error = _meta_error(plain)
    old = {"$schema": _DRAFT_7, **plain}
    if error is not None and error.instance_path[-1:] == ["items"] and _meta_error(old) is None:
        return old
    return plain


def _meta_error(schema: Any) -> jsonschema_rs.ValidationError | None:
    try:
        jsonschema_rs.meta.validate(schema)
    except jsonschema_rs.ValidationError as error:
        return error
    return None


def _check_meta(root: Schema, place: str) -> None:
    error = _meta_error(root)
    if error is not None:
        raise refuse(place, tuple(error.instance_path), f"this is no JSON Schema: {error.message[:200]}.")


def _check_meta_of_the_rest(document: Document, draft: int) -> None:
    """The same for schemas where the meta-schema of the root does not look."""
    unread = {key for key, (first, last) in META_SCHEMA_READS.items() if not first <= draft <= last}
    # A property of such a name is judged twice, which changes nothing.
    below = [path for path in document.schemas if not unread.isdisjoint(path)]
    for path in [*document.below_unknown, *below]:
        schema = document.schemas[path]
        if isinstance(schema, dict):
            try:
                _check_meta({**schema, "$schema": document.root.get("$schema", _NEWEST)}, "")
            except ApiError as error:
                raise refuse(document.place, path, error.message.partition(": ")[2]) from None


def _check_depth(value: Any, place: str) -> None:
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [
            child
            for item in level
            for child in (item.values() if isinstance(item, dict) else item)
            if isinstance(child, dict | list)
        ]
        if not level:
            return
    raise bad_request(f"{place} is nested too deeply: at most {MAX_DEPTH} levels can be enforced.", place)


def _check_limits(document: Document) -> None:
    if len(document.schemas) > MAX_SCHEMAS:
        raise bad_request(
            f"{document.place} has {len(document.schemas)} subschemas, at most {MAX_SCHEMAS} are checked.",
            document.place,
        )
    for path, schema in document.schemas.items():
        if not isinstance(schema, dict):
            continue
        values = schema.get("enum")
        if isinstance(values, list) and len(values) > MAX_VALUES:
            raise refuse(document.place, (*path, "enum"), f"{len(values)} values; at most {MAX_VALUES} are checked.")
        for key in COUNTS & schema.keys():
            most = MAX_ITEMS if key.endswith("Items") else MAX_COUNT
            if schema[key] > most:
                raise refuse(document.place, (*path, key), f"at most {most} can be counted.")
        names = schema.get("properties")
        if isinstance(names, dict) and any(len(name) > MAX_NAME for name in names):
            raise refuse(document.place, (*path, "properties"), f"there is a name longer than {MAX_NAME} characters.")


def _within_64_bits(value: Any) -> Any:
    """The value with the double in place of a larger integer, as JSON parsers of 64 bits read it.

    Where it would change what an answer may be, `schema_normal` has refused it.
    """
    if isinstance(value, dict):
        return {key: _within_64_bits(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_within_64_bits(item) for item in value]
    return float(value) if isinstance(value, int) and not -(2**63) <= value < 2**63 else value


def _check_text(constraint: Constraint, backend: str) -> None:
    """choice, regex, grammar."""
    place, value = constraint.place, constraint.value
    if constraint.kind == "choice":
        if len(value) > MAX_VALUES:
            raise bad_request(f"{place} has {len(value)} choices, at most {MAX_VALUES} are checked.", place)
        value = json.dumps(value)
    if constraint.kind == "regex" and backend != "guidance":
        _check_pattern(constraint)
    error = schema_guidance.text_error(constraint.kind, value)
    if error is not None:
        raise bad_request(f"{place} cannot be enforced: {error[:300]}", place)


def _check_pattern(constraint: Constraint) -> patterns.Pattern:
    try:
        return patterns.parse(constraint.value)
    except patterns.PatternError as error:
        raise bad_request(f"{constraint.place}: {error}.", constraint.place) from None


def _check_cautiously(constraint: Constraint, backend: str) -> Constraint:
    """outlines and lm-format-enforcer: whether they enforce a schema cannot be asked, so only text is taken."""
    place = constraint.place
    if constraint.kind == "choice":
        return constraint
    if constraint.kind == "regex":
        text = _check_pattern(constraint).text
        if "^" not in (text[:1], text[-1:]) and not text.endswith("$"):
            return constraint
        raise bad_request(f"{place} matches the whole answer; leave out ^ and $.", place)
    raise bad_request(
        f"{place} cannot be enforced: the engine's structured output backend is {backend}, of which only choice and "
        "regex are certain. Serve the model with the backend guidance.",
        place,
    )


def _check_structural_tag(constraint: Constraint, backend: str) -> Constraint:
    """Only xgrammar takes them: guidance refuses the new form and does not enforce the schemas of the old one."""
    place = constraint.place
    if backend != "xgrammar":
        raise bad_request(
            f"{place}: structural tags are enforced by the backend xgrammar only, and the model is served with "
            f"{backend or 'an unknown one'}. Use json_schema, or serve the model with xgrammar.",
            place,
        )
    try:
        tag = loads(constraint.value)
    except ValueError as error:
        raise bad_request(f"{place} is no JSON: {error}.", place) from None
    refuse_numbers_beyond_double(tag, place)
    _check_depth(tag, place)
    checked = structural_tag.check(tag, place, _check_inner)
    return replace(constraint, rewritten=orjson.dumps(checked).decode())


def _check_inner(schema: Any, place: str) -> Any:
    if not isinstance(schema, dict | bool):
        raise bad_request(f"{place} must be a JSON Schema.", place)
    return _check_schema(Constraint("json", schema, place), "xgrammar").rewritten


def _regex_violation(pattern: str, text: str) -> str | None:
    return None if schema_guidance.matches("regex", pattern, text) else "the answer does not match the regex"


def _validator(schema: Any) -> jsonschema_rs.Validator:
    return jsonschema_rs.validator_for(schema, validate_formats=True, offline=True)


def _finite(digits: str) -> float:
    number = float(digits)
    return math.copysign(1.7976931348623157e308, number) if math.isinf(number) else number


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON value")
