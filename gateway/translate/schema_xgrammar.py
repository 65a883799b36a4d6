"""xgrammar 0.2.8: a short list of what it enforces; all else is refused.

xgrammar fails open: it compiles `not`, `if`, `anyOf` beside other keywords, keywords without `type` and
more without a word, and then does not enforce them. So this is a list of what was seen to hold when its
grammars were walked at random, and of the rewrites that make more of it hold:
- with `minLength` or `maxLength` it writes control characters into the JSON text as they are: the lengths
  become a pattern, which it matches against the raw text, escapes included;
- beside `enum` and `const` it enforces nothing else: values that break the other keywords are taken out.
"""

import re
from decimal import Decimal
from typing import Any

import jsonschema_rs

from gateway.translate import patterns
from gateway.translate.schema_keywords import ALL_TYPES, ASSERTIONS, TYPE_OF_ASSERTION
from gateway.translate.schema_normal import EXACT
from gateway.translate.schema_reason import disjoint
from gateway.translate.schema_walk import Document, Path, Schema, refuse

_RAW_CHARACTER = r'(?:[^"\\\x00-\x1f\x7f]|\\["\\/bfnrt])'
_APPLICATORS = ("$ref", "allOf", "anyOf", "oneOf")


def check(document: Document) -> None:
    """Refuse whatever xgrammar does not enforce, with its place."""
    for path, schema in document.schemas.items():
        if schema is False and path[-1] not in ("additionalProperties", "items"):
            raise refuse(document.place, path, "`false` is not supported by the engine's backend, xgrammar; remove it.")
        if isinstance(schema, dict):
            _check_schema(document, path, schema)


def _check_schema(document: Document, path: Path, schema: Schema) -> None:
    def no(key: str, sentence: str) -> None:
        if key in schema:
            raise refuse(document.place, (*path, key), f"`{key}` {sentence} (the engine's backend is xgrammar).")

    asserted = [key for key in schema if key in ASSERTIONS]
    if "const" in schema or "enum" in schema:
        for key in (*_APPLICATORS, "properties", "items", "prefixItems", "patternProperties", "additionalProperties"):
            no(key, "is not enforced beside enum or const; remove it")
        key = "const" if "const" in schema else "enum"
        if not _allowed_values(schema):
            raise refuse(document.place, (*path, key), "no value here satisfies the other keywords.")
        return
    for key in _APPLICATORS:
        if key in schema and len(asserted) > 1:
            raise refuse(
                document.place, (*path, key), f"`{key}` is enforced only alone (the engine's backend is xgrammar); "
                "move the other keywords into it."
            )  # fmt: skip
    if len(schema.get("allOf", ())) > 1:
        no("allOf", "is enforced only with one branch; merge the branches")
    count = len(schema.get("oneOf", ()))
    inside = (*path, "oneOf")
    if any(not disjoint(document, (*inside, one), (*inside, two)) for one in range(count) for two in range(one)):
        no("oneOf", "is enforced only when the branches exclude each other provably; use anyOf if overlap does no harm")
    if not re.fullmatch(r"#(?:/(?![0-9]+(?:/|$))[!-$&-.0-}]+)*", schema.get("$ref", "#")):
        no("$ref", "must lead over plain names, not list indexes or escaped names; use $defs")
    if "type" not in schema:
        for key in TYPE_OF_ASSERTION:
            no(key, "is not enforced without `type` beside it; add the type")
    no("patternProperties", "is not enforced in every combination; use properties")
    _check_order(document, path, schema)
    _check_string(document, path, schema)
    _check_number(document, path, schema)
    _check_array_and_object(document, path, schema)


def _check_order(document: Document, path: Path, schema: Schema) -> None:
    for least, most in (
        ("minimum", "maximum"), ("minimum", "exclusiveMaximum"), ("exclusiveMinimum", "maximum"),
        ("exclusiveMinimum", "exclusiveMaximum"), ("minLength", "maxLength"), ("minItems", "maxItems"),
        ("minProperties", "maxProperties"),
    ):  # fmt: skip
        if least in schema and most in schema and schema[least] > schema[most]:
            raise refuse(document.place, (*path, least), f"`{least}` is above `{most}`; no answer can satisfy that.")


