"""The request field `constraints`: what the engine's logits processors hold an answer to, and what it does not go with.

Which constraints there are, and their arguments, are known to the engine's processor alone (`logits_processors`); its
refusals name the place. Pure.
"""

from collections.abc import Mapping
from typing import Any

from gateway.openai.errors import ApiError, bad_request
from gateway.translate.structured import refuse_numbers_beyond_double

FIELD = "constraints"
PLACES = {f"extra_args.{FIELD}": FIELD}
"""Where the engine's refusals place it, to where the client has put it."""


def with_constraints(xargs: Mapping[str, Any] | None, constraints: Mapping[str, Any] | None) -> dict[str, Any]:
    """The sampling parameter `extra_args` of a request; empty where it asks for none."""
    arguments = dict(xargs or {})
    if FIELD in arguments:
        place = f"vllm_xargs.{FIELD}"
        raise bad_request(f"{place}: {FIELD} is a field of its own; put it beside vllm_xargs.", place)
    if constraints is not None:
        refuse_numbers_beyond_double(constraints, FIELD)
        _refuse_large_integers(constraints)
        arguments[FIELD] = constraints
    return arguments


def both_bind(place: str) -> ApiError:
    """The refusal of a request that binds its answer at `place` too: together they could leave no token to choose."""
    return bad_request(f"{FIELD} and {place} both bind the answer; keep one of them.", FIELD)


def binds_first_token(constraints: Mapping[str, Any] | None) -> bool:
    """Whether the whole of what the model says, from its first token, is bound to be something else than free text."""
    return constraints is not None and "catalog" in constraints


def _refuse_large_integers(constraints: Mapping[str, Any]) -> None:
    pending: list[Any] = [constraints]
    for item in pending:
        if isinstance(item, dict):
            pending += item.values()
        elif isinstance(item, list):
            pending += item
        elif isinstance(item, int) and not -(2**63) <= item < 2**64:
            raise bad_request(f"{FIELD} must hold integers of at most 64 bits.", FIELD)
