"""What constrains the answer: the request's fields in, at most one `Constraint` out. Pure and cheap.

Only the *shape* of the fields is judged here, on the event loop. Whether the engine's backend really
enforces the schema, expression or grammar is judged by `gateway.translate.schema_check`, which is slow
and runs in a child process behind `gateway.checker`.

Three ways to ask for the same thing, and exactly one of them per request:
`response_format` (OpenAI's), `structured_outputs` (vLLM's), `guided_*` (vLLM's before 0.12).
"""

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from gateway.openai.errors import ApiError, bad_request
from gateway.openai.json_text import dumps, loads
from gateway.translate.schema_walk import Path, refuse

Kind = Literal["json", "json_object", "regex", "choice", "grammar", "structural_tag"]

FIELDS = (
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "guided_decoding_backend",
    "guided_whitespace_pattern",
)
"""The request fields that `constraint_of` reads; all others are none of its business."""

MAX_BYTES: Final = 512 * 1024
"""Of one constraint as JSON. The largest schemas in public collections have 200 to 400 KB."""

_LARGEST_NUMBER: Final = sys.float_info.max

# Options that vLLM's request model takes and no backend of vLLM reads per request.
_NO_EFFECT_OPTIONS = ("disable_any_whitespace", "disable_additional_properties", "whitespace_pattern")


@dataclass(frozen=True, slots=True)
class Constraint:
    """One constraint on one answer.

    `value` by kind: json: dict or bool (a JSON Schema); json_object: True; regex, grammar: str;
    choice: list of str; structural_tag: str (JSON text). `place` is where the client put it, such as
    `response_format.json_schema.schema`; every refusal's `param` begins with it. `rewritten` is the form
    for the engine once the constraint has been checked (None: as the client wrote it); an answer is
    judged by `value`. Where the value is made of parts that the client wrote, `parts` says of the places in it
    where the client put them.
    """

    kind: Kind
    value: Any
    place: str
    rewritten: Any = None
    parts: Mapping[str, str] = field(default_factory=dict)

    def clients(self, text: str) -> str:
        """A refusal's text or `param`, with the client's places."""
        # The longest first: one place may begin as another one does.
        for place in sorted(self.parts, key=len, reverse=True):
            text = text.replace(place, self.parts[place])
        return text

    def engine_value(self) -> dict[str, Any]:
        """The value of `sampling_parameters.structured_outputs`: one key, the kind."""
        return {self.kind: self.value if self.rewritten is None else self.rewritten}


def constraint_of(fields: Mapping[str, Any]) -> Constraint | None:
    """Read the fields named in `FIELDS` (raw JSON values; absent and None are the same).

    Raises `ApiError` 400 with `param` for a wrong shape, for an option that would have no effect, and
    for more than one constraint.
    """
    found = [
        constraint
        for name, read in _READERS.items()
        if (value := fields.get(name)) is not None and (constraint := read(value, name)) is not None
    ]
    if len(found) > 1:
        places = " and ".join(constraint.place for constraint in found)
        raise bad_request(
            f"The answer can have one constraint, but {places} are given; keep one of them.",
            found[1].place.split(".")[0],
        )
    return found[0] if found else None


def _response_format(value: Any, place: str) -> Constraint | None:
    if not isinstance(value, dict):
        raise bad_request(f'{place} must be an object such as {{"type": "json_object"}}, not {_a(value)}.', place)
    kind = value.get("type")
    if kind == "text":
        _refuse_extra(value, place, ("type",))
        return None
    if kind == "json_object":
        _refuse_extra(value, place, ("type",))
        return Constraint("json_object", True, place)
    if kind == "json_schema":
        inner = value.get("json_schema")
        if not isinstance(inner, dict):
            raise bad_request(
                f"{place}.json_schema must be an object with `name` and `schema`, not {_a(inner)}.",
                f"{place}.json_schema",
            )
        _refuse_extra(value, place, ("type", "json_schema"))
        return _json_schema(inner, f"{place}.json_schema")
    if kind == "structural_tag":
        refuse_numbers_beyond_double(value, place)
        return Constraint("structural_tag", dumps(value).decode(), place)
    raise bad_request(
        f"{place}.type must be text, json_object, json_schema or structural_tag, not {_a(kind)}.",
        f"{place}.type",
    )


def _json_schema(value: dict[str, Any], place: str) -> Constraint:
    _refuse_extra(value, place, ("name", "description", "schema", "strict"))
    if not isinstance(value.get("name"), str) or not value["name"]:
        raise bad_request(f"{place}.name is required and is a string that is not empty.", f"{place}.name")
    for key, wanted, word in (("description", str, "a string"), ("strict", bool, "true or false")):
        if value.get(key) is not None and not isinstance(value[key], wanted):
            raise bad_request(f"{place}.{key} must be {word}, not {_a(value[key])}.", f"{place}.{key}")
    schema = value.get("schema")
    if not isinstance(schema, dict | bool):
        raise bad_request(
            f"{place}.schema is required and is a JSON Schema (an object), not {_a(schema)}.",
            f"{place}.schema",
        )
    refuse_numbers_beyond_double(schema, f"{place}.schema")
    return Constraint("json", schema, f"{place}.schema")


