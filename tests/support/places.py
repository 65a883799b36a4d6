"""Where a refusal points, as the shared cases judge it."""

import re


def is_near(param: str | None, wanted: str) -> bool:
    """The place itself, one below it, or the one directly above it; `[i]` and `.i` are the same."""
    if param is None:
        return False
    param, wanted = (re.sub(r"\[(\d+)\]", r".\1", place) for place in (param, wanted))
    return param == wanted or param.startswith(wanted + ".") or param == wanted.rpartition(".")[0]
