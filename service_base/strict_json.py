"""JSON that comes from outside: what one reader takes for one thing and the next for another, such as a name that
stands twice in one object, is an error. Pure."""

import json
from collections import Counter
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError

from service_base.errors import shown

_Model = TypeVar("_Model", bound=BaseModel)


def value_of(text: bytes | str) -> Any:
    """Raises ValueError with a sentence's end that says what is wrong."""
    try:
        return json.loads(text, object_pairs_hook=_each_once, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def model_of(kind: type[_Model], text: bytes | str) -> _Model:
    """Raises ValidationError for JSON that is no such model, and for what is no JSON ValueError as `value_of` does."""
    value_of(text)
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        # Python's parser takes half of a surrogate pair, which is no text.
        first = error.errors(include_url=False)[0]
        if first["type"] == "json_invalid":
            raise ValueError(first["msg"]) from None
        raise


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        ((twice, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"a name stands twice: {shown(twice)}")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
