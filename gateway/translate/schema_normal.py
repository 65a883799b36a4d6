"""What is refused or rewritten in a JSON Schema whichever backend enforces it.

`check` raises for what no backend enforces, with its place. `rebuild` writes the schema out again for
the engine. A rewrite keeps the meaning or narrows it (an answer that obeys the rewritten schema obeys
the client's), and keeps the order of keys, since the order of `properties` is the order of the answer's
members.
"""

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any
from urllib.parse import quote

from gateway.translate import formats, patterns
from gateway.translate.schema_keywords import (
    ALL_TYPES,
    BOUNDS,
    COUNTS,
    DRAFTS,
    FIRST_AND_LAST_DRAFT,
    NEWEST,
    REFUSED,
)
from gateway.translate.schema_reason import disjoint, endless
from gateway.translate.schema_walk import Document, Path, Schema, refuse

EXACT = 2**53
"""Integers up to here are exact as doubles, which is how the engines keep numbers."""
_LARGEST_BOUND = 2**63 - 1024
"""The largest double that fits int64, in which guidance writes integer bounds."""

_INTEGER_FORMATS = {
    "int8": (-(2**7), 2**7 - 1),
    "uint8": (0, 2**8 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "uint16": (0, 2**16 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "uint32": (0, 2**32 - 1),
    "int64": (-_LARGEST_BOUND, _LARGEST_BOUND),
    "uint64": (0, _LARGEST_BOUND),
}
"""OpenAPI's formats for integers, as bounds. The 64-bit ones lose their outermost 1,024 values."""

Edit = Callable[[Path, Schema], None]
"""Changes one rebuilt schema in place; the path is where it stands in the client's schema."""


def draft_of(root: Schema) -> int:
    """The draft that `$schema` names; the newest where it names none that we know."""
    url = root.get("$schema")
    return DRAFTS.get(url.rstrip("#"), NEWEST) if isinstance(url, str) else NEWEST


def check(document: Document, draft: int) -> None:
    """Refuse what no backend enforces. The schema is valid against its meta-schema already."""
    for path, schema in document.schemas.items():
        if isinstance(schema, dict):
            _check_keywords(document, path, schema, draft)
            _check_numbers(document, path, schema)
            _check_pattern(document, path, schema)
    _check_multiples(document)
    loop = endless(document)
    if loop is not None:
        schema = document.schemas[loop]
        where = (*loop, "$ref") if "$ref" in schema else loop
        raise refuse(
            document.place, where, "only an endless answer satisfies this: it must contain itself again and again. "
            "Make the recursive part optional, or give it an alternative with anyOf."
        )  # fmt: skip


def _check_keywords(document: Document, path: Path, schema: Schema, draft: int) -> None:
    for key, value in schema.items():
        if key in REFUSED and not _means_nothing(schema, key, value):
            raise refuse(document.place, (*path, key), f"`{key}` cannot be enforced; {REFUSED[key]}.")
        if key in FIRST_AND_LAST_DRAFT and not _means_nothing(schema, key, value):
            first, last = FIRST_AND_LAST_DRAFT[key]
            if not first <= draft <= last:
                raise refuse(
                    document.place, (*path, key), f"`{key}` means nothing in the draft that this schema is written "
                    "in; name another draft in $schema."
                )  # fmt: skip
        if (key == "$id" or (key == "id" and draft == 4)) and path and value:
            raise refuse(
                document.place, (*path, key), "a schema with its own id inside another is not supported; move it "
                "to $defs and refer to it as '#/$defs/NAME'."
            )  # fmt: skip
        if key in ("contentEncoding", "contentMediaType") and draft in (6, 7):
            raise refuse(
                document.place, (*path, key), f"`{key}` cannot be enforced, and draft {draft} lets a validator "
                "assert it; remove it."
            )  # fmt: skip
    if schema.get("enum") == []:
        raise refuse(document.place, (*path, "enum"), "an empty list allows no value.")
    name = schema.get("format")
    if name is not None and _can_be(schema, "string") and name not in formats.ENFORCED:
        known = ", ".join(sorted(formats.ENFORCED))
        raise refuse(
            document.place, (*path, "format"), f"the format {str(name)[:60]!r} cannot be enforced (these can: "
            f"{known}); remove it, or write it as a pattern."
        )  # fmt: skip


def _check_numbers(document: Document, path: Path, schema: Schema) -> None:
    for key in BOUNDS & schema.keys():
        value = schema[key]
        if not isinstance(value, bool) and abs(value) > 2**63:
            raise refuse(document.place, (*path, key), "a bound beyond 64-bit integers cannot be held; remove it.")
    for key in ("const", "enum"):
        if key in schema and not _exact(schema[key]):
            raise refuse(
                document.place, (*path, key), "an integer above 2^53 that is no double cannot be written exactly by "
                "the engine; make it a string."
            )  # fmt: skip


def _exact(value: Any) -> bool:
    if isinstance(value, list):
        return all(_exact(item) for item in value)
    if isinstance(value, dict):
        return all(_exact(item) for item in value.values())
    if isinstance(value, int | float) and not isinstance(value, bool):
        return abs(value) < 2**63 and float(value) == value
    return True


def _check_pattern(document: Document, path: Path, schema: Schema) -> None:
    named: list[tuple[Path, str]] = [(("pattern",), schema["pattern"])] if "pattern" in schema else []
    named += [(("patternProperties", p), p) for p in schema.get("patternProperties", ())]
    for where, pattern in named:
        try:
            patterns.parse(pattern)
        except patterns.PatternError as error:
            raise refuse(document.place, (*path, *where), f"{error}.") from None


def _check_multiples(document: Document) -> None:
    """llguidance multiplies the multiples that meet in one number in 32 bits without looking."""
    met: set[Decimal] = set()
    for path, schema in document.schemas.items():
        if isinstance(schema, dict) and "multipleOf" in schema:
            met.add(Decimal(str(schema["multipleOf"])))
            scale = 10 ** max(_decimals(multiple) for multiple in met)
            if len(met) > 1 and math.lcm(*(int(multiple * scale) for multiple in met)) > 2**31:
                raise refuse(
                    document.place, (*path, "multipleOf"), "together with the other multipleOf in this schema it "
                    "cannot be enforced; use one step, or smaller ones."
                )  # fmt: skip


def _decimals(number: Decimal) -> int:
    exponent = number.normalize().as_tuple().exponent
    return max(0, -exponent) if isinstance(exponent, int) else 0


def rebuild(document: Document, *edits: Edit) -> Schema:
    """The schema in the form for the engine: the common rewrites, then the backend's `edits`."""
    targets = {
        document.target(path, schema["$ref"])
        for path, schema in document.schemas.items()
        if isinstance(schema, dict) and "$ref" in schema
    }

    def common(path: Path, schema: Schema) -> None:
        if path or str(schema.get("$schema", "")).rstrip("#") not in DRAFTS:
            schema.pop("$schema", None)
        for key in ("$id", "id", "$anchor"):
            schema.pop(key, None)
        for key in list(schema):
            if _means_nothing(schema, key, schema[key]):
                del schema[key]
        if "$ref" in schema:
            schema["$ref"] = pointer(document.target(path, schema["$ref"]))
        for key in COUNTS & schema.keys():
            schema[key] = int(schema[key])
        _rewrite_types(schema)
        _rewrite_format(schema)
        _rewrite_numbers(schema)
        inside_one_of = (*path, "oneOf")
        if (
            "oneOf" in schema
            and "anyOf" not in schema
            and not any(target[: len(inside_one_of)] == inside_one_of for target in targets)
            and _all_disjoint(document, inside_one_of, len(schema["oneOf"]))
        ):
            _rename(schema, "oneOf", "anyOf")

    all_edits = (common, *edits)

    def build(value: Any, path: Path) -> Any:
        if isinstance(value, dict):
            built = {key: build(item, (*path, key)) for key, item in value.items()}
            if path in document.schemas:
                for edit in all_edits:
                    edit(path, built)
            return built
        if isinstance(value, list):
            return [build(item, (*path, index)) for index, item in enumerate(value)]
        return value

    rebuilt: Schema = build(document.root, ())
    return rebuilt


def pointer(path: Path) -> str:
    """The `$ref` for a path, as a URI fragment."""
    tokens = (str(step).replace("~", "~0").replace("/", "~1") for step in path)
    return "#" + "".join("/" + quote(token, safe="$&+,;=:@!*()'~-._") for token in tokens)


def _all_disjoint(document: Document, path: Path, count: int) -> bool:
    return all(disjoint(document, (*path, first), (*path, second)) for first in range(count) for second in range(first))


def _rename(schema: Schema, old: str, new: str) -> None:
    items = [(new if key == old else key, value) for key, value in schema.items()]
    schema.clear()
    schema.update(items)


def _can_be(schema: Schema, kind: str) -> bool:
    types = schema.get("type", (*ALL_TYPES, "integer"))
    return kind in ((types,) if isinstance(types, str) else types)


def _means_nothing(schema: Schema, key: str, value: Any) -> bool:
    """Does the keyword, as it stands in this schema, restrict nothing?"""
    if key in ("uniqueItems", "not"):
        return value is False
    if key in ("propertyNames", "unevaluatedItems", "unevaluatedProperties"):
        return value is True or value == {}
    if key in ("dependencies", "dependentRequired", "dependentSchemas", "patternProperties"):
        return bool(value == {})
    if key in ("minContains", "maxContains"):
        return "contains" not in schema
    if key in ("then", "else"):
        return "if" not in schema
    if key == "if":
        return "then" not in schema and "else" not in schema
    if key == "additionalItems":
        return not isinstance(schema.get("items"), list) and "prefixItems" not in schema
    if key == "required":
        return bool(value == [])
    return False


def _rewrite_types(schema: Schema) -> None:
    """guidance stumbles over a fraction where an integer is asked for, also when another way is open."""
    types = schema.get("type")
    if isinstance(types, list) and {"integer", "number"} <= set(types):
        schema["type"] = [name for name in types if name != "integer"]
    elif "enum" in schema and not _can_be(schema, "number"):
        fitting = [value for value in schema["enum"] if not isinstance(value, float) or value.is_integer()]
        schema["enum"] = fitting or schema["enum"]


def _rewrite_format(schema: Schema) -> None:
    """Formats that engines hold too loosely become patterns; formats of numbers become bounds."""
    name = schema.get("format")
    if name is None:
        return
    if not _can_be(schema, "string"):
        # Says nothing about values that are no strings, except by OpenAPI's registry.
        del schema["format"]
        if name in _INTEGER_FORMATS and _can_be(schema, "integer"):
            least, most = _INTEGER_FORMATS[name]
            schema["minimum"] = max(schema.get("minimum", least), least)
            schema["maximum"] = min(schema.get("maximum", most), most)
    elif name in formats.STRICT_PATTERNS and "pattern" not in schema:
        _rename(schema, "format", "pattern")
        schema["pattern"] = formats.STRICT_PATTERNS[name]


def _rewrite_numbers(schema: Schema) -> None:
    if "multipleOf" in schema and _can_be(schema, "number"):
        # Past this the parsed double is no longer the decimal that was written.
        limit = EXACT // 10 ** _decimals(Decimal(str(schema["multipleOf"])))
        schema["minimum"] = max(schema.get("minimum", -limit), -limit)
        schema["maximum"] = min(schema.get("maximum", limit), limit)
    for key in BOUNDS & schema.keys():
        value = schema[key]
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) > EXACT:
            schema[key] = _inner_double(value, upward="inimum" in key)


def _inner_double(value: int, upward: bool) -> int:
    """The nearest integer that is a double and fits int64, on the inner side of a bound."""
    value = max(-_LARGEST_BOUND, min(value, _LARGEST_BOUND))
    near = float(value)
    if upward and near < value:
        near = math.nextafter(near, math.inf)
    if not upward and near > value:
        near = math.nextafter(near, -math.inf)
    return int(near)
