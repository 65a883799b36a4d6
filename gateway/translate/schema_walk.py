"""Walking a JSON Schema: which values in it are schemas, where they stand, where a `$ref` leads.

A path is a tuple of keys (str) and list indexes (int) from the root schema. No judgement here.
"""

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from gateway.openai.errors import ApiError, bad_request
from gateway.translate.schema_keywords import KNOWN, LIST_OF_SCHEMAS, MAP_OF_SCHEMAS, ONE_SCHEMA

Path = tuple[str | int, ...]
Schema = dict[str, Any]

_PLAIN_KEY = re.compile(r"[^\s.\[\]\"]{1,80}")


def param(place: str, path: Path) -> str:
    """The error's `param` for a path below `place`: `.` before keys, `[i]` for list members."""
    out = place
    for step in path:
        if isinstance(step, int):
            out += f"[{step}]"
        elif _PLAIN_KEY.fullmatch(step):
            out += f".{step}"
        else:
            out += f'["{step[:80]}"]'
    return out


def refuse(place: str, path: Path, sentence: str) -> ApiError:
    """A 400 that names a place inside the schema."""
    return bad_request(f"{param(place, path)}: {sentence}", param(place, path))


def children(schema: Schema) -> Iterator[tuple[Path, Any]]:
    """The subschemas of one schema: (path from it, the subschema, a dict or bool)."""
    for key, value in schema.items():
        if key in ONE_SCHEMA and isinstance(value, dict | bool):
            yield (key,), value
        elif key in LIST_OF_SCHEMAS and isinstance(value, list):
            yield from (((key, index), item) for index, item in enumerate(value))
        elif key in MAP_OF_SCHEMAS and isinstance(value, dict):
            # A member of the old `dependencies` may be a list of names.
            yield from (((key, name), item) for name, item in value.items() if isinstance(item, dict | bool))


def at(root: Any, path: Path) -> Any:
    """The value at a path; raises KeyError, IndexError or TypeError where there is none."""
    for step in path:
        root = root[step]
    return root


class Document:
    """All schemas in one root schema, by path, and the resolution of its `$ref`s.

    `schemas` holds every standard position and, below keywords that JSON Schema does not know
    (`components`, say), the targets of `$ref`s and what is below them; the latter are `below_unknown`.
    """

    def __init__(self, root: Schema, place: str) -> None:
        self.root = root
        self.place = place
        self.schemas: dict[Path, Any] = {}
        self.below_unknown: list[Path] = []
        self._anchors: dict[str, Path] = {}
        self._add(())
        pending = list(self.schemas.items())
        while pending:
            path, schema = pending.pop()
            if isinstance(schema, dict) and isinstance(schema.get("$ref"), str):
                pending += self._add_target(path, schema["$ref"])

    def _add(self, start: Path) -> list[tuple[Path, Any]]:
        added = []
        pending = [(start, at(self.root, start))]
        while pending:
            path, schema = pending.pop()
            if path in self.schemas:
                continue
            self.schemas[path] = schema
            added.append((path, schema))
            if isinstance(schema, dict):
                if isinstance(schema.get("$anchor"), str):
                    self._anchors.setdefault(schema["$anchor"], path)
                below = [((*path, *step), child) for step, child in children(schema)]
                pending += reversed(below)
        return added

    def _add_target(self, path: Path, ref: str) -> list[tuple[Path, Any]]:
        target = self.target(path, ref)
        if target in self.schemas:
            return []
        owner = max((p for p in self.schemas if p == target[: len(p)]), key=len)
        if target[len(owner)] in KNOWN or not isinstance(at(self.root, target), dict | bool):
            raise refuse(self.place, (*path, "$ref"), f"{ref!r} points to something that is no schema.")
        added = self._add(target)
        self.below_unknown += [path for path, _ in added]
        return added

    def target(self, path: Path, ref: str) -> Path:
        """The path that the `$ref` of the schema at `path` leads to; refuses what is not in this document."""
        own_id = self.root.get("$id") or ""
        if isinstance(own_id, str) and own_id and ref.startswith(own_id.rstrip("#")):
            ref = ref[len(own_id.rstrip("#")) :] or "#"
        where = (*path, "$ref")
        if not ref.startswith("#"):
            raise refuse(
                self.place, where, f"{ref[:200]!r} is outside this schema; copy the target into $defs and refer to "
                "it as '#/$defs/NAME'."
            )  # fmt: skip
        fragment = unquote(ref[1:])
        if not fragment:
            return ()
        if not fragment.startswith("/"):
            if fragment in self._anchors:
                return self._anchors[fragment]
            raise refuse(self.place, where, f"there is no $anchor {fragment[:200]!r} in this schema.")
        target: list[str | int] = []
        value: Any = self.root
        for token in fragment[1:].split("/"):
            name = token.replace("~1", "/").replace("~0", "~")
            step: str | int = int(name) if isinstance(value, list) and name.isdecimal() and len(name) < 9 else name
            try:
                value = value[step]
            except (KeyError, IndexError, TypeError):
                raise refuse(self.place, where, f"{ref[:200]!r} leads nowhere in this schema.") from None
            target.append(step)
        return tuple(target)

    def follow(self, path: Path) -> Path:
        """Where the chain of `$ref`s that starts at `path` ends; a chain that bites its tail ends anywhere in it."""
        seen = set()
        while path not in seen:
            seen.add(path)
            schema = self.schemas[path]
            if not isinstance(schema, dict) or not isinstance(schema.get("$ref"), str):
                return path
            path = self.target(path, schema["$ref"])
        return path