def _check_string(document: Document, path: Path, schema: Schema) -> None:
    lengths = [key for key in ("minLength", "maxLength") if key in schema]
    several = [key for key in ("pattern", "format") if key in schema] + lengths[:1]
    if len(several) > 1:
        raise refuse(
            document.place, (*path, several[1]), f"`{several[1]}` is not enforced beside `{several[0]}` (the engine's "
            "backend is xgrammar); put both into one pattern."
        )  # fmt: skip
    if schema.get("format") == "ipv6":
        raise refuse(document.place, (*path, "format"), "the backend, xgrammar, lets octets such as 05 through here.")
    if "pattern" in schema and not patterns.parse(schema["pattern"]).raw_safe:
        raise refuse(
            document.place, (*path, "pattern"), "the engine's backend, xgrammar, is sure only of patterns of plain "
            "ASCII characters and positive classes, with no alternative that is empty or ends in a repeat."
        )  # fmt: skip


def _check_number(document: Document, path: Path, schema: Schema) -> None:
    for key in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
        value = schema.get(key, 0)
        if isinstance(value, bool) or abs(value) > EXACT or Decimal(str(value)) % Decimal("0.000001"):
            raise refuse(
                document.place, (*path, key), f"`{key}` must be within ±2^53 and have at most six decimals (the "
                "engine's backend is xgrammar)."
            )  # fmt: skip
        if "integer" in _types(schema) and value != int(value):
            raise refuse(document.place, (*path, key), f"`{key}` must be a whole number beside type integer.")
    if "multipleOf" in schema:
        raise refuse(document.place, (*path, "multipleOf"), "`multipleOf` is not enforced by the backend, xgrammar.")


def _check_array_and_object(document: Document, path: Path, schema: Schema) -> None:
    if isinstance(schema.get("items"), list):
        raise refuse(document.place, (*path, "items"), "write the list as prefixItems (draft 2020-12).")
    if schema.get("maxItems", 2**31) < len(schema.get("prefixItems", ())):
        raise refuse(document.place, (*path, "maxItems"), "`maxItems` must not be below the number of prefixItems.")
    declared = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in declared:
            raise refuse(
                document.place, (*path, "required"), f"{name[:60]!r} is not listed in properties, so the engine's "
                "backend, xgrammar, would leave it out; declare it."
            )  # fmt: skip
    further = schema.get("additionalProperties")
    if declared and further not in (None, False):
        raise refuse(
            document.place, (*path, "additionalProperties"), "beside properties, further members are not held apart "
            "from the declared ones by the engine's backend, xgrammar; set it to false."
        )  # fmt: skip
    if schema.get("minProperties", 0) - len(schema.get("required", ())) > 1 and further is not False:
        raise refuse(document.place, (*path, "minProperties"), "a repeated name would count twice; lower it.")


def edit(path: Path, schema: Schema) -> None:
    """Rewrite one schema for xgrammar (see the module's list)."""
    if "const" in schema or "enum" in schema:
        allowed = _allowed_values(schema)
        for key in [key for key in schema if key in ASSERTIONS]:
            del schema[key]
        schema["enum"] = allowed
    elif "pattern" in schema:
        schema["pattern"] = patterns.parse(schema["pattern"]).text
    elif "minLength" in schema or "maxLength" in schema:
        least, most = schema.pop("minLength", 0), schema.pop("maxLength", "")
        schema["pattern"] = f"^{_RAW_CHARACTER}{{{least},{most}}}$"


def _types(schema: Schema) -> tuple[str, ...]:
    types = schema.get("type", ALL_TYPES)
    return (types,) if isinstance(types, str) else tuple(types)


def _allowed_values(schema: Schema) -> list[Any]:
    """The values of enum and const that the schema's other keywords (no applicators) allow."""
    own = {key: value for key, value in schema.items() if key in ASSERTIONS}
    validator = jsonschema_rs.Draft202012Validator(own, validate_formats=True, offline=True)
    values = [schema["const"]] if "const" in schema else schema["enum"]
    return [value for value in values if validator.is_valid(value)]
