"""The dialect of this project's backend: one more set of optional inputs, and errors that name a code and a place.
Pure.

`INVALID_ARG <place>: <sentence>` is the client's fault, `INTERNAL: <sentence>` the engine's; the places are an
input's name, `sampling_parameters.<key>`, or `prompt`.
"""

import json
from typing import Any

from bench.mock_engine.backend import (
    RETURN_FLAGS,
    BackendError,
    GenerateRequest,
    Model,
    Refusal,
    Tensor,
    Values,
    asked_outputs,
    check_with_model,
    first,
    tokenize,
)
from bench.mock_engine.sampling import KEYS, Constraint, SamplingParams, constraint_of

_NOT_SUPPORTED = {
    "prompt_logprobs": "not supported: no output carries them.",
    "lora_name": "not supported yet.",
}


class OwnBackend:
    sees_close_at_once = True
    inputs: tuple[Tensor, ...] = (
        Tensor("text_input", "STRING", (1,)),
        Tensor("input_ids", "INT64", (-1,)),
        Tensor("stream", "BOOL", (1,)),
        Tensor("sampling_parameters", "STRING", (1,)),
        Tensor("exclude_input_in_output", "BOOL", (1,)),
        Tensor("send_admission", "BOOL", (1,)),
        Tensor("add_special_tokens", "BOOL", (1,)),
        *(Tensor(flag, "BOOL", (1,)) for flag in RETURN_FLAGS),
        Tensor("image", "STRING", (-1,)),
        Tensor("embedding_request", "STRING", (1,)),
    )

    def read(self, values: Values, model: Model) -> GenerateRequest:
        for name in ("image", "embedding_request"):
            if name in values:
                raise _invalid(name, "not supported yet.")
        stream = bool(first(values, "stream"))
        ids = values.get("input_ids")
        text = first(values, "text_input")
        if (ids is None) == (text is None):
            raise _invalid(
                "text_input" if ids is None else "input_ids", "give exactly one of text_input and input_ids."
            )
        exclude = first(values, "exclude_input_in_output", stream or ids is not None)
        if not exclude and (stream or ids is not None):
            raise _invalid(
                "exclude_input_in_output", "must be true or absent when streaming and for a prompt given as input_ids."
            )
        params = _sampling_params(first(values, "sampling_parameters", "{}"))
        try:
            prompt_ids = ids if ids is not None else tokenize(text, first(values, "add_special_tokens", True), model)
            check_with_model(prompt_ids, params, model)
        except Refusal as refusal:
            place = "prompt" if refusal.key == "prompt" else f"sampling_parameters.{refusal.key}"
            raise _invalid(place, refusal.sentence) from None
        return GenerateRequest(
            prompt_ids=prompt_ids,
            prefix="" if exclude else text,
            stream=stream,
            send_admission=bool(first(values, "send_admission")),
            outputs=asked_outputs(values),
            params=params,
        )

    def engine_error(self, request: GenerateRequest) -> str | None:
        constraint = request.params.constraint
        which = f", which is constrained by structured_outputs.{constraint.kind}," if constraint else ""
        return f"INTERNAL: the engine ended the request{which} with an error and gave no reason."


def _invalid(place: str, sentence: str) -> BackendError:
    return BackendError(f"INVALID_ARG {place}: {sentence}")


def _sampling_params(text: str) -> SamplingParams:
    try:
        given = json.loads(text)
    except ValueError as error:
        raise _invalid("sampling_parameters", f"is not valid JSON: {error}.") from None
    if not isinstance(given, dict):
        raise _invalid("sampling_parameters", "must be a JSON object.")
    values: dict[str, Any] = {}
    for key, value in given.items():
        if key not in KEYS:
            raise _invalid(f"sampling_parameters.{key}", "is not a sampling parameter of this backend.")
        if value is not None:
            if key in _NOT_SUPPORTED:
                raise _invalid(f"sampling_parameters.{key}", _NOT_SUPPORTED[key])
            values[key] = _typed(key, value)
        elif key == "max_tokens":
            values[key] = None
    max_tokens = values.get("max_tokens", 16)
    if max_tokens is not None and values.get("min_tokens", 0) > max_tokens:
        raise _invalid("sampling_parameters.min_tokens", f"must be at most max_tokens, which is {max_tokens}.")
    constraint: Constraint | None = None
    if "structured_outputs" in values:
        constraint = _constraint(values["structured_outputs"])
    return SamplingParams.of(values, constraint)


def _typed(key: str, value: Any) -> Any:
    rule = KEYS[key]
    is_right_type = (
        rule.scalar is None
        or type(value) is rule.scalar
        or (rule.scalar is float and type(value) is int)
        or (rule.scalar is int and type(value) is float and value.is_integer())
    )
    if not is_right_type or not rule.allowed(value) or (key == "n" and value != 1):
        bounds = "1: a request has one answer" if key == "n" else rule.bounds
        raise _invalid(f"sampling_parameters.{key}", f"must be {bounds}, not {json.dumps(value)}.")
    if key == "logit_bias":
        # JSON's keys are strings.
        if not all(token.isdecimal() for token in value):
            raise _invalid("sampling_parameters.logit_bias", "must have token ids as keys.")
        return {int(token): bias for token, bias in value.items()}
    return rule.scalar(value) if rule.scalar is not None else value


def _constraint(value: Any) -> Constraint:
    place = "sampling_parameters.structured_outputs"
    try:
        given = json.loads(value) if isinstance(value, str) else value
        if not isinstance(given, dict):
            raise ValueError("must be an object, or the JSON text of one.")
        return constraint_of(given)
    except ValueError as error:
        raise _invalid(place, str(error)) from None
