"""The OpenAPI document: what FastAPI cannot know of routes that stand ahead of it. Pure.

Statuses and their bodies, that an answer may be a stream, and what becomes of each request field
(`gateway.openai.fields`).
"""

from collections.abc import Mapping
from typing import Any

from gateway.access.authentication import ADMIN_PREFIX, OPEN_PATHS
from gateway.openai.fields import CHAT, COMPLETION, DETOKENIZE, TOKENIZE, Field

Responses = dict[int | str, dict[str, Any]]

_ERROR = {
    "type": "object",
    "required": ["error"],
    "additionalProperties": False,
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "additionalProperties": False,
            "properties": {
                "message": {"type": "string", "minLength": 1},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"], "description": "The place in the request"},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_JSON = "application/json"
_WARNING = {
    "x-gateway-warning": {"description": "Fields that were ignored, by name", "schema": {"type": "string"}},
}
_VIOLATION = {
    "x-gateway-structured-output": {
        "description": "The answer does not obey its constraint, or could not be checked",
        "schema": {"type": "string", "enum": ["violation", "not-validated"]},
    },
}
_RETRY_AFTER = {"retry-after": {"description": "Seconds", "schema": {"type": "string"}}}
_CHALLENGE = {"www-authenticate": {"schema": {"type": "string"}}}
_KEY = {"type": "http", "scheme": "bearer", "description": "Made by `python -m gateway keys new`"}
_TABLES: Mapping[str, Mapping[str, Field]] = {
    "ChatRequest": CHAT,
    "CompletionRequest": COMPLETION,
    "TokenizeRequest": TOKENIZE,
    "DetokenizeRequest": DETOKENIZE,
}


def _error(description: str, **members: Any) -> dict[str, Any]:
    return {
        "description": description,
        "content": {_JSON: {"schema": {"$ref": "#/components/schemas/Error"}}},
        **members,
    }


UNKNOWN_MODEL: Responses = {404: _error("Unknown model")}
_OF_EVERY_BODY: Responses = {
    # 422 is FastAPI's own answer to a wrong body; here it is 400, made by the route that stands ahead.
    400: _error("Not JSON, or a field that is wrong, unsupported or would not be enforced; `param` names it"),
    **UNKNOWN_MODEL,
    408: _error("The body took too long"),
    413: _error("The body is too large"),
    429: _error("Too many open requests", headers=_RETRY_AFTER),
    500: _error("The engine or the gateway failed"),
    504: _error("The deadline passed"),
}
GENERATE: Responses = {
    200: {
        "description": "The answer; with `stream: true` server-sent events, each the JSON of a chunk, then `[DONE]`",
        "content": {
            _JSON: {"schema": {"type": "object", "required": ["id", "object", "created", "model", "choices", "usage"]}},
            "text/event-stream": {"schema": {"type": "string"}},
        },
        "headers": _WARNING | _VIOLATION,
    },
    **_OF_EVERY_BODY,
    503: _error("No engine can answer now", headers=_RETRY_AFTER),
}
ONE_MODEL: Responses = {**UNKNOWN_MODEL, 503: _error("The model is not ready now", headers=_RETRY_AFTER)}
MODEL_CONTROL: Responses = {
    400: _error("No name of a model"),
    404: _error("Triton finds no such model, or there is no such instance"),
    409: _error("Triton does not let models be loaded or unloaded"),
    502: _error("Triton cannot load the model"),
    503: _error("Triton cannot be asked"),
    504: _error("Triton does not answer in time"),
}
TOKENIZATION: Responses = {200: {"description": "The answer", "headers": _WARNING}, **_OF_EVERY_BODY}
READY: Responses = {503: {"description": "No model can be served", "content": {_JSON: {"schema": {"type": "object"}}}}}
METRICS: Responses = {200: {"description": "The page", "content": {"text/plain": {"schema": {"type": "string"}}}}}


def _needs_key(operation: dict[str, Any], *, is_admin: bool) -> None:
    # Without a file of keys clients need none, and the admin routes are closed.
    operation["security"] = [{"key": []}] if is_admin else [{"key": []}, {}]
    operation["responses"]["401"] = _error("No key, or none that is valid", headers=_CHALLENGE)
    operation["responses"]["403"] = _error("A key for other routes than this")


def complete(document: dict[str, Any]) -> None:
    """Add to FastAPI's document what only this project knows, and take out what is not so here."""
    schemas = document["components"]["schemas"]
    for validation in ("HTTPValidationError", "ValidationError"):
        schemas.pop(validation, None)
    schemas["Error"] = _ERROR
    document["components"]["securitySchemes"] = {"key": _KEY}
    for path, operations in document["paths"].items():
        for operation in operations.values():
            operation["responses"].pop("422", None)
            if path not in OPEN_PATHS:
                _needs_key(operation, is_admin=path.startswith(ADMIN_PREFIX))
    for name, table in _TABLES.items():
        for field, schema in schemas[name]["properties"].items():
            schema["description"] = f"{table[field].fate.capitalize()}. {table[field].note}"
