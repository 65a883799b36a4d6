"""Structured outputs: a valid instance of a constraint, drawn with a seed. Pure.

Grammars are compiled by llguidance, as in an engine whose structured-output backend is `guidance`, so what that
engine refuses is refused here in its words. The instance is then walked byte by byte through the matcher with
weights that prefer plain words, small numbers and an early end. A JSON instance is checked against its schema and
drawn again where the grammar was weaker than the schema (a day such as 30 February).
"""

import json
import random
from collections.abc import Callable
from typing import Any

import jsonschema_rs
import llguidance
from llguidance import LLMatcher, LLTokenizer

from bench.mock_engine.sampling import Constraint
from bench.mock_engine.words import WORDS

_BYTES = LLTokenizer("byte")
_END = _BYTES.eos_token
_DRAWS = 16
_SOFT_LIMIT = 160
"""From this many bytes on an instance is brought to its end on the shortest way."""


class ConstraintError(Exception):
    """The constraint is refused before the request starts; the text is the engine's."""


class EngineGaveUp(Exception):
    """A constraint that was accepted cannot be followed; vLLM ends such a request with `error` and no reason."""


def check(constraint: Constraint) -> None:
    """Raises ConstraintError where the engine would refuse the constraint at once."""
    if constraint.kind == "choice":
        return
    for grammar in _grammars(constraint):
        error = LLMatcher.validate_grammar(grammar)
        if error:
            raise ConstraintError(f"Grammar error: {error}")


def instance(constraint: Constraint, seed: int, max_bytes: int) -> bytes:
    """A text that obeys the constraint, at most `max_bytes` long: then it is the beginning of one.

    Raises ConstraintError for one that `check` refuses, EngineGaveUp where the matcher fails on the way.
    """
    rng = random.Random(seed)
    if constraint.kind == "choice":
        choice: str = rng.choice(constraint.value)
        return choice.encode()
    if constraint.kind == "structural_tag":
        tag = rng.choice(_tags(constraint.value))
        inner = _draw(_json_grammar(tag["schema"]), rng, max_bytes, is_json=True)
        text = tag["begin"].encode() + inner + tag["end"].encode()
        return bytes(text[:max_bytes])
    is_json = constraint.kind in ("json", "json_object")
    (grammar,) = _grammars(constraint)
    is_valid = _validator(constraint.value) if constraint.kind == "json" else None
    drawn = _draw(grammar, rng, max_bytes, is_json)
    for _ in range(_DRAWS):
        if is_valid is None or len(drawn) >= max_bytes or is_valid(json.loads(drawn)):
            break
        drawn = _draw(grammar, rng, max_bytes, is_json)
    return drawn


def _grammars(constraint: Constraint) -> list[str]:
    try:
        match constraint.kind:
            case "json":
                return [_json_grammar(constraint.value)]
            case "json_object":
                return [_json_grammar({"type": "object"})]
            case "regex":
                return [llguidance.grammar_from("regex", constraint.value)]
            case "grammar":
                return [llguidance.grammar_from("grammar", constraint.value)]
            case "structural_tag":
                return [_json_grammar(tag["schema"]) for tag in _tags(constraint.value)]
            case "choice":
                raise AssertionError("a choice needs no grammar")
    except (ValueError, KeyError, TypeError) as error:
        raise ConstraintError(f"Invalid grammar specification: {error}") from None


def _json_grammar(schema: Any) -> str:
    # As in an engine with `disable_any_whitespace`, which all deployments of this project pin.
    return LLMatcher.grammar_from_json_schema(schema, defaults={"whitespace_flexible": False})


def _tags(value: str) -> list[dict[str, Any]]:
    """The tags of the legacy form (`structures` and `triggers`), the only one that guidance takes."""
    tag = json.loads(value)
    # The newer form has neither key; vLLM's KeyError is what its user sees.
    _, structures = tag["triggers"], tag["structures"]
    if not structures:
        raise ValueError("No structural tags found in the grammar spec.")
    return list(structures)


def _validator(schema: Any) -> Callable[[Any], bool] | None:
    if isinstance(schema, str):
        schema = json.loads(schema)
    try:
        return jsonschema_rs.validator_for(schema, validate_formats=True).is_valid
    except (ValueError, jsonschema_rs.ValidationError):
        # llguidance takes some schemas that the validator does not; then there is nothing to check by.
        return None