def _structured_outputs(value: Any, place: str) -> Constraint:
    if not isinstance(value, dict):
        raise bad_request(f"{place} must be an object, not {_a(value)}.", place)
    for option in _NO_EFFECT_OPTIONS:
        if value.get(option) not in (None, False):
            raise _no_effect(f"{place}.{option}")
    _refuse_extra(value, place, (*_KINDS, *_NO_EFFECT_OPTIONS))
    given = [kind for kind in _KINDS if value.get(kind) is not None]
    if len(given) != 1:
        what = f"has {' and '.join(given)}" if given else "has none"
        raise bad_request(f"{place} must have exactly one of {', '.join(_KINDS)}; it {what}.", place)
    return _KINDS[given[0]](value[given[0]], f"{place}.{given[0]}")


def _json(value: Any, place: str) -> Constraint:
    if isinstance(value, str):
        try:
            value = loads(value)
        except ValueError as error:
            raise bad_request(f"{place} is text that is no JSON: {error}.", place) from None
    if not isinstance(value, dict | bool):
        raise bad_request(f"{place} must be a JSON Schema (an object, or JSON text of one).", place)
    refuse_numbers_beyond_double(value, place)
    return Constraint("json", value, place)


def _json_object(value: Any, place: str) -> Constraint:
    if value is not True:
        raise bad_request(f"{place} must be true; leave it out to have no constraint.", place)
    return Constraint("json_object", True, place)


def _regex(value: Any, place: str) -> Constraint:
    if not isinstance(value, str):
        raise bad_request(f"{place} must be a string, not {_a(value)}.", place)
    if "\x00" in value:
        raise bad_request(f"{place} must not contain a NUL character.", place)
    return Constraint("regex", value, place)


def _choice(value: Any, place: str) -> Constraint:
    if not isinstance(value, list) or not value:
        raise bad_request(f"{place} must be a list with at least one string.", place)
    for index, item in enumerate(value):
        if not isinstance(item, str):
            raise bad_request(
                f"{place}[{index}] must be a string, not {_a(item)}; quote it if text is meant.",
                f"{place}[{index}]",
            )
    return Constraint("choice", value, place)


def _grammar(value: Any, place: str) -> Constraint:
    if not isinstance(value, str) or not value.strip():
        raise bad_request(f"{place} must be a grammar in EBNF or Lark form, as a string.", place)
    return Constraint("grammar", value, place)


def _structural_tag(value: Any, place: str) -> Constraint:
    if not isinstance(value, str) or not value.strip():
        raise bad_request(f"{place} must be a structural tag as JSON text.", place)
    return Constraint("structural_tag", value, place)


def refuse_numbers_beyond_double(value: Any, place: str) -> None:
    """Raises `ApiError` 400 with the place of a number that no double holds.

    Parsers make an infinity of `1e999`, and JSON text a `null` of that: another constraint than was asked for.
    """
    pending: list[Iterable[Any]] = [[value]]
    for items in pending:
        for item in items:
            if isinstance(item, dict):
                pending.append(item.values())
            elif isinstance(item, list):
                pending.append(item)
            elif _is_beyond_double(item):
                path = _path_to_number_beyond_double(value)
                assert path is not None
                raise refuse(place, path, "no double can hold this number; use one within ±1.79e308.")


def _is_beyond_double(item: Any) -> bool:
    return isinstance(item, int | float) and not -_LARGEST_NUMBER <= item <= _LARGEST_NUMBER


def _path_to_number_beyond_double(value: Any) -> Path | None:
    if isinstance(value, dict | list):
        for step, item in value.items() if isinstance(value, dict) else enumerate(value):
            below = _path_to_number_beyond_double(item)
            if below is not None:
                return (step, *below)
    return () if _is_beyond_double(value) else None


def _no_effect(place: str) -> ApiError:
    return bad_request(
        f"{place} would have no effect: the engine takes this option from its own configuration, not from "
        "a request. Remove it.",
        place,
    )


def _refuse_no_effect(value: Any, place: str) -> None:
    raise _no_effect(place)


def _refuse_extra(value: dict[str, Any], place: str, known: tuple[str, ...]) -> None:
    for key in value:
        if key not in known and value[key] is not None:
            raise bad_request(
                f"{place} has no field {key!r} (it takes {', '.join(known)}); remove it.", f"{place}.{key}"
            )


def _a(value: Any) -> str:
    """The JSON word for a value in an error text."""
    if value is None:
        return "nothing"
    if isinstance(value, str):
        return f"{value[:40]!r}"
    names = {bool: "a boolean", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return names.get(type(value), "something else")


_KINDS: dict[str, Callable[[Any, str], Constraint]] = {
    "json": _json,
    "json_object": _json_object,
    "regex": _regex,
    "choice": _choice,
    "grammar": _grammar,
    "structural_tag": _structural_tag,
}

_READERS: dict[str, Callable[[Any, str], Constraint | None]] = {
    "response_format": _response_format,
    "structured_outputs": _structured_outputs,
    "guided_json": _json,
    "guided_regex": _regex,
    "guided_choice": _choice,
    "guided_grammar": _grammar,
    "guided_decoding_backend": _refuse_no_effect,
    "guided_whitespace_pattern": _refuse_no_effect,
}
