"""Two questions about a schema that need its `$ref`s: can every answer end, and are branches disjoint.

Both are answered conservatively: "ends" and "disjoint" are said only when proved.
"""

import json
from typing import Any

from gateway.translate.schema_keywords import ALL_TYPES, CONTAINERS
from gateway.translate.schema_walk import Document, Path, children


def endless(document: Document) -> Path | None:
    """A path to a schema that only endless values satisfy (mandatory recursion), or None.

    Only schemas that an answer can reach count. The engine would start on such a value and never
    come to its end.
    """
    reachable = _reachable(document)
    ends: set[Path] = {path for path in reachable if isinstance(document.schemas[path], bool)}
    growing = True
    while growing:
        growing = False
        for path in reversed(reachable):  # inner schemas first, so that a pass settles all but loops
            if path not in ends and _ends(document, path, ends):
                ends.add(path)
                growing = True
    stuck = [path for path in reachable if path not in ends]
    # The `$ref` that closes the loop says more than the schemas around it.
    return max(stuck, key=lambda path: _closes(document, path), default=None)


def _closes(document: Document, path: Path) -> tuple[bool, bool, int]:
    """How well the schema shows the loop: its `$ref` leads around itself, it has one, it is deep inside."""
    ref = document.schemas[path].get("$ref")
    target = document.target(path, ref) if ref else None
    return target is not None and path[: len(target)] == target, ref is not None, len(path)


def _reachable(document: Document) -> list[Path]:
    found: dict[Path, None] = {}
    pending: list[Path] = [()]
    while pending:
        path = pending.pop()
        if path in found:
            continue
        found[path] = None
        schema = document.schemas[path]
        if isinstance(schema, dict):
            pending += [(*path, *step) for step, _ in children(schema) if step[0] not in CONTAINERS]
            if "$ref" in schema:
                pending.append(document.target(path, schema["$ref"]))
    return list(found)


def _ends(document: Document, path: Path, ends: set[Path]) -> bool:
    schema = document.schemas[path]
    if "const" in schema or "enum" in schema:
        return True
    if "$ref" in schema and document.target(path, schema["$ref"]) not in ends:
        return False
    if not all((*path, "allOf", i) in ends for i in range(len(schema.get("allOf", ())))):
        return False
    for key in ("anyOf", "oneOf"):
        if key in schema and not any((*path, key, i) in ends for i in range(len(schema[key]))):
            return False
    types = _types_of_keyword(schema)
    if set(types) - {"array", "object"}:
        return True
    return ("array" in types and _array_ends(schema, path, ends)) or (
        "object" in types and _object_ends(schema, path, ends)
    )


def _array_ends(schema: dict[str, Any], path: Path, ends: set[Path]) -> bool:
    needed = schema.get("minItems", 0)
    tuple_key = "prefixItems" if "prefixItems" in schema else "items"
    prefix = schema.get(tuple_key) if isinstance(schema.get(tuple_key), list) else []
    rest = "additionalItems" if tuple_key == "items" and prefix else "items"
    return all((*path, tuple_key, i) in ends for i in range(min(needed, len(prefix or ())))) and (
        needed <= len(prefix or ()) or rest not in schema or (*path, rest) in ends
    )


def _object_ends(schema: dict[str, Any], path: Path, ends: set[Path]) -> bool:
    declared = schema.get("properties", {})
    rest_ends = "additionalProperties" not in schema or (*path, "additionalProperties") in ends
    required = schema.get("required", ())
    if not all((*path, "properties", name) in ends if name in declared else rest_ends for name in required):
        return False
    some_member = (
        rest_ends
        or any((*path, "properties", name) in ends for name in declared)
        or any((*path, "patternProperties", p) in ends for p in schema.get("patternProperties", ()))
    )
    return schema.get("minProperties", 0) <= len(required) or some_member


def disjoint(document: Document, one: Path, other: Path) -> bool:
    """Is it proved that no value satisfies both schemas?"""
    types, other_types = _types(document, one, 0), _types(document, other, 0)
    if not types & other_types:
        return True
    literals, other_literals = _literals(document, one), _literals(document, other)
    if literals is not None and other_literals is not None:
        return not literals & other_literals
    if types & other_types != {"object"}:
        return False
    first, second = document.follow(one), document.follow(other)
    shared = set(_required(document, first)) & set(_required(document, second))
    for name in shared:
        a, b = (*first, "properties", name), (*second, "properties", name)
        if a in document.schemas and b in document.schemas:
            values, other_values = _literals(document, a), _literals(document, b)
            if values is not None and other_values is not None and not values & other_values:
                return True
    return False


def _required(document: Document, path: Path) -> list[str]:
    schema = document.schemas[path]
    return schema.get("required", []) if isinstance(schema, dict) else []


def _types_of_keyword(schema: dict[str, Any]) -> tuple[str, ...]:
    types = schema.get("type", ALL_TYPES)
    types = (types,) if isinstance(types, str) else types
    return tuple("number" if name == "integer" else name for name in types)


def _types(document: Document, path: Path, depth: int) -> set[str]:
    """The types that values of the schema can have (a superset); integers count as numbers."""
    schema = document.schemas[path]
    if schema is False:
        return set()
    if schema is True or depth > 16:
        return set(ALL_TYPES)
    types = set(_types_of_keyword(schema))
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if values is not None:
        types &= {_type_of(value) for value in values}
    if "$ref" in schema:
        types &= _types(document, document.target(path, schema["$ref"]), depth + 1)
    for index in range(len(schema.get("allOf", ()))):
        types &= _types(document, (*path, "allOf", index), depth + 1)
    for key in ("anyOf", "oneOf"):
        if key in schema:
            branches = (_types(document, (*path, key, i), depth + 1) for i in range(len(schema[key])))
            types &= set().union(*branches)
    return types


def _type_of(value: Any) -> str:
    if value is None:
        return "null"
    names = {bool: "boolean", str: "string", list: "array", dict: "object"}
    return names.get(type(value), "number")


def _literals(document: Document, path: Path) -> set[str] | None:
    """The values of `const` or `enum`, as canonical JSON; None where the schema has neither."""
    schema = document.schemas[document.follow(path)]
    if not isinstance(schema, dict):
        return None
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    return None if values is None else {canonical(value) for value in values}


def canonical(value: Any) -> str:
    """JSON text that is equal for equal JSON values: 1 and 1.0 are one number, key order is none."""
    return json.dumps(_plain(value), sort_keys=True)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value
