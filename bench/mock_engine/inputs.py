"""How Triton's generate endpoints read a JSON body into input tensors, with its statuses and words. Pure.

Seen on tritonserver 2.51: a key that is an input becomes a tensor, any other key a request parameter, which must be
a scalar. An INT32 input takes any integer of 64 bits, and keeps its lower 32 without a word.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench.mock_engine.backend import Tensor


class TritonError(Exception):
    """A refusal by Triton itself, before the backend: HTTP status and error text."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


@dataclass(frozen=True, slots=True)
class Body:
    values: dict[str, list[Any]]
    """The tensors, flat, by name."""
    request_id: str | None
    parameters: dict[str, Any]
    """What is no input of the model: vLLM's backends ignore it."""


@dataclass(frozen=True, slots=True)
class _Type:
    python: type
    refusal: str


_TYPES = {
    "STRING": _Type(str, "Unable to parse JSON bytes array: attempt to access JSON non-string as string"),
    "BOOL": _Type(bool, "Unable to parse 'data': attempt to access JSON non-boolean as boolean"),
    "INT32": _Type(int, "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer"),
    "INT64": _Type(int, "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer"),
}


def parse_json(body: bytes, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """Raises TritonError 500, in RapidJSON's words as far as Python's parser can tell."""
    try:
        return json.loads(body.decode("utf-8", "surrogateescape"), object_pairs_hook=pairs)
    except RecursionError:
        what = "Terminate parsing due to Handler error. at 0"
    except json.JSONDecodeError as error:
        if not body:
            what = "The document is empty. at 0"
        elif error.msg == "Extra data":
            what = f"The document root must not be followed by other values. at {error.pos}"
        else:
            what = f"Invalid value. at {error.pos}"
    raise TritonError(500, f"failed to parse the request JSON buffer: {what}")


def read_body(body: bytes, inputs: tuple[Tensor, ...], model: str) -> Body:
    """The tensors of a generate request. Raises TritonError."""
    members = parse_json(body, _Members)
    if not isinstance(members, _Members):
        raise TritonError(500, "attempt to get members for non-object")
    by_name = {tensor.name: tensor for tensor in inputs}
    values: dict[str, list[Any]] = {}
    request_id: str | None = None
    parameters: dict[str, Any] = {}
    for key, value in members:
        if key in by_name:
            if key in values:
                raise TritonError(400, f"{_shown(request_id)} input '{key}' already exists in request")
            values[key] = _tensor(by_name[key], value)
        elif key == "id":
            if not isinstance(value, str):
                raise TritonError(500, "Unable to parse 'id': attempt to access JSON non-string as string")
            request_id = value
        elif key == "parameters" and isinstance(value, _Members):
            for name, parameter in value:
                _check_parameter(name, parameter, "Converting keyword: 'parameters': ")
                parameters[name] = parameter
        else:
            _check_parameter(key, value, "")
            parameters[key] = value
    required = [tensor.name for tensor in inputs if not tensor.optional]
    if len(values) < len(required):
        names = ",".join(f"'{name}'" for name in required)
        raise TritonError(
            400,
            f"{_shown(request_id)} expected number of inputs between {len(required)} and {len(inputs)} but got "
            f"{len(values)} inputs for model '{model}'. Got input(s) [], but missing required input(s) [{names}]. "
            "Please provide all required input(s).",
        )
    return Body(values, request_id, parameters)


class _Members(list[tuple[str, Any]]):
    """A JSON object's members in order, a key that is there twice included."""


def _shown(request_id: str | None) -> str:
    return f"[request id: {request_id or '<id_unknown>'}]"


def _check_parameter(name: str, value: Any, prefix: str) -> None:
    if not isinstance(value, int | float | str):
        raise TritonError(
            400, f"{prefix}parameter '{name}' has invalid type. It should be either 'int', 'bool', or 'string'."
        )


def _tensor(tensor: Tensor, value: Any) -> list[Any]:
    flat = _flat(value)
    kind = _TYPES[tensor.data_type]
    # A fixed shape is checked before the values are read, a free one while they are.
    if tensor.dims != (-1,) and len(flat) != 1:
        raise TritonError(400, f"The schema can not convert input '{tensor.name}' to tensor with proper shape")
    if tensor.dims == (-1,) and isinstance(value, list) and len(flat) != len(value):
        raise TritonError(500, "Unable to parse 'data': Shape does not match true shape of 'data' field")
    for item in flat:
        if type(item) is not kind.python or (isinstance(item, int) and not -(2**63) <= item < 2**63):
            raise TritonError(500, kind.refusal)
    if tensor.data_type == "INT32":
        return [(item + 2**31) % 2**32 - 2**31 for item in flat]
    return flat


def _flat(value: Any) -> list[Any]:
    if isinstance(value, list) and not isinstance(value, _Members):
        return [item for entry in value for item in _flat(entry)]
    return [value]
