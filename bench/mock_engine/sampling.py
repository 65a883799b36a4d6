"""vLLM's sampling parameters, as both dialects of the backend end up with them. Pure.

What a dialect accepts and how it words a refusal is in `own.py` and `stock.py`; the values and what the mock does
with them are here. Parameters that the mock has no use for (penalties, bad words, …) still choose another text, so
that they can be told apart.
"""

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

ConstraintKind = Literal["json", "json_object", "regex", "choice", "grammar", "structural_tag"]
CONSTRAINT_KINDS: tuple[ConstraintKind, ...] = get_args(ConstraintKind)

_GREEDY_BELOW = 1e-5
_LEAST_TOP_P = 1e-3
_MOST_BIAS = 100
_SHAPING = (
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "allowed_token_ids",
    "bad_words",
    "extra_args",
    "lora_name",
)
_SHAPING_IF_RANDOM = ("top_p", "top_k", "min_p", "seed")


@dataclass(frozen=True, slots=True)
class Constraint:
    """One structured output: `value` is a JSON schema (object, bool or text), true, a text, or a list of strings,
    by `kind`."""

    kind: ConstraintKind
    value: Any


@dataclass(frozen=True, slots=True)
class RepetitionDetection:
    """vLLM's rule for an answer that goes round in circles; by default off."""

    max_pattern_size: int = 0
    min_pattern_size: int = 0
    min_count: int = 0

    def check(self) -> None:
        """Raises ValueError with vLLM's sentence."""
        if min(self.max_pattern_size, self.min_pattern_size) < 0 or self.min_pattern_size > self.max_pattern_size:
            raise ValueError(
                "max_pattern_size, min_pattern_size must be >=0, with min_pattern_size <= max_pattern_size. "
                "Set both to 0 to disable repetitive pattern detection."
            )
        if self.max_pattern_size > 0 and self.min_count < 2:
            raise ValueError(
                "min_count must be >= 2 to detect repetitive patterns in engine output. "
                "If you do not wish to detect repetitive patterns, set max_pattern_size to 0."
            )

    def found_in(self, tokens: list[int]) -> bool:
        """Whether the tokens end with some pattern, of a size within the bounds, `min_count` times in a row."""
        # As vLLM, which stops at the first size that the tokens are too few for: a client may ask for any.
        most = min(self.max_pattern_size, len(tokens) // self.min_count) if self.min_count else 0
        for size in range(max(self.min_pattern_size, 1), most + 1):
            if tokens[-size * self.min_count :] == tokens[-size:] * self.min_count:
                return True
        return False


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """The parameters that change what the mock does. `max_tokens` None is the rest of the context."""

    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    temperature: float = 1.0
    logprobs: int | None = None
    logprob_token_ids: tuple[int, ...] | None = None
    prompt_logprobs: int | None = None
    repetition_detection: RepetitionDetection | None = None
    skip_special_tokens: bool = True
    stream_interval: int = 1
    constraint: Constraint | None = None
    no_repeat_ngram: int | None = None
    """The size of the sequences of tokens that come once, where the engine has a logits processor for it."""
    shaping: dict[str, Any] = field(default_factory=dict)
    """The other parameters that change a model's choice of tokens, by vLLM's names."""

    @classmethod
    def of(
        cls, values: dict[str, Any], constraint: Constraint | None, no_repeat_ngram: int | None = None
    ) -> "SamplingParams":
        """From valid values by vLLM's names (`KEYS`); a key that is absent has vLLM's default."""
        stop = values.get("stop") or ()
        kept = (
            "max_tokens",
            "min_tokens",
            "include_stop_str_in_output",
            "ignore_eos",
            "temperature",
            "logprobs",
            "prompt_logprobs",
            "skip_special_tokens",
            "stream_interval",
        )
        listed, repetition = values.get("logprob_token_ids"), values.get("repetition_detection")
        return cls(
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
            stop_token_ids=frozenset(values.get("stop_token_ids") or ()),
            logprob_token_ids=None if listed is None else tuple(listed),
            repetition_detection=None if repetition is None else RepetitionDetection(**repetition),
            constraint=constraint,
            no_repeat_ngram=no_repeat_ngram,
            shaping={key: values[key] for key in (*_SHAPING, *_SHAPING_IF_RANDOM) if key in values},
            **{key: values[key] for key in kept if key in values},
        )

    @property
    def greedy(self) -> bool:
        return self.temperature < _GREEDY_BELOW

    @property
    def takes_likeliest(self) -> bool:
        """Whether every token is the likeliest one."""
        shaping = self.shaping
        limits = (shaping.get("top_k") == 1, shaping.get("top_p", 1) < _LEAST_TOP_P, shaping.get("min_p") == 1)
        return self.greedy or any(limits)

    @property
    def only_tokens(self) -> tuple[int, ...]:
        """The tokens that are left to choose from, by `allowed_token_ids` or a bias of 100; none where all are."""
        biased = tuple(token for token, bias in (self.shaping.get("logit_bias") or {}).items() if bias == _MOST_BIAS)
        return biased or tuple(self.shaping.get("allowed_token_ids") or ())

    @property
    def token_logprobs(self) -> bool:
        """Whether the answer's tokens get logprobs."""
        return self.logprobs is not None or self.logprob_token_ids is not None

    def draw_seed(self, prompt_ids: Sequence[int]) -> int:
        """The number that decides the whole answer.

        It depends on the prompt and on what shapes the choice of tokens, but not on where the answer ends: a higher
        `max_tokens` or another `stop` gives a longer or shorter piece of the same text. A greedy request does not
        depend on `seed`, `top_p` and the like.
        """
        names = _SHAPING if self.greedy else (*_SHAPING, *_SHAPING_IF_RANDOM)
        shaping = {key: self.shaping[key] for key in names if key in self.shaping}
        temperature = 0 if self.greedy else self.temperature
        constraint = (self.constraint.kind, self.constraint.value) if self.constraint else None
        text = json.dumps([list(prompt_ids), temperature, shaping, constraint], sort_keys=True)
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


@dataclass(frozen=True, slots=True)
class Key:
    """One sampling parameter: vLLM's type for it (None: not a scalar), its bounds in words, and as a test of a
    typed value."""

    scalar: type | None
    bounds: str
    allowed: Callable[[Any], bool]


def _finite(allowed: Callable[[float], bool]) -> Callable[[float], bool]:
    return lambda value: math.isfinite(value) and allowed(value)


def _list_of(item: type, not_empty: bool = False) -> Callable[[Any], bool]:
    return lambda value: (
        isinstance(value, list)
        and all(isinstance(entry, item) and not isinstance(entry, bool) and (entry or not not_empty) for entry in value)
    )


def _is_repetition_detection(value: Any) -> bool:
    names = {entry.name for entry in fields(RepetitionDetection)}
    return isinstance(value, dict) and set(value) <= names and _ids(list(value.values()))


_texts = _list_of(str, not_empty=True)
_ids = _list_of(int)
_penalty = Key(float, "a number from -2 to 2", _finite(lambda value: -2 <= value <= 2))
_flag = Key(bool, "true or false", lambda value: True)
_ids_key = Key(None, "a list of token ids", _ids)

KEYS: dict[str, Key] = {
    "n": Key(int, "an integer of at least 1", lambda value: value >= 1),
    "temperature": Key(float, "a number from 0 to 2", _finite(lambda value: 0 <= value <= 2)),
    "top_p": Key(float, "a number above 0 and at most 1", _finite(lambda value: 0 < value <= 1)),
    "top_k": Key(int, "an integer of at least -1", lambda value: value >= -1),
    "min_p": Key(float, "a number from 0 to 1", _finite(lambda value: 0 <= value <= 1)),
    "presence_penalty": _penalty,
    "frequency_penalty": _penalty,
    "repetition_penalty": Key(float, "a number above 0", _finite(lambda value: value > 0)),
    "seed": Key(int, "an integer of 64 bits", lambda value: -(2**63) <= value < 2**63),
    "max_tokens": Key(int, "an integer of at least 1", lambda value: value >= 1),
    "min_tokens": Key(int, "an integer of at least 0", lambda value: value >= 0),
    "logprobs": Key(int, "an integer of at least -1", lambda value: value >= -1),
    "prompt_logprobs": Key(int, "an integer of at least -1", lambda value: value >= -1),
    "stop": Key(
        None,
        "a string or a list of strings, none of them empty",
        lambda value: _texts([value] if isinstance(value, str) else value),
    ),
    "stop_token_ids": _ids_key,
    "allowed_token_ids": _ids_key,
    "logprob_token_ids": _ids_key,
    "bad_words": Key(None, "a list of strings, none of them empty", _texts),
    "logit_bias": Key(None, "an object of token ids and biases", lambda value: isinstance(value, dict)),
    "extra_args": Key(None, "an object", lambda value: isinstance(value, dict)),
    "repetition_detection": Key(
        None, "an object with max_pattern_size, min_pattern_size and min_count", _is_repetition_detection
    ),
    "structured_outputs": Key(None, "an object", lambda value: True),
    "ignore_eos": _flag,
    "include_stop_str_in_output": _flag,
    "detokenize": _flag,
    "skip_special_tokens": _flag,
    "spaces_between_special_tokens": _flag,
    "skip_reading_prefix_cache": _flag,
    "watermarking": _flag,
    "stream_interval": Key(int, "an integer of at least 1", lambda value: value >= 1),
    "thinking_token_budget": Key(int, "an integer of at least -1", lambda value: value >= -1),
    "lora_name": Key(str, "a string", lambda value: True),
}
"""Every parameter that a client of Triton's vLLM backend may send. vLLM's internal ones are left out: they count as
unknown."""

_WITHOUT_EFFECT = ("disable_any_whitespace", "disable_additional_properties", "whitespace_pattern")
"""Keys of vLLM's `StructuredOutputsParams` that no engine backend reads per request."""


def constraint_of(given: dict[str, Any]) -> Constraint:
    """The one constraint of a `structured_outputs` object. Raises ValueError, with vLLM's sentence where it has
    one."""
    unknown = sorted(set(given) - {*CONSTRAINT_KINDS, *_WITHOUT_EFFECT})
    if unknown:
        raise ValueError(f"unknown key {unknown[0]!r}: give one of {', '.join(CONSTRAINT_KINDS)}.")
    kinds = [kind for kind in CONSTRAINT_KINDS if given.get(kind) is not None]
    if len(kinds) > 1:
        raise ValueError("You can only use one kind of structured outputs constraint but multiple are specified.")
    if not kinds:
        raise ValueError("You must use one kind of structured outputs constraint but none are specified.")
    constraint = Constraint(kinds[0], given[kinds[0]])
    _check_value(constraint)
    return constraint


def _check_value(constraint: Constraint) -> None:
    kind, value = constraint.kind, constraint.value
    if kind == "json":
        if not isinstance(value, dict | bool | str) or (isinstance(value, str) and not value.strip()):
            raise ValueError("structured_outputs.json must be a JSON schema.")
    elif kind == "json_object":
        if value is not True:
            raise ValueError("structured_outputs.json_object must be True if set.")
    elif kind == "choice":
        if not value or not _list_of(str)(value):
            raise ValueError(f"Choice '{value}' cannot be an empty list.")
    elif not isinstance(value, str) or (kind != "regex" and not value.strip()):
        raise ValueError(f"structured_outputs.{kind} cannot be an empty string.")
