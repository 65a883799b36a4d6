"""Requests → vLLM's sampling parameters and the backend's other inputs. Pure: values in, values out.

Bounds of single fields are checked when the request is parsed; here are the rules between fields and
the defaults. Defaults are the model's own (`generation_config.json`), as vLLM's server takes them, and
nothing is invented: a parameter that neither the client nor the model names is left to the engine.
"""

import math
from collections.abc import Mapping
from typing import Any

from gateway.openai.errors import bad_request
from gateway.openai.fields import CHAT, COMPLETION, Field, has_no_effect, is_one_of
from gateway.openai.schema import ChatRequest, CompletionRequest
from gateway.translate.constraints import FIELD as CONSTRAINTS
from gateway.translate.constraints import with_constraints
from gateway.translate.structured import FIELDS as STRUCTURED
from gateway.triton.contract import Backend, ModelContract

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

GenerateRequest = ChatRequest | CompletionRequest


def _forwarded(table: Mapping[str, Field]) -> dict[str, str]:
    return {f.name: f.key for f in table.values() if f.key is not None}


_PARAMETERS = {ChatRequest: _forwarded(CHAT), CompletionRequest: _forwarded(COMPLETION)}
_INPUTS = {f.name: f.input for f in CHAT.values() if f.input is not None}
# Which backend takes a field is the same for both request types.
_NOT_EVERYWHERE = {f.name: f for f in (*CHAT.values(), *COMPLETION.values()) if f.needs or not f.stock}

# Of a completion, what concerns the tokens that the engine chooses.
_OF_CHOSEN_TOKENS = (
    *(f.name for f in COMPLETION.values() if f.key and f.name not in ("max_tokens", "logprobs", "prompt_logprobs")),
    *STRUCTURED,
    CONSTRAINTS,
)

# OpenAI's and vLLM's for completions; a chat answers until it is done.
_COMPLETION_MAX_TOKENS = 16


def model_defaults(generation_config: Mapping[str, Any]) -> dict[str, Any]:
    """The sampling parameters that a model's `generation_config.json` sets."""
    return {
        ours: generation_config[theirs]
        for theirs, ours in _MODEL_DEFAULTS.items()
        if generation_config.get(theirs) is not None
    }


def sampling_parameters(
    request: GenerateRequest, defaults: Mapping[str, Any], max_model_len: int | None
) -> dict[str, Any]:
    """The sampling parameters of one request, without its constraint.

    `max_tokens` is always present: `None` means the rest of the context. `max_model_len` is the
    model's context length in tokens, `None` where unknown.
    """
    parameters = dict(defaults)
    keys = _PARAMETERS[type(request)]
    for name in keys.keys() & request.model_fields_set:
        value = getattr(request, name)
        if value is not None:
            parameters[keys[name]] = value
    if isinstance(request, ChatRequest):
        limit = _chat_limit(request, max_model_len)
        _chat_logprobs(request, parameters)
    else:
        limit = _completion_limit(request, max_model_len)
        if request.echo and request.logprobs is not None:
            _check_echoed_logprobs(request.logprobs, request.prompt_logprobs)
            parameters.setdefault("prompt_logprobs", request.logprobs)
    parameters["max_tokens"] = limit if limit is not None else defaults.get("max_tokens")
    _check_logprobs(request, parameters)
    # With a limit of 0 the engine gets 1.
    _check_min_tokens(parameters, 0 if request.max_tokens == 0 else parameters["max_tokens"])
    _check_logit_bias(request.logit_bias or {})
    _check_xargs(request.vllm_xargs or {})
    if arguments := with_constraints(request.vllm_xargs, request.constraints):
        parameters["extra_args"] = arguments
    if request.repetition_detection is not None:
        parameters["repetition_detection"] = request.repetition_detection.model_dump(exclude_none=True)
    return parameters


def without_effect(request: GenerateRequest, sampling: Mapping[str, Any]) -> list[str]:
    """Warnings of the fields that change nothing beside the request's others, in both APIs. `sampling` are the
    parameters for the engine."""
    if generates_nothing(request):
        return [
            f"{name} has no effect where max_tokens is 0: nothing is generated"
            for name in _OF_CHOSEN_TOKENS
            if getattr(request, name, None) is not None
        ]
    idle = []
    if request.return_tokens_as_token_ids and request.logprobs in (None, False):
        idle.append("return_tokens_as_token_ids")
    if request.stream_interval is not None and not request.stream:
        idle.append("stream_interval")
    if request.spaces_between_special_tokens is False and sampling.get("skip_special_tokens") is not False:
        idle.append("spaces_between_special_tokens")
    return [has_no_effect(CHAT[name]) for name in idle]


def generates_nothing(request: GenerateRequest) -> bool:
    """Whether the answer is the prompt alone."""
    return request.max_tokens == 0


