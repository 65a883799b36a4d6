"""The `sampling_parameters` of a request: which keys there are, what each may hold, and how it reads as vLLM's
argument.

Pure: JSON text in, keyword arguments of vLLM's `SamplingParams` out. A rule that needs the model (vocabulary size,
context length, grammar) is vLLM's to check; everything else is refused here, by name, before vLLM sees it. Bounds are
those of vLLM's own check."""

import json
import math
from collections.abc import Callable
from typing import Any

from vllm_backend.contract import SAMPLING_PARAMETERS, InvalidArgument

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

CONSTRAINTS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
"""The keys of `structured_outputs`, of which a request gives exactly one."""


def place_of(key: str) -> str:
    return f"{SAMPLING_PARAMETERS}.{key}"


def parse_sampling(text: str) -> dict[str, Any]:
    """Reads a request's `sampling_parameters`.

    Returns arguments for `SamplingParams`, with `structured_outputs` still a dict that holds one constraint.
    `max_tokens: null` is kept (the rest of the context); any other null is as if absent.
    Raises InvalidArgument.
    """
    values = _json_object(text, SAMPLING_PARAMETERS)
    arguments: dict[str, Any] = {}
    for key, value in values.items():
        read = _KEYS.get(key)
        if read is None:
            raise InvalidArgument(place_of(key), "is not a sampling parameter of this backend.")
        if value is None:
            if key == "max_tokens":
                arguments[key] = None
            continue
        try:
            arguments[key] = read(value)
        except ValueError as error:
            raise InvalidArgument(place_of(key), str(error)) from None
    _check_together(arguments)
    return arguments


def constraint_kind(arguments: dict[str, Any]) -> str | None:
    """The kind of the request's structured output (`json`, `regex`, …), None if it has none."""
    constraint = arguments.get("structured_outputs")
    return next(iter(constraint)) if constraint else None


def _check_together(arguments: dict[str, Any]) -> None:
    min_tokens = arguments.get("min_tokens", 0)
    # Absent, it is vLLM's own default of 16.
    max_tokens = arguments.get("max_tokens", 16)
    if max_tokens is not None and min_tokens > max_tokens:
        raise InvalidArgument(
            place_of("min_tokens"), f"must be at most max_tokens, which is {max_tokens}, not {min_tokens}."
        )
    if arguments.get("stop") and arguments.get("detokenize") is False:
        raise InvalidArgument(place_of("stop"), "needs detokenize, which is false.")
    if "prompt_logprobs" in arguments and arguments.get("skip_reading_prefix_cache") is False:
        # vLLM would leave the positions out that it reads from its prefix cache.
        raise InvalidArgument(
            place_of("skip_reading_prefix_cache"), "must be true or absent, since prompt_logprobs is given."
        )


def _json_object(text: str, place: str) -> dict[str, Any]:
    try:
        value = _json(text)
        if not isinstance(value, dict):
            raise ValueError(f"must be a JSON object, not {shown(value)}.")
    except ValueError as error:
        raise InvalidArgument(place, str(error)) from None
    return value


def _json(text: str) -> Any:
    """The value of a JSON text; ValueError with the rest of the sentence."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
        if "\\u" in text:
            # Half of a surrogate pair is legal JSON but no text: it could not be sent to the engine.
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("is nested too deeply.") from None
    except UnicodeEncodeError:
        raise ValueError("holds half of a surrogate pair.") from None
    except ValueError as error:
        raise ValueError(f"is not valid JSON: {error}.") from None
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def shown(value: Any) -> str:
    """The value as JSON, short enough for an error text."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}..."


# Readers: a JSON value in, the argument out; ValueError with the rest of the sentence when it is wrong.

_Reader = Callable[[Any], Any]


