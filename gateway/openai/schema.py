"""The request bodies as typed values, parsed from bytes in one pass.

Only fields that are forwarded or done by the gateway are typed here, with the engine's real bounds
(vLLM's `SamplingParams._verify_args`); every other member lands in `model_extra` and is judged by the
table in `gateway.openai.fields`. The values that hold a constraint stay raw JSON: they are parsed by
`gateway.translate.structured`, which knows the exact place of every mistake. Pure: no I/O.
"""

from typing import Annotated, Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from gateway.openai.errors import ApiError, bad_request

_INT64 = 2**63

# A request is parsed on the event loop. Lists end at their first mistake, since a report on each of a
# million wrong elements would hold the loop for half a minute; and they have a length that no real request
# comes near. For the same reason the members of objects are looked at elsewhere, one by one.
_MAX_MESSAGES = 10_000
_MAX_ITEMS = 10_000
_MAX_PARTS = 1_000

TokenId = Annotated[int, Field(ge=0, lt=2**31)]
NonEmpty = Annotated[str, Field(min_length=1)]


class _Body(BaseModel):
    # Strict: "0.5" is not a number and "false" is not a boolean. Engines that cast turn "false" into true.
    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False, frozen=True)


class ContentPart(_Body):
    type: str
    text: str | None = None


class Message(_Body):
    """One message; what is not typed here is judged when it is rendered."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | Annotated[list[ContentPart], Field(max_length=_MAX_PARTS, fail_fast=True)] | None = None
    name: str | None = None


class StreamOptions(_Body):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: Literal[False] | None = None


class ChatRequest(_Body):
    """`POST /v1/chat/completions`. `None` is the same as absent for every field."""

    model: NonEmpty
    messages: Annotated[list[Message], Field(min_length=1, max_length=_MAX_MESSAGES, fail_fast=True)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    max_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None

    response_format: Any = None
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    seed: Annotated[int, Field(ge=-_INT64, lt=_INT64)] | None = None
    stop: NonEmpty | Annotated[list[NonEmpty], Field(max_length=_MAX_ITEMS, fail_fast=True)] | None = None
    logit_bias: dict[str, Any] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0)] | None = None
    min_tokens: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=_MAX_ITEMS, fail_fast=True)] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    bad_words: Annotated[list[NonEmpty], Field(max_length=_MAX_ITEMS, fail_fast=True)] | None = None
    # As many as a vocabulary has.
    allowed_token_ids: Annotated[list[TokenId], Field(min_length=1, max_length=1_000_000, fail_fast=True)] | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    vllm_xargs: dict[str, Any] | None = None
    stream_interval: Annotated[int, Field(ge=1, lt=2**31)] | None = None

    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: Annotated[list[dict[str, Any]], Field(max_length=_MAX_ITEMS, fail_fast=True)] | None = None


def parse_chat(body: bytes) -> ChatRequest:
    """Parse and validate a body; a mistake is a 400 that names its place."""
    if b"NaN" in body or b"Infinity" in body:
        _refuse_non_json_numbers(body)
    try:
        return ChatRequest.model_validate_json(body)
    except ValidationError as error:
        raise _as_api_error(error) from None


def _refuse_non_json_numbers(body: bytes) -> None:
    # pydantic's parser takes NaN and Infinity, which are not JSON; most bodies with these letters hold
    # them inside a string, so the strict parser decides.
    try:
        orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise _not_json(str(error)) from None


def _not_json(reason: str) -> ApiError:
    return bad_request(f"The body is not valid JSON: {reason}.", code="invalid_json")


def _as_api_error(error: ValidationError) -> ApiError:
    errors = error.errors(include_url=False, include_context=True)
    first = errors[0]
    if first["type"] == "json_invalid":
        return _not_json(first.get("ctx", {}).get("error", "it cannot be parsed"))
    # A union reports every branch: the branch that got furthest is the one that was meant.
    branches = [e for e in errors if e["loc"][: len(_field(first))] == _field(first)]
    depth = max(len(e["loc"]) for e in branches)
    meant = [e for e in branches if len(e["loc"]) == depth]
    param = _place(meant[0]["loc"])
    kind = meant[0]["type"]
    if kind == "missing":
        return bad_request(f"{param} is required.", param=param, code="missing_required_parameter")
    if kind == "extra_forbidden":
        return bad_request(f"Unknown field {param}; remove it.", param=param, code="unknown_parameter")
    reasons = " or ".join(dict.fromkeys(_reason(e) for e in meant if _place(e["loc"]) == param))
    return bad_request(f"{param or 'The body'} must {reasons}.", param=param, code="invalid_value")


def _field(error: ErrorDetails) -> tuple[int | str, ...]:
    """The part of the path that lies before a union's branch."""
    location = error["loc"]
    for index, step in enumerate(location):
        if index and isinstance(step, str) and _is_union_branch(step):
            return location[:index]
    return location


_TYPE_NAMES = {
    "string_type": "a string",
    "int_type": "an integer",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
}


def _reason(error: ErrorDetails) -> str:
    kind = error["type"]
    if kind in ("string_too_short", "too_short"):
        return "not be empty"
    if kind == "too_long":
        return f"hold at most {error['ctx']['max_length']} elements"
    return "be " + _TYPE_NAMES.get(kind, error["msg"].removeprefix("Input should be "))


def _place(location: tuple[str | int, ...]) -> str | None:
    """`("messages", 0, "content", "list[ContentPart]", 1)` → `messages[0].content[1]`: pydantic puts
    the branch of a union into the path, which is none of the client's business."""
    place = ""
    for index, step in enumerate(location):
        if isinstance(step, int):
            place += f"[{step}]"
        elif index and _is_union_branch(step):
            continue
        else:
            place += f".{step}" if place else step
    return place or None


def _is_union_branch(step: str) -> bool:
    return step in {"str", "int", "float", "bool", "constrained-str"} or "[" in step
