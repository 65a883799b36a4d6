"""A parameter's bare text → JSON text, as the tool's schema has it: for formats that write values without types.

A string is taken as it stands, whatever it looks like. Anything else is JSON, or Python's way to write the same
(`True`, `None`, `{'a': 1}`), which templates print too; text that is neither stays a string, so that nothing is lost.
"""

import ast
import json
import math
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, Final

_ALL: Final = frozenset({"string", "number", "integer", "boolean", "object", "array", "null"})
_MAX_LITERAL: Final = 64 * 1024
"""Characters of a Python literal; reading one takes a microsecond for each two of them. A longer one stays a string."""


class ParameterTypes:
    """What types the parameters of one function may have. `schema` is that of its parameters."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._root = schema
        properties = schema.get("properties")
        self._properties: Mapping[str, Any] = properties if isinstance(properties, Mapping) else {}

    def is_string(self, name: str) -> bool:
        """Whether the parameter is a string and nothing else."""
        return self._types(name) == {"string"}

    def to_json(self, name: str, text: str) -> str:
        """The parameter's value as JSON text. Numbers keep all their digits."""
        types = self._types(name)
        if types != {"string"}:
            found = _as_json(text)
            if found is not None and types & found[1]:
                return found[0]
        return json.dumps(text, ensure_ascii=False)

    def _types(self, name: str) -> frozenset[str]:
        schema = self._properties.get(name)
        if schema is None:
            schema = self._root.get("additionalProperties")
        return frozenset(self._types_of(schema, set())) or _ALL

    def _types_of(self, schema: Any, seen: set[str]) -> Iterator[str]:
        """The types that a schema names, in itself or in its alternatives; none where it says nothing. `seen` holds the
        references that were followed already."""
        if not isinstance(schema, Mapping):
            return
        named = schema.get("type")
        if isinstance(named, str | list):
            yield from [named] if isinstance(named, str) else (kind for kind in named if isinstance(kind, str))
            return
        values = schema.get("enum", [schema["const"]] if "const" in schema else [])
        if isinstance(values, list):
            for value in values:
                yield from _types_of_value(value)
        for key in ("anyOf", "oneOf", "allOf"):
            members = schema.get(key)
            for member in members if isinstance(members, list) else ():
                yield from self._types_of(member, seen)
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference.startswith("#/") and reference not in seen:
            seen.add(reference)
            yield from self._types_of(self._target(reference), seen)

    def _target(self, reference: str) -> Any:
        found: Any = self._root
        for step in reference[2:].split("/"):
            if not isinstance(found, Mapping):
                return None
            found = found.get(step.replace("~1", "/").replace("~0", "~"))
        return found


def python_to_json(text: str) -> str | None:
    """A Python literal as JSON text; None where it is none. What is JSON as well stays as it is."""
    found = _as_json(text, strings=True)
    return None if found is None else found[0]


def _as_json(text: str, *, strings: bool = False) -> tuple[str, frozenset[str]] | None:
    """JSON text and its types; None for text that is no value, and for a quoted string unless `strings`: in a format
    that writes strings bare, the quotes are part of it."""
    text = text.strip()
    try:
        value = json.loads(text, parse_constant=_refuse)
        written = text
    except (ValueError, RecursionError):
        if len(text) > _MAX_LITERAL:
            return None
        try:
            with warnings.catch_warnings():
                # An escape that Python does not know, which it keeps.
                warnings.simplefilter("ignore")
                value = ast.literal_eval(text)
            # Escaped, for it may hold half a surrogate pair.
            written = json.dumps(value, allow_nan=False)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            return None
    if isinstance(value, str) and not strings:
        return None
    return written, frozenset(_types_of_value(value))


def _types_of_value(value: Any) -> Iterator[str]:
    if value is None:
        yield "null"
    elif isinstance(value, bool):
        yield "boolean"
    elif isinstance(value, int | float):
        yield "number"
        if isinstance(value, int) or (math.isfinite(value) and value.is_integer()):
            yield "integer"
    elif isinstance(value, str):
        yield "string"
    else:
        yield "object" if isinstance(value, dict) else "array"


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON")