def _number(bounds: str, allowed: Callable[[float], bool]) -> _Reader:
    def read(value: Any) -> float:
        # A number in a string is a number to the stock backend too.
        if isinstance(value, str):
            try:
                number = float(value)
            except ValueError:
                number = math.nan
        elif isinstance(value, int | float) and not isinstance(value, bool):
            try:
                number = float(value)
            except OverflowError:
                number = math.nan
        else:
            number = math.nan
        if not math.isfinite(number) or not allowed(number):
            raise ValueError(f"must be a number {bounds}, not {shown(value)}.")
        return number

    return read


def _integer(at_least: int, at_most: int = INT64_MAX) -> _Reader:
    one_sided = at_least > INT64_MIN and at_most == INT64_MAX
    bounds = f"of at least {at_least}" if one_sided else f"from {at_least} to {at_most}"

    def read(value: Any) -> int:
        number: int | None = None
        if isinstance(value, int) and not isinstance(value, bool):
            number = value
        elif isinstance(value, float) and value.is_integer():
            number = int(value)
        elif isinstance(value, str):
            try:
                number = int(value)
            except ValueError:
                number = None
        if number is None or not at_least <= number <= at_most:
            raise ValueError(f"must be an integer {bounds}, not {shown(value)}.")
        return number

    return read


def _flag(value: Any) -> bool:
    # Strings are refused: "false" would be true to Python. 0 and 1 are what the stock backend takes for flags as well.
    if isinstance(value, bool) or (isinstance(value, int) and value in (0, 1)):
        return bool(value)
    raise ValueError(f"must be true or false, not {shown(value)}.")


def _token_id(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= INT64_MAX:
        raise ValueError(f"must hold token ids, not {shown(value)}.")
    return value


def _token_ids(value: Any) -> list[int]:
    if not isinstance(value, list) or not value:
        raise ValueError(f"must be a list of at least one token id, not {shown(value)}.")
    return [_token_id(token) for token in value]


def _optional_token_ids(value: Any) -> list[int]:
    return _token_ids(value) if value != [] else []


def _strings(value: Any) -> list[str]:
    if not isinstance(value, list):
        raise ValueError(f"must be a list of strings, not {shown(value)}.")
    for item in value:
        if not isinstance(item, str) or not item:
            raise ValueError(f"must hold strings that are not empty, not {shown(item)}.")
    return value


def _stop(value: Any) -> list[str]:
    if isinstance(value, str):
        value = [value]
    elif not isinstance(value, list):
        raise ValueError(f"must be a string or a list of strings, not {shown(value)}.")
    return _strings(value)


def _logit_bias(value: Any) -> dict[int, float]:
    if not isinstance(value, dict):
        raise ValueError(f"must be an object of token ids and biases, not {shown(value)}.")
    bias = _number("from -100 to 100", lambda number: -100 <= number <= 100)
    biases: dict[int, float] = {}
    for token, amount in value.items():
        # JSON's keys are strings. Plain digits only: int() would also take "1_0", " 1" and digits of other scripts.
        if not (token.isascii() and token.isdigit() and len(token) < 19):
            raise ValueError(f"must have token ids as keys, not {shown(token)}.")
        try:
            biases[int(token)] = bias(amount)
        except ValueError as error:
            raise ValueError(f"the bias of token {token} {error}") from None
    return biases


def _extra_args(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"must be an object, not {shown(value)}.")
    # Arguments travel to the engine as MessagePack, whose integers end at 64 bits.
    pending: list[Any] = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)
        elif isinstance(item, int) and not INT64_MIN <= item < 2**64:
            raise ValueError(f"must hold integers of at most 64 bits, not {shown(item)}.")
    return value


def _repetition_detection(value: Any) -> dict[str, int]:
    names = ("max_pattern_size", "min_pattern_size", "min_count")
    if not isinstance(value, dict) or any(name not in names for name in value):
        raise ValueError(f"must be an object with the keys {', '.join(names)}, not {shown(value)}.")
    integer = _integer(0, 2**31 - 1)
    arguments: dict[str, int] = {}
    for name, item in value.items():
        try:
            arguments[name] = integer(item)
        except ValueError as error:
            raise ValueError(f"its {name} {error}") from None
    return arguments


