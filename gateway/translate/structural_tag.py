"""Structural tags for xgrammar: both forms, with every schema in them checked like any other.

- the old one: `{"structures": [{"begin", "schema", "end"}], "triggers": [...]}`;
- the new one: `{"type": "structural_tag", "format": {...}}`, a tree of formats.
"""

from collections.abc import Callable
from typing import Any

from gateway.openai.errors import bad_request
from gateway.translate.schema_walk import param

CheckSchema = Callable[[Any, str], Any]
"""(schema, place) to the schema in the form for the engine; raises `ApiError`."""

# type of format: its fields (name: what it holds)
_FORMATS: dict[str, dict[str, str]] = {
    "const_string": {"value": "text"},
    "any_text": {},
    "json_schema": {"json_schema": "schema"},
    "sequence": {"elements": "formats"},
    "or": {"elements": "formats"},
    "tag": {"begin": "text", "content": "format", "end": "text"},
    "triggered_tags": {
        "triggers": "texts", "tags": "formats", "at_least_one": "flag", "stop_after_first": "flag",
    },
    "tags_with_separator": {
        "tags": "formats", "separator": "text", "at_least_one": "flag", "stop_after_first": "flag",
    },
}  # fmt: skip


def check(tag: Any, place: str, check_schema: CheckSchema) -> Any:
    """The tag with its schemas in the form for the engine; raises `ApiError` 400 with the place."""
    if not isinstance(tag, dict):
        raise bad_request(f"{place} must be an object with `format`, or with `structures` and `triggers`.", place)
    if "structures" in tag:
        return _check_old(tag, place, check_schema)
    if tag.get("type") != "structural_tag":
        raise bad_request(f"{place}.type must be structural_tag.", f"{place}.type")
    return {"type": "structural_tag", "format": _check_format(tag.get("format"), f"{place}.format", check_schema)}


def _check_old(tag: dict[str, Any], place: str, check_schema: CheckSchema) -> dict[str, Any]:
    triggers = _texts(tag.get("triggers"), f"{place}.triggers")
    structures = tag["structures"]
    if not isinstance(structures, list) or not structures:
        raise bad_request(f"{place}.structures must be a list with at least one entry.", f"{place}.structures")
    out = []
    for index, item in enumerate(structures):
        where = param(place, ("structures", index))
        if not isinstance(item, dict) or not all(isinstance(item.get(key), str) for key in ("begin", "end")):
            raise bad_request(f"{where} must have begin and end (strings) and schema.", where)
        if not any(item["begin"].startswith(trigger) for trigger in triggers):
            raise bad_request(f"{where}.begin must start with one of the triggers.", f"{where}.begin")
        schema = check_schema(item.get("schema"), f"{where}.schema")
        out.append({"begin": item["begin"], "schema": schema, "end": item["end"]})
    return {"type": "structural_tag", "structures": out, "triggers": triggers}


def _check_format(value: Any, place: str, check_schema: CheckSchema) -> Any:
    kind = value.get("type") if isinstance(value, dict) else None
    if kind not in _FORMATS:
        raise bad_request(f"{place}.type must be one of {', '.join(_FORMATS)}.", f"{place}.type")
    fields = _FORMATS[kind]
    out: dict[str, Any] = {"type": kind}
    for key, item in value.items():
        where = param(place, (key,))
        if key == "type":
            continue
        if key not in fields:
            raise bad_request(f"{where} is no field of {kind}.", where)
        if fields[key] == "schema":
            out[key] = check_schema(item, where)
        elif fields[key] == "format":
            out[key] = _check_format(item, where, check_schema)
        elif fields[key] == "formats":
            if not isinstance(item, list) or not item:
                raise bad_request(f"{where} must be a list with at least one format.", where)
            out[key] = [_check_format(one, f"{where}[{i}]", check_schema) for i, one in enumerate(item)]
        elif fields[key] == "texts":
            out[key] = _texts(item, where)
        elif isinstance(item, bool if fields[key] == "flag" else str):
            out[key] = item
        else:
            raise bad_request(f"{where} must be {'true or false' if fields[key] == 'flag' else 'a string'}.", where)
    for key, holds in fields.items():
        if key not in out and holds != "flag":
            raise bad_request(f"{place}.{key} is missing.", f"{place}.{key}")
    return out


def _texts(value: Any, place: str) -> list[str]:
    if not isinstance(value, list) or not value or not all(isinstance(item, str) and item for item in value):
        raise bad_request(f"{place} must be a list with at least one string, none of them empty.", place)
    return value
