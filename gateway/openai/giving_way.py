"""The validation of large bodies, which gives other threads the interpreter while it goes on.

One call of pydantic holds it from the first to the last of ten thousand messages. Here the same schema has functions of
Python around whatever may be large or stand many times, in each of which the interpreter can change hands: the errors
and the values are the same. Pure: no I/O.
"""

import functools
import itertools
from array import array
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, TypeVar

from pydantic import BaseModel
from pydantic_core import SchemaValidator, core_schema

_Model = TypeVar("_Model", bound=BaseModel)
_Handler = Callable[[Any], Any]
_Wrapper = Callable[[Any, _Handler], Any]

_OF_A_MODEL = ("__dict__", "__pydantic_extra__", "__pydantic_fields_set__", "__pydantic_private__")

is_aside: ContextVar[bool] = ContextVar("is_aside", default=False)
"""Whether what is done now is done beside the event loop. Pieces are for that: for the same in one call, on the loop, a
hundredth of the time may do."""

AT_ONCE = 4096
"""Numbers or members that are looked at in one call: in a tenth of a millisecond."""
_MODELS_AT_ONCE = 256
_LONG = 1_000_000


def validate(kind: type[_Model], value: Any) -> _Model:
    """`kind.model_validate` of what JSON made, which is not to be used any more; but a list of numbers that may be
    longer than a million becomes an array of them. Raises `ValidationError`."""
    if type(value) is not dict:
        return kind.model_validate(value)
    unknown: dict[str, Any] = {}
    if len(value) > AT_ONCE:
        fields = kind.model_fields
        unknown = {name: one for name, one in value.items() if name not in fields}
        value = {name: one for name, one in value.items() if name not in unknown}
        if kind.model_config["extra"] == "forbid":
            # The first one is the mistake that is told.
            value |= itertools.islice(unknown.items(), 1)
    members, extra, given = _validator(kind).validate_python(value)
    if unknown:
        # Of which nobody asks whether they were given, so that `given` need not grow by all of them.
        extra = unknown
    # What pydantic makes of these three.
    model = kind.__new__(kind)
    for name, one in zip(_OF_A_MODEL, (members, extra, given, None), strict=True):
        object.__setattr__(model, name, one)
    return model


def empty(*values: Any) -> None:
    """Let go of all that is in these lists, objects and models, which nobody may use any more. To free a hundred
    thousand things at once takes as long as to read them."""
    pending = list(values)
    del values
    while pending:
        one = pending.pop()
        if isinstance(one, BaseModel):
            pending += (vars(one), one.model_extra)
        while one and isinstance(one, dict | list):
            if isinstance(one, dict):
                some = [one.popitem()[1] for _ in range(min(len(one), AT_ONCE))]
            else:
                some = one[-AT_ONCE:]
                del one[-AT_ONCE:]
            pending += [inner for inner in some if isinstance(inner, dict | list | BaseModel)]


@functools.cache
def _validator(kind: type[BaseModel]) -> SchemaValidator:
    """Of the members alone: of a whole model, pydantic takes the validator that it has already."""
    schema: Any = kind.__pydantic_core_schema__
    return SchemaValidator(_giving_way(schema["schema"]), schema["config"])


def _giving_way(schema: Any) -> Any:
    if isinstance(schema, list | tuple):
        return type(schema)(map(_giving_way, schema))
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") == "model":
        return core_schema.no_info_plain_validator_function(functools.partial(validate, schema["cls"]))
    within = {name: one if name == "metadata" else _giving_way(one) for name, one in schema.items()}
    function: _Wrapper
    match schema.get("type"):
        case "list" if schema["items_schema"]["type"] == "int" and schema["max_length"] > AT_ONCE:
            function = functools.partial(_numbers, schema)
            within["items_schema"] = core_schema.no_info_before_validator_function(_turn, schema["items_schema"])
        case "list" if schema["items_schema"]["type"] == "model":
            function = _models
        case "dict" if schema["values_schema"]["type"] == "any":
            function = _members
        case _:
            return within
    return core_schema.no_info_wrap_validator_function(function, within)


def _turn(value: Any) -> Any:
    return value


def _numbers(schema: Any, value: Any, handler: _Handler) -> Any:
    if type(value) is not list or not schema.get("min_length", 0) <= len(value) <= schema["max_length"]:
        return handler(value)
    bounds = schema["items_schema"]
    found = array("i")
    for begin in range(0, len(value), AT_ONCE):
        some = value[begin : begin + AT_ONCE]
        if set(map(type, some)) != {int} or min(some) < bounds["ge"] or max(some) >= bounds["lt"]:
            # With the words for what is wrong.
            return handler(value)
        found.extend(some)
    if schema["max_length"] <= _LONG:
        return value
    # To free a million at once would take as long as to read them.
    while value:
        del value[-AT_ONCE:]
    return found


def _models(value: Any, handler: _Handler) -> Any:
    models = handler(value)
    # What the models do not hold is freed here and there, rather than all at once.
    while value:
        del value[-_MODELS_AT_ONCE:]
    return models


def _members(value: Any, handler: _Handler) -> Any:
    """Of an object in which there may be anything."""
    return value if type(value) is dict else handler(value)
