"""What chat templates make of values of any size, beside the event loop: their filter `tojson` writes them in pieces,
and what they write is joined in pieces, between which other threads get the interpreter. Pure.
"""

from collections.abc import Callable
from typing import Any

import jinja2

from gateway.openai.giving_way import is_aside
from gateway.openai.writing import is_small, join
from gateway.openai.writing import written as pieces_of


def write_in_pieces(environment: jinja2.Environment) -> None:
    """Have its templates do so. Again for the same environment: nothing more."""
    environment.concat = join  # type: ignore[method-assign]
    tojson = environment.filters["tojson"]
    if tojson.__module__ != __name__:
        environment.filters["tojson"] = in_pieces(tojson)


def in_pieces(tojson: Callable[..., str]) -> Callable[..., str]:
    """A filter that writes what `tojson` does, which is `json.dumps` with other defaults."""

    def written(value: Any, *options: Any, **named: Any) -> str:
        if not is_aside.get() or is_small(value):
            return tojson(value, *options, **named)

        def dumps(value: Any) -> str:
            return tojson(value, *options, **named)

        between = dumps([0, 0])[2:-2]
        if "\n" in between:
            # It is written by Python code then.
            return dumps(value)
        sorts = dumps({"b": 0, "a": 0}).index("a") < dumps({"b": 0, "a": 0}).index("b")
        return "".join(pieces_of(value, dumps, between, sorts=sorts))

    return written