def _only_one(value: Any) -> int:
    if _integer(1)(value) != 1:
        raise ValueError("must be 1: a request has one answer; send one request for each.")
    return 1


def _not_supported_yet(value: Any) -> Any:
    raise ValueError("not supported yet.")


def _structured_outputs(value: Any) -> dict[str, Any]:
    """One constraint, `{kind: value}`. Takes the object itself, or the JSON text of one as the stock backend does."""
    if isinstance(value, str):
        value = _json(value)
    if not isinstance(value, dict):
        raise ValueError(f"must be an object, or the JSON text of one, not {shown(value)}.")
    constraint: dict[str, Any] = {}
    for kind, item in value.items():
        if kind in CONSTRAINTS:
            if item is not None:
                constraint[kind] = item
        elif kind in ("disable_any_whitespace", "disable_additional_properties", "whitespace_pattern"):
            # vLLM's engine reads these from its own configuration only.
            if item not in (None, False):
                raise ValueError(
                    f"{kind} cannot be set for one request: set it in model.json's structured_outputs_config."
                )
        else:
            raise ValueError(f"has no key {shown(kind)}: give one of {', '.join(CONSTRAINTS)}.")
    if len(constraint) != 1:
        given = f"not {' and '.join(constraint)}" if constraint else "none is given"
        raise ValueError(f"must hold exactly one of {', '.join(CONSTRAINTS)}: {given}.")
    ((kind, item),) = constraint.items()
    return {kind: _constraint_value(kind, item)}


def _constraint_value(kind: str, item: Any) -> Any:
    if kind == "json":
        if isinstance(item, bool):
            # true and false are JSON schemas; vLLM takes such a one as text.
            return json.dumps(item)
        if isinstance(item, dict) or (isinstance(item, str) and item.strip()):
            return item
        raise ValueError(f"json must be a JSON schema, not {shown(item)}.")
    if kind == "json_object":
        if item is True:
            return True
        raise ValueError("json_object must be true; leave structured_outputs out for free text.")
    if kind == "choice":
        if not isinstance(item, list) or not item or not all(isinstance(choice, str) for choice in item):
            raise ValueError(f"choice must be a list of at least one string, not {shown(item)}.")
        return item
    # An empty regex is a constraint (the empty answer); an empty grammar or tag is none.
    if not isinstance(item, str) or (kind != "regex" and not item.strip()):
        raise ValueError(f"{kind} must be a text that is not empty, not {shown(item)}.")
    return item


_penalty = _number("from -2 to 2", lambda number: -2 <= number <= 2)

_KEYS: dict[str, _Reader] = {
    "n": _only_one,
    "temperature": _number("from 0 to 2", lambda number: 0 <= number <= 2),
    "top_p": _number("above 0 and at most 1", lambda number: 0 < number <= 1),
    "top_k": _integer(-1),
    "min_p": _number("from 0 to 1", lambda number: 0 <= number <= 1),
    "presence_penalty": _penalty,
    "frequency_penalty": _penalty,
    "repetition_penalty": _number("above 0", lambda number: number > 0),
    "seed": _integer(INT64_MIN),
    "max_tokens": _integer(1),
    "min_tokens": _integer(0),
    "stop": _stop,
    "stop_token_ids": _optional_token_ids,
    "include_stop_str_in_output": _flag,
    "ignore_eos": _flag,
    "bad_words": _strings,
    "allowed_token_ids": _token_ids,
    "logit_bias": _logit_bias,
    "logprobs": _integer(-1),
    "logprob_token_ids": _token_ids,
    "structured_outputs": _structured_outputs,
    "detokenize": _flag,
    "skip_special_tokens": _flag,
    "spaces_between_special_tokens": _flag,
    "stream_interval": _integer(1),
    "skip_reading_prefix_cache": _flag,
    "thinking_token_budget": _integer(-1),
    "repetition_detection": _repetition_detection,
    "extra_args": _extra_args,
    "prompt_logprobs": _integer(-1),
    "watermarking": _flag,
    "lora_name": _not_supported_yet,
}
