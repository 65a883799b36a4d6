"""The dialect of this project's backend: one more set of optional inputs, and errors that name a code and a place.
Pure.

`INVALID_ARG <place>: <sentence>` is the client's fault, `INTERNAL: <sentence>` the engine's; the places are an
input's name, `sampling_parameters.<key>`, or `prompt`.
"""

import json
from collections.abc import Sequence, Set
from typing import Any, Literal

from bench.mock_engine.backend import (
    STOCK_OUTPUTS,
    BackendError,
    GenerateRequest,
    Model,
    Refusal,
    Tensor,
    Truncation,
    Values,
    asked_outputs,
    check_with_model,
    first,
    return_flags,
    tokenize,
)
from bench.mock_engine.reasoning import ReasoningParser, has_ended
from bench.mock_engine.sampling import KEYS, Constraint, SamplingParams, constraint_of
from bench.mock_engine.words import WORDS

SchedulingPolicy = Literal["fcfs", "priority"]

_OUTPUTS = (
    *STOCK_OUTPUTS,
    Tensor("prompt_logprobs", "STRING", (-1,)),
    Tensor("token_ids", "STRING", (-1,)),
    Tensor("prompt_token_ids", "STRING", (-1,)),
    Tensor("stop_reason", "STRING", (-1,)),
)
_SALT_LENGTH = 128
_SESSION_LENGTH = 1024


class OwnBackend:
    """`scheduling_policy` is the engine's: with `priority`, requests may have one. The mock has no queue to order.
    `without` are sampling parameters and inputs that it is too old to have; `reasoning_parser` is the engine's, if it
    has one."""

    sees_close_at_once = True
    inputs: tuple[Tensor, ...] = (
        Tensor("text_input", "STRING", (1,)),
        Tensor("input_ids", "INT64", (-1,)),
        Tensor("stream", "BOOL", (1,)),
        Tensor("sampling_parameters", "STRING", (1,)),
        Tensor("exclude_input_in_output", "BOOL", (1,)),
        Tensor("send_admission", "BOOL", (1,)),
        Tensor("add_special_tokens", "BOOL", (1,)),
        Tensor("priority", "INT32", (1,)),
        Tensor("truncate_prompt_tokens", "INT64", (1,)),
        Tensor("truncation_side", "STRING", (1,)),
        Tensor("cache_salt", "STRING", (1,)),
        Tensor("session_id", "STRING", (1,)),
        Tensor("reasoning_ended", "BOOL", (1,)),
        *(Tensor(flag, "BOOL", (1,)) for flag in return_flags(_OUTPUTS)),
        Tensor("image", "STRING", (-1,)),
        Tensor("embedding_request", "STRING", (1,)),
    )
    outputs: tuple[Tensor, ...] = _OUTPUTS

    def __init__(
        self,
        scheduling_policy: SchedulingPolicy = "fcfs",
        without: Sequence[str] = (),
        reasoning_parser: ReasoningParser | None = None,
    ) -> None:
        self._scheduling_policy = scheduling_policy
        self._reasoning_parser = reasoning_parser
        self._keys = KEYS.keys() - set(without)
        self.inputs = tuple(tensor for tensor in OwnBackend.inputs if tensor.name not in without)

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
        self._check_engine_inputs(values)
        outputs = asked_outputs(values, self.outputs)
        params = _sampling_params(first(values, "sampling_parameters", "{}"), self._keys)
        if params.prompt_logprobs is not None and "prompt_logprobs" not in outputs:
            raise _invalid("sampling_parameters.prompt_logprobs", "needs return_prompt_logprobs, which is not true.")
        try:
            truncation = _truncation(values, model)
            if ids is None:
                prompt_ids = tokenize(text, first(values, "add_special_tokens", True), model, truncation)
            else:
                prompt_ids = truncation.of(ids) if truncation else ids
            check_with_model(prompt_ids, params, model)
        except Refusal as refusal:
            is_place = refusal.key in ("prompt", "truncate_prompt_tokens")
            place = refusal.key if is_place else f"sampling_parameters.{refusal.key}"
            raise _invalid(place, refusal.sentence) from None
        return GenerateRequest(
            prompt_ids=prompt_ids,
            prefix="" if exclude else text,
            stream=stream,
            send_admission=bool(first(values, "send_admission")),
            outputs=outputs,
            params=params,
            thinks_first=params.constraint is not None
            and self._thinks_first(first(values, "reasoning_ended"), prompt_ids, model),
        )

    def _thinks_first(self, reasoning_ended: bool | None, prompt_ids: list[int], model: Model) -> bool:
        if self._reasoning_parser is None:
            if reasoning_ended is False:
                raise _invalid(
                    "reasoning_ended",
                    "must be true or absent with a structured output: the engine has no "
                    "structured_outputs_config.reasoning_parser in its model.json.",
                )
            return False
        if reasoning_ended is None:
            reasoning_ended = has_ended(model.tokenizer.decode(prompt_ids))
        return not reasoning_ended

    def _check_engine_inputs(self, values: Values) -> None:
        if first(values, "priority", 0) != 0 and self._scheduling_policy != "priority":
            raise _invalid(
                "priority", f"must be 0 or absent: the engine's scheduling_policy is {self._scheduling_policy}."
            )
        salt, session = first(values, "cache_salt"), first(values, "session_id")
        if salt is not None and not (0 < len(salt) <= _SALT_LENGTH and not set(salt) & set("@/\\\0")):
            raise _invalid("cache_salt", f"must be 1 to {_SALT_LENGTH} characters, none of them '@', '/', '\\' or NUL.")
        if session is not None and not 0 < len(session) <= _SESSION_LENGTH:
            raise _invalid("session_id", f"must be 1 to {_SESSION_LENGTH} characters.")

    def engine_error(self, request: GenerateRequest) -> str | None:
        constraint = request.params.constraint
        which = f", which is constrained by structured_outputs.{constraint.kind}," if constraint else ""
        return f"INTERNAL: the engine ended the request{which} with an error and gave no reason."


