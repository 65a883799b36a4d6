"""ChatRequest → vLLM's sampling parameters. Pure: values in, values out.

Bounds of single fields are checked when the request is parsed; here are the rules between fields and
the defaults. Defaults are the model's own (`generation_config.json`), as vLLM's server takes them, and
nothing is invented: a parameter that neither the client nor the model names is left to the engine.
"""

import math
from collections.abc import Mapping
from typing import Any

from gateway.openai.errors import bad_request
from gateway.openai.fields import CHAT, Fate
from gateway.openai.schema import ChatRequest

# generation_config.json's name → vLLM's, the set that vLLM's own server reads
# (ModelConfig.get_diff_sampling_param).
_MODEL_DEFAULTS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "max_new_tokens": "max_tokens",
}

_FORWARDED = tuple((f.name, f.key or f.name) for f in CHAT.values() if f.fate is Fate.FORWARDED)
_NOT_ON_STOCK = tuple(f.name for f in CHAT.values() if f.fate is Fate.FORWARDED and not f.stock)


def model_defaults(generation_config: Mapping[str, Any]) -> dict[str, Any]:
    """The sampling parameters that a model's `generation_config.json` sets."""
    return {
        ours: generation_config[theirs]
        for theirs, ours in _MODEL_DEFAULTS.items()
        if generation_config.get(theirs) is not None
    }


def sampling_parameters(request: ChatRequest, defaults: Mapping[str, Any], max_model_len: int | None) -> dict[str, Any]:
    """The sampling parameters of one request, without its constraint.

    `max_tokens` is always present: `None` means the rest of the context. `max_model_len` is the
    model's context length in tokens, `None` where unknown.
    """
    parameters = dict(defaults)
    for name, key in _FORWARDED:
        value = getattr(request, name)
        if value is not None:
            parameters[key] = value
    limit = _limit(request, max_model_len)
    parameters["max_tokens"] = limit if limit is not None else defaults.get("max_tokens")
    _check_min_tokens(parameters)
    _check_logit_bias(request.logit_bias or {})
    _check_xargs(request.vllm_xargs or {})
    return parameters


def refuse_on_stock(request: ChatRequest) -> None:
    """Refuse what NVIDIA's stock backend cannot do, since it would answer with an unrelated error."""
    for name in _NOT_ON_STOCK:
        if getattr(request, name) is not None:
            raise bad_request(
                f"{name} cannot reach the engine through Triton's stock vLLM backend; remove it, or install "
                "this project's vllm_backend.",
                param=name,
                code="unsupported_parameter",
            )


def _limit(request: ChatRequest, max_model_len: int | None) -> int | None:
    new, old = request.max_completion_tokens, request.max_tokens
    if new is not None and old is not None and new != old:
        raise bad_request(
            "max_tokens and max_completion_tokens are two names of one limit; give one of them.", param="max_tokens"
        )
    limit = new if new is not None else old
    name = "max_tokens" if new is None else "max_completion_tokens"
    if limit is not None and max_model_len is not None and limit > max_model_len:
        raise bad_request(
            f"{name} is {limit}, but the model's context holds {max_model_len} tokens, prompt included.",
            param=name,
            code="invalid_value",
        )
    return limit


def _check_min_tokens(parameters: Mapping[str, Any]) -> None:
    low, high = parameters.get("min_tokens"), parameters["max_tokens"]
    if low is not None and high is not None and low > high:
        raise bad_request(f"min_tokens is {low}, above max_tokens, which is {high}.", param="min_tokens")


def _check_logit_bias(bias: Mapping[str, Any]) -> None:
    for token, value in bias.items():
        place = f"logit_bias.{token}"
        if not (token.isascii() and token.isdigit()):
            raise bad_request(f'{place}: a key must be a token id, such as "50256".', place)
        if type(value) not in (int, float) or not -100 <= value <= 100:
            raise bad_request(f"{place} must be a number from -100 to 100.", place)


def _check_xargs(arguments: Mapping[str, Any]) -> None:
    """Strings, numbers and lists of them, as vLLM's server takes them; a number that JSON can write."""
    for name, value in arguments.items():
        for item in value if isinstance(value, list) else [value]:
            if type(item) not in (str, int, float) or (type(item) is float and not math.isfinite(item)):
                place = f"vllm_xargs.{name}"
                raise bad_request(f"{place} must be a string, a number or a list of these.", place)
