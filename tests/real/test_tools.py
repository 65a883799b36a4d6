"""Bound calls on the real engine: whatever the model would say, its calls are of the functions, by their schemas.

All requests of a test are made at once, sixteen at a time.
"""

import json
from typing import Any

import jsonschema_rs
import pytest

from devtools import models
from devtools.stack import Stack
from tests.data.tools import FUNCTIONS
from tests.support.tools import Reply, ask_all

HANDFUL = ["get_time", "get_weather", "create_payment", "post_message"]
MAX_TOKENS = 300
SHORT, FEW, LARGEST = 8, 2, 999


def bounded(schema: Any) -> Any:
    """The schema, with answers that end by themselves: even where a token is a byte and the text is random."""
    if isinstance(schema, list):
        return [bounded(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    out = {key: _bounded_member(key, value) for key, value in schema.items()}
    kinds = schema.get("type")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if "enum" in schema or "const" in schema:
        return out
    if "string" in kinds and not schema.keys() & {"pattern", "format"}:
        out["maxLength"] = min(SHORT, schema.get("maxLength", SHORT))
    if "array" in kinds:
        out["maxItems"] = max(schema.get("minItems", 0), min(FEW, schema.get("maxItems", FEW)))
    if "number" in kinds:
        out["type"] = ["integer" if kind == "number" else kind for kind in kinds]
    if "number" in kinds or "integer" in kinds:
        out = {"minimum": 0, "maximum": LARGEST} | out
    return out


def _bounded_member(key: str, value: Any) -> Any:
    if key in ("properties", "$defs"):
        return {name: bounded(schema) for name, schema in value.items()}
    return value if key in ("enum", "const", "required", "type") else bounded(value)


def tool(name: str) -> dict[str, Any]:
    function = FUNCTIONS[name]
    return function._replace(parameters=bounded(function.parameters)).tool(name)


def request(model: str, name: str, choice: str) -> dict[str, Any]:
    """For a call of this function, in one of the ways to ask for it."""
    named = {"type": "function", "function": {"name": name}}
    return {
        "model": model,
        "messages": [{"role": "user", "content": f"Please call {name} with plausible values."}],
        "max_tokens": MAX_TOKENS,
        "tools": [tool(name), {"type": "function", "function": {"name": "another"}}],
        "tool_choice": named
        if choice == "named"
        else {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named]}},
        "parallel_tool_calls": False,
    }


def check(name: str, choice: str, reply: Reply) -> bool:
    """Whether the call ended within the limit; then it is by its schema."""
    (call,) = reply.calls
    assert call.name == name
    assert (reply.content, reply.reasoning) == ("", "")
    # On a busy machine the gateway may have had no time to look.
    assert reply.headers.get("x-gateway-structured-output") != "violation"
    if reply.finish_reason == "length":
        return False
    assert reply.finish_reason == ("stop" if choice == "named" else "tool_calls")
    parameters = bounded(FUNCTIONS[name].parameters) or {"maxProperties": 0}
    validator = jsonschema_rs.validator_for(parameters, validate_formats=True)
    errors = list(validator.iter_errors(json.loads(call.arguments)))
    assert not errors, f"{call.arguments!r}: {errors[0].message}"
    return True


async def call_all(stack: Stack, model: str, names: list[str]) -> None:
    asked = [(name, choice, stream) for name in names for choice in ("named", "required") for stream in (False, True)]
    replies = await ask_all(stack.url, [(request(model, name, choice), stream) for name, choice, stream in asked])
    ended = [check(name, choice, reply) for (name, choice, _), reply in zip(asked, replies, strict=True)]
    # What is unbounded in the schemas that are left may go on to the limit.
    assert sum(ended) >= 0.8 * len(ended)


@pytest.mark.parametrize("model", [models.TINY, models.SMOLLM2])
async def test_calls_that_are_bound_are_valid(model: str, stack: Stack) -> None:
    await call_all(stack, model, HANDFUL)


@pytest.mark.long
@pytest.mark.parametrize("model", [models.TINY, models.SMOLLM2])
@pytest.mark.timeout(1200)
async def test_every_function_is_called_by_its_schema(model: str, stack: Stack) -> None:
    await call_all(stack, model, list(FUNCTIONS))


@pytest.mark.parametrize("model", [models.TINY, models.SMOLLM2])
async def test_any_of_the_functions_may_be_called(model: str, stack: Stack) -> None:
    body = request(model, "get_weather", "required") | {
        "tool_choice": "required",
        "tools": [tool(name) for name in HANDFUL],
    }
    replies = await ask_all(stack.url, [(body | {"seed": seed}, bool(seed % 2)) for seed in range(4)])
    for reply in replies:
        assert reply.calls[0].name in HANDFUL
        check(reply.calls[0].name, "required", reply)