def _invalid(place: str, sentence: str) -> BackendError:
    return BackendError(f"INVALID_ARG {place}: {sentence}")


def _truncation(values: Values, model: Model) -> Truncation | None:
    """Raises Refusal for more tokens than the model's context has."""
    tokens, side = first(values, "truncate_prompt_tokens"), first(values, "truncation_side")
    if side not in (None, "left", "right"):
        raise _invalid("truncation_side", f"must be left or right, not {json.dumps(side)}.")
    if tokens is None:
        if side is not None:
            raise _invalid("truncation_side", "needs truncate_prompt_tokens, which is absent.")
        return None
    if tokens < 1 and tokens != -1:
        raise _invalid("truncate_prompt_tokens", f"must be -1 or at least 1, not {tokens}.")
    if tokens > model.max_model_len:
        raise Refusal(
            "truncate_prompt_tokens",
            f"truncate_prompt_tokens={tokens} cannot be greater than max_total_tokens = {model.max_model_len}. "
            "Please request a smaller truncation size.",
        )
    return Truncation(model.max_model_len - 1 if tokens == -1 else tokens, side)


def _sampling_params(text: str, known: Set[str]) -> SamplingParams:
    try:
        given = json.loads(text)
    except ValueError as error:
        raise _invalid("sampling_parameters", f"is not valid JSON: {error}.") from None
    if not isinstance(given, dict):
        raise _invalid("sampling_parameters", "must be a JSON object.")
    values: dict[str, Any] = {}
    for key, value in given.items():
        if key not in known:
            raise _invalid(f"sampling_parameters.{key}", "is not a sampling parameter of this backend.")
        if value is not None:
            if key == "lora_name":
                raise _invalid("sampling_parameters.lora_name", "not supported yet.")
            values[key] = _typed(key, value)
        elif key == "max_tokens":
            values[key] = None
    max_tokens = values.get("max_tokens", 16)
    if max_tokens is not None and values.get("min_tokens", 0) > max_tokens:
        raise _invalid("sampling_parameters.min_tokens", f"must be at most max_tokens, which is {max_tokens}.")
    if values.get("watermarking"):
        raise _invalid("sampling_parameters.watermarking", "must be false or absent: the engine has no watermark.")
    if "prompt_logprobs" in values and values.get("skip_reading_prefix_cache") is False:
        raise _invalid(
            "sampling_parameters.skip_reading_prefix_cache",
            "must be true or absent with prompt_logprobs: tokens whose work is read from the cache have none.",
        )
    constraint: Constraint | None = None
    if "structured_outputs" in values:
        constraint = _constraint(values["structured_outputs"])
    entries, no_repeat_ngram = _processed(values.get("extra_args") or {})
    params = SamplingParams.of(values, constraint or entries, no_repeat_ngram)
    if params.repetition_detection is not None:
        try:
            params.repetition_detection.check()
        except ValueError as error:
            raise _invalid("sampling_parameters.repetition_detection", str(error)) from None
    return params


def _processed(extra_args: dict[str, Any]) -> tuple[Constraint | None, int | None]:
    """What this project's logits processor makes of a request: a catalogue's entries, of which the mock has one, or the
    size of what may not come twice."""
    if "constraints" not in extra_args:
        return None, None
    place, given = "sampling_parameters.extra_args.constraints", extra_args["constraints"]
    if not isinstance(given, dict) or len(given) != 1:
        raise _invalid(place, "must have exactly one member, one of: catalog, no_repeat_ngram.")
    ((name, arguments),) = given.items()
    if name == "catalog":
        if arguments != {"name": "words"}:
            raise _invalid(f"{place}.catalog.name", "is not among this engine's catalogues.")
        return Constraint("choice", list(WORDS)), None
    size = arguments.get("size") if name == "no_repeat_ngram" and isinstance(arguments, dict) else None
    if type(size) is not int or not 1 <= size <= 64:
        raise _invalid(f"{place}.{name}", "must be no_repeat_ngram with a size from 1 to 64.")
    return None, size


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
