"""The dialect of NVIDIA's stock backend, with its faults, as users have it in NVIDIA's images from 26.01 on. Pure.

Sampling parameters that its reader cannot take (an unknown key, a null where vLLM has a typed field, a value out of
bounds, `structured_outputs` as an object) all end in the same meaningless error, since the reader returns nothing
and the backend goes on with that. Types are cast, so `"false"` is true. Every error begins with `Error generating
stream: `.
"""

import json
from typing import Any

from bench.mock_engine.backend import (
    STOCK_OUTPUTS,
    BackendError,
    GenerateRequest,
    Model,
    Refusal,
    Tensor,
    Values,
    asked_outputs,
    check_with_model,
    first,
    return_flags,
    tokenize,
)
from bench.mock_engine.sampling import KEYS, Constraint, SamplingParams, constraint_of

_NO_PARAMETERS = "'NoneType' object has no attribute 'lora_name'"


class StockBackend:
    sees_close_at_once = False
    inputs: tuple[Tensor, ...] = (
        Tensor("text_input", "STRING", (1,), optional=False),
        Tensor("image", "STRING", (-1,)),
        Tensor("stream", "BOOL", (1,)),
        Tensor("sampling_parameters", "STRING", (1,)),
        Tensor("exclude_input_in_output", "BOOL", (1,)),
        *(Tensor(flag, "BOOL", (1,)) for flag in return_flags(STOCK_OUTPUTS)),
        Tensor("embedding_request", "STRING", (1,)),
    )
    outputs: tuple[Tensor, ...] = STOCK_OUTPUTS

    def read(self, values: Values, model: Model) -> GenerateRequest:
        for name in ("image", "embedding_request"):
            if name in values:
                raise _error(f"the mock engine's model takes no {name}")
        stream = bool(first(values, "stream"))
        if "text_input" not in values:
            raise _error("'NoneType' object has no attribute 'as_numpy'")
        text: str = first(values, "text_input")
        exclude = first(values, "exclude_input_in_output", stream)
        if stream and not exclude:
            raise _error("When streaming, `exclude_input_in_output` = False is not allowed.")
        params = _sampling_params(first(values, "sampling_parameters", "{}"))
        try:
            # Special tokens are always added.
            prompt_ids = tokenize(text, True, model)
            check_with_model(prompt_ids, params, model)
        except Refusal as refusal:
            raise _error(refusal.sentence) from None
        return GenerateRequest(
            prompt_ids=prompt_ids,
            prefix="" if exclude else text,
            stream=stream,
            send_admission=False,
            outputs=asked_outputs(values, self.outputs),
            params=params,
        )

    def engine_error(self, request: GenerateRequest) -> str | None:
        return None


def _error(text: str) -> BackendError:
    return BackendError(f"Error generating stream: {text}")


def _sampling_params(text: str) -> SamplingParams:
    try:
        values, constraint = _read(json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        raise _error(_NO_PARAMETERS) from None
    if values.get("logit_bias"):
        # JSON's keys are strings and stay so: vLLM's check of the ids fails on them.
        raise _error("'<' not supported between instances of 'str' and 'int'")
    return SamplingParams.of(values, constraint)


def _read(given: dict[str, Any]) -> tuple[dict[str, Any], Constraint | None]:
    """Raises whatever the stock reader would, which swallows it."""
    values: dict[str, Any] = {}
    constraint: Constraint | None = None
    for key, value in given.items():
        rule = KEYS[key]
        if key == "structured_outputs":
            # A JSON text inside the JSON; an object is a TypeError here.
            constraint = constraint_of(json.loads(value))
        elif rule.scalar is not None:
            values[key] = rule.scalar(value)
        elif value is not None:
            values[key] = value
        if key in values and not rule.allowed(values[key]):
            raise ValueError(key)
    if values.get("min_tokens", 0) > values.get("max_tokens", 16):
        raise ValueError("min_tokens")
    return values, constraint
