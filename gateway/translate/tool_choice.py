"""Tools and `tool_choice` → which functions the model is shown and may call, and what binds its answer. Pure.

How calls are written and read is `gateway.output`'s matter; what keeps calls valid that the model is free to make is
made in `gateway.translate.call_tag`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.openai.errors import ApiError, bad_request
from gateway.openai.fields import CHAT, has_no_effect
from gateway.openai.schema import Tool
from gateway.translate.structured import Constraint


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What a request says of tools.

    `tools` are shown to the model and may be called; `required`: at least one of them must be; `named`: this one
    must be. `single`: at most one call.
    """

    tools: Sequence[Tool] = ()
    required: bool = False
    named: str | None = None
    single: bool = False

    @property
    def schemas(self) -> dict[str, Mapping[str, Any]]:
        """Name → JSON Schema of its parameters, `{}` where it has none."""
        return {tool.function.name: tool.function.parameters or {} for tool in self.tools}

    @property
    def is_bound(self) -> bool:
        return self.required or self.named is not None


def without_effect(use: ToolUse, tools: Sequence[Tool] | None, choice: Any, parallel: bool | None) -> list[str]:
    """Warnings of what a request says of its tools to no effect."""
    warnings = []
    if not tools and choice == "auto":
        warnings.append(has_no_effect(CHAT["tool_choice"]))
    if not use.tools and parallel is False:
        warnings.append(has_no_effect(CHAT["parallel_tool_calls"]))
    return warnings


def tool_use(tools: Sequence[Tool] | None, choice: Any, parallel: bool | None) -> ToolUse:
    """Raises `ApiError` 400 for a choice of an unknown form, or of a function that is not offered."""
    offered = list(tools or ())
    _check_names(offered)
    single = parallel is False
    if not offered:
        if choice not in (None, "none", "auto"):
            raise bad_request("tool_choice needs tools; give some, or leave it out.", "tool_choice")
        return ToolUse()
    if choice is None or choice == "auto":
        return ToolUse(offered, single=single)
    if choice == "none":
        return ToolUse()
    if choice == "required":
        return ToolUse(offered, required=True, single=single)
    if not isinstance(choice, dict):
        raise _wrong_choice("tool_choice")
    if choice.get("type") == "function":
        name = _name(choice, "tool_choice")
        _find(offered, name, "tool_choice.function.name")
        return ToolUse(offered, named=name, single=True)
    if choice.get("type") == "allowed_tools":
        return _allowed(offered, choice.get("allowed_tools"), single)
    raise _wrong_choice("tool_choice.type" if "type" in choice else "tool_choice")


def _check_names(tools: Sequence[Tool]) -> None:
    seen: set[str] = set()
    for index, tool in enumerate(tools):
        if tool.function.name in seen:
            place = f"tools[{index}].function.name"
            raise bad_request(f"{place}: the name {tool.function.name!r} is given twice.", place, "invalid_value")
        seen.add(tool.function.name)


def _allowed(offered: Sequence[Tool], allowed: Any, single: bool) -> ToolUse:
    place = "tool_choice.allowed_tools"
    if not isinstance(allowed, dict) or allowed.get("mode") not in ("auto", "required"):
        raise bad_request(f"{place}.mode must be 'auto' or 'required'.", f"{place}.mode", "invalid_value")
    listed = allowed.get("tools")
    if not isinstance(listed, list) or not listed:
        raise bad_request(f"{place}.tools must be a list of at least one tool.", f"{place}.tools", "invalid_value")
    names = [_name(tool, f"{place}.tools[{index}]") for index, tool in enumerate(listed)]
    kept = [_find(offered, name, f"{place}.tools[{index}].function.name") for index, name in enumerate(names)]
    once = list({tool.function.name: tool for tool in kept}.values())
    return ToolUse(once, required=allowed["mode"] == "required", single=single)


def _name(reference: Any, place: str) -> str:
    """The function's name in `{"type": "function", "function": {"name": …}}`."""
    function = reference.get("function") if isinstance(reference, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or reference.get("type") != "function":
        raise bad_request(
            f'{place} must be {{"type": "function", "function": {{"name": "…"}}}}.', f"{place}.function.name"
        )
    return name


def _find(tools: Sequence[Tool], name: str, place: str) -> Tool:
    for tool in tools:
        if tool.function.name == name:
            return tool
    raise bad_request(f"{place}: {name!r} is not among the tools.", place, "invalid_value")


def _wrong_choice(place: str) -> ApiError:
    return bad_request(
        f"{place} must be 'none', 'auto', 'required', one function or allowed_tools.", place, "invalid_value"
    )


NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}
"""The schema of a function without parameters: it is called with none."""

# Members of a schema that hold values, not schemas.
_VALUES = ("const", "default", "enum", "examples")


def calls_constraint(use: ToolUse, offered: Sequence[Tool]) -> Constraint:
    """What binds an answer to be a call: of the named function, its arguments; else a list of calls, as
    `gateway.output.tools.constrained` reads them. `offered` are all tools of the request, where the client finds the
    place of a schema that cannot bind."""
    parameters = {name: schema or NO_PARAMETERS for name, schema in use.schemas.items()}
    places = {tool.function.name: f"tools[{index}].function.parameters" for index, tool in enumerate(offered)}
    if use.named is not None:
        return Constraint("json", parameters[use.named], places[use.named])
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": name},
                "parameters": {"$ref": f"#/$defs/parameters_{index}"},
            },
            "required": ["name", "parameters"],
            "additionalProperties": False,
        }
        for index, name in enumerate(parameters)
    ]
    # In definitions of their own, since xgrammar follows no reference into a list.
    definitions = {
        f"parameters_{index}": _moved(schema, f"#/$defs/parameters_{index}")
        for index, schema in enumerate(parameters.values())
    }
    value: dict[str, Any] = {
        "type": "array",
        "items": {"anyOf": calls},
        "minItems": 1,
        "$defs": definitions,
    }
    parts = {f"tools.$defs.parameters_{index}": places[name] for index, name in enumerate(parameters)}
    return Constraint("json", value | ({"maxItems": 1} if use.single else {}), "tools", parts=parts)


def _moved(schema: Any, place: str) -> Any:
    """The schema as a part of another one, at `place` there: its references to itself begin there."""
    if isinstance(schema, list):
        return [_moved(item, place) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        key: place + value[1:]
        if key == "$ref" and isinstance(value, str) and value.startswith("#")
        else value
        if key in _VALUES
        else _moved(value, place)
        for key, value in schema.items()
    }