def inputs(request: GenerateRequest) -> dict[str, Any]:
    """The fields that become inputs of the backend beside the sampling parameters."""
    if request.truncation_side is not None and request.truncate_prompt_tokens is None:
        raise bad_request("truncation_side needs truncate_prompt_tokens; leave it out.", "truncation_side")
    if request.truncate_prompt_tokens == 0:
        raise bad_request("truncate_prompt_tokens must be -1 or at least 1.", "truncate_prompt_tokens", "invalid_value")
    given = _INPUTS.keys() & request.model_fields_set
    return {_INPUTS[name]: value for name in given if (value := getattr(request, name)) is not None}


def refuse_missing(request: GenerateRequest, model: ModelContract) -> None:
    """Refuse what the model's backend cannot take: Triton would drop an input that is not declared, and NVIDIA's
    stock backend answers with an unrelated error."""
    stock = model.backend is Backend.STOCK
    for name in sorted(_NOT_EVERYWHERE.keys() & request.model_fields_set):
        field, value = _NOT_EVERYWHERE[name], getattr(request, name)
        if value is None or is_one_of(value, field.harmless):
            continue
        if stock and not field.stock:
            raise bad_request(
                f"{field.name} cannot reach the engine through Triton's stock vLLM backend; remove it, or install "
                "this project's vllm_backend.",
                param=field.name,
                code="unsupported_parameter",
            )
        if field.needs is not None and field.needs not in model.inputs:
            raise bad_request(
                f"{field.name} is not taken by the vllm_backend that serves this model; remove it, or install this "
                "project's newer one.",
                param=field.name,
                code="unsupported_parameter",
            )


def for_choice(parameters: Mapping[str, Any], number: int) -> Mapping[str, Any]:
    """The sampling parameters of choice `number`: with one seed, all choices would be the same."""
    seed = parameters.get("seed")
    if number == 0 or seed is None:
        return parameters
    if seed + number >= 2**63:
        raise bad_request("seed + n must stay below 2^63: choice number i gets seed + i.", "seed", "invalid_value")
    return {**parameters, "seed": seed + number}


def _chat_limit(request: ChatRequest, max_model_len: int | None) -> int | None:
    new, old = request.max_completion_tokens, request.max_tokens
    if new is not None and old is not None and new != old:
        raise bad_request(
            "max_tokens and max_completion_tokens are two names of one limit; give one of them.", param="max_tokens"
        )
    limit = new if new is not None else old
    _check_limit(limit, "max_tokens" if new is None else "max_completion_tokens", max_model_len)
    return limit


def _completion_limit(request: CompletionRequest, max_model_len: int | None) -> int:
    limit = request.max_tokens
    if limit is None:
        return _COMPLETION_MAX_TOKENS
    _check_limit(limit, "max_tokens", max_model_len)
    if limit == 0:
        if not request.echo:
            raise bad_request("max_tokens must be at least 1, or 0 with echo.", "max_tokens", "invalid_value")
        # The engine always generates: one token, which is left out of the answer.
        return 1
    return limit


def _check_limit(limit: int | None, name: str, max_model_len: int | None) -> None:
    if limit is not None and max_model_len is not None and limit > max_model_len:
        raise bad_request(
            f"{name} is {limit}, but the model's context holds {max_model_len} tokens, prompt included.",
            param=name,
            code="invalid_value",
        )


def _chat_logprobs(request: ChatRequest, parameters: dict[str, Any]) -> None:
    if request.logprobs:
        parameters.setdefault("logprobs", 0)
        return
    if request.top_logprobs:
        raise bad_request("top_logprobs needs logprobs: true; give it, or leave out both.", "top_logprobs")
    parameters.pop("logprobs", None)


def _check_logprobs(request: GenerateRequest, parameters: dict[str, Any]) -> None:
    # vLLM: tokens that are named take the place of the best-ranked ones.
    if request.logprob_token_ids is not None:
        if parameters.pop("logprobs", None) is None:
            raise bad_request("logprob_token_ids needs logprobs; give it, or leave out both.", "logprob_token_ids")
        name = "top_logprobs" if isinstance(request, ChatRequest) else "logprobs"
        if getattr(request, name):
            raise bad_request(
                f"{name} must be 0 beside logprob_token_ids: the tokens that it names take the place of the "
                "best-ranked ones.",
                name,
            )
    if request.prompt_logprobs is not None and request.stream:
        raise bad_request("prompt_logprobs are not available in a stream; leave out one of them.", "prompt_logprobs")


def _check_echoed_logprobs(logprobs: int, prompt_logprobs: int | None) -> None:
    if prompt_logprobs is not None and prompt_logprobs != -1 and (logprobs == -1 or prompt_logprobs < logprobs):
        raise bad_request(
            f"prompt_logprobs is {prompt_logprobs}, but with echo the prompt's tokens have as many alternatives as "
            f"logprobs asks for, which is {logprobs}; ask for at least as many, or leave prompt_logprobs out.",
            "prompt_logprobs",
        )


def _check_min_tokens(parameters: Mapping[str, Any], high: int | None) -> None:
    low = parameters.get("min_tokens")
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