def _draw(grammar: str, rng: random.Random, max_bytes: int, is_json: bool) -> bytes:
    matcher = LLMatcher(_BYTES, grammar, log_level=0)
    out = bytearray()
    state = _JsonState()
    while len(out) < max_bytes:
        forced = matcher.compute_ff_tokens()
        step = forced or _step(matcher, rng, state if is_json else None, ending=len(out) > _SOFT_LIMIT)
        if _END in step:
            return bytes(out)
        if not step or not matcher.consume_tokens(step):
            raise EngineGaveUp(matcher.get_error())
        out += bytes(step)
        if is_json:
            state.follow(step)
        if matcher.is_stopped():
            return bytes(out)
    return bytes(out[:max_bytes])


class _JsonState:
    """Whether the walk is inside a JSON string, and whether the string is still empty."""

    def __init__(self) -> None:
        self.in_string = False
        self.string_is_empty = False
        self._escaped = False

    def follow(self, step: list[int]) -> None:
        for byte in step:
            self.string_is_empty = not self.in_string and byte == ord('"')
            if self._escaped:
                self._escaped = False
            elif self.in_string and byte == ord("\\"):
                self._escaped = True
            elif byte == ord('"'):
                self.in_string = not self.in_string


# Groups of bytes with the weight of the group as a whole: one closing brace weighs more than all digits together.
_Weights = list[tuple[frozenset[int], float]]


def _group(text: str, weight: float) -> tuple[frozenset[int], float]:
    return frozenset(text.encode()), weight


_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_ENDED = (frozenset([_END]), 40.0)
_OUTSIDE_STRINGS: _Weights = [
    _ENDED,
    _group("}", 12),
    _group("]", 12),
    _group(",", 5),
    _group('"', 6),
    _group("12", 6),
    _group("03456789", 2),
    _group("tfn", 3),
    _group("{[", 2),
    _group("-", 0.3),
    _group(".", 0.2),
]
_INSIDE_STRINGS: _Weights = [
    _group('"', 6),
    _group(_LETTERS, 8),
    _group("12", 6),
    _group("03456789", 2),
    _group(_LETTERS.upper(), 1),
    _group("-_.:/@+", 2),
    _group(" ", 0.2),
]
_FREE: _Weights = [_ENDED, *_INSIDE_STRINGS]
# What ends an instance soonest, first; inside a string only its quote does. A number that a required member follows is
# ended by a comma.
_ENDING = [*([end] for end in (_END, ord("}"), ord("]"), ord('"'), ord("n"), ord(","))), [*b"0123456789"], [*b"tf"]]
_UNLIKELY = 1e-4


def _step(matcher: LLMatcher, rng: random.Random, json_state: _JsonState | None, ending: bool) -> list[int]:
    """The next bytes: a whole word inside a string where the grammar lets it, else one byte (or the end)."""
    allowed = _allowed(matcher)
    if not allowed:
        return []
    in_string = json_state is not None and json_state.in_string
    quote = ord('"')
    if in_string:
        assert json_state is not None
        empty = json_state.string_is_empty
        if quote in allowed and (ending or (not empty and rng.random() < 0.7)):
            return [quote]
        word = list((rng.choice(WORDS) if empty else f" {rng.choice(WORDS)}").encode())
        if not ending and matcher.validate_tokens(word) == len(word):
            return word
    elif ending:
        for candidates in _ENDING:
            open_ways = [byte for byte in candidates if byte in allowed]
            if open_ways:
                return [rng.choice(open_ways)]
    weights = _FREE if json_state is None else _INSIDE_STRINGS if in_string else _OUTSIDE_STRINGS
    groups = [(sorted(group & allowed), weight) for group, weight in weights if group & allowed]
    unlikely = sorted(allowed.difference(*(group for group, _ in weights)))
    if unlikely:
        groups.append((unlikely, _UNLIKELY))
    ((group, _),) = rng.choices(groups, [weight for _, weight in groups])
    return [rng.choice(group)]


def _allowed(matcher: LLMatcher) -> set[int]:
    mask = int.from_bytes(matcher.compute_bitmask(), "little")
    return {token for token in (*range(256), _END) if mask >> token & 1}
