"""The request bodies as typed values, parsed from bytes in one pass; those of megabytes in pieces.

Only fields that are forwarded or done by the gateway are typed here, with the engine's real bounds
(vLLM's `SamplingParams._verify_args`); every other member lands in `model_extra` and is judged by the
table in `gateway.openai.fields`. The values that hold a constraint stay raw JSON: they are parsed by
`gateway.translate.structured`, which knows the exact place of every mistake. Pure: no I/O.
"""

import codecs
import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError
from pydantic_core import ErrorDetails

from gateway.openai import giving_way, pieces
from gateway.openai.errors import ApiError, bad_request
from gateway.openai.fields import refuse_many

LARGE_BODY = 256 * 1024
"""Bytes. What a body can hold of this size takes about a millisecond; a thread costs a tenth of one."""

_INT64 = 2**63

# A request is parsed on the event loop, or beside it. Lists end at their first mistake, since a report on each of a
# million wrong elements would hold the loop for half a minute; and they have a length that no real request
# comes near. For the same reason the members of objects are looked at elsewhere, one by one.
_MAX_MESSAGES = 10_000
_MAX_ITEMS = 10_000
_MAX_PARTS = 1_000
_MAX_TOOLS = 1_000
_MAX_PROMPTS = 2_048
_MAX_PROMPT_TOKENS = 4_000_000

# In all messages of a request: members that no API knows.
_MAX_UNKNOWN = 200

_VISIBLE = r"^[\x21-\x7e]{1,256}$"

TokenId = Annotated[int, Field(ge=0, lt=2**31)]
NonEmpty = Annotated[str, Field(min_length=1)]


class _Body(BaseModel):
    # Strict: "0.5" is not a number and "false" is not a boolean. Engines that cast turn "false" into true.
    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False, frozen=True)


class ContentPart(_Body):
    type: str
    text: str | None = None


# OpenAI's rule for a function's name.
_FUNCTION_NAME = r"^[a-zA-Z0-9_.-]{1,64}$"
FunctionName = Annotated[str, Field(pattern=_FUNCTION_NAME)]


class CalledFunction(_Body):
    name: NonEmpty
    arguments: str = ""


class ToolCall(_Body):
    """A call that the assistant made, in the history."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction


class Message(_Body):
    """One message; what is not typed here is judged when it is rendered."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | Annotated[list[ContentPart], Field(max_length=_MAX_PARTS, fail_fast=True)] | None = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=_MAX_TOOLS, fail_fast=True)] | None = None
    tool_call_id: str | None = None
    # The thinking of an earlier answer: `reasoning_content` is the older name of `reasoning`.
    reasoning: str | None = None
    reasoning_content: str | None = None


class Function(_Body):
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(_Body):
    type: Literal["function"]
    function: Function


_Request = TypeVar("_Request", bound=_Body)


class RepetitionDetection(_Body):
    """vLLM's `RepetitionDetectionParams`; the rules between its members are the engine's."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    max_pattern_size: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    min_pattern_size: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    min_count: Annotated[int, Field(ge=0, lt=2**31)] | None = None


class StreamOptions(_Body):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: Literal[False] | None = None


class _GenerateRequest(_Body):
    """What every request for an answer may hold. `None` is the same as absent for every field."""

    model: NonEmpty
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    response_format: Any = None
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    constraints: dict[str, Any] | None = None

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
    thinking_token_budget: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    repetition_detection: RepetitionDetection | None = None
    watermarking: bool | None = None

    priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    session_id: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    add_special_tokens: bool | None = None

    n: Annotated[int, Field(ge=1, le=128)] | None = None
    logprob_token_ids: Annotated[list[TokenId], Field(min_length=1, max_length=_MAX_ITEMS, fail_fast=True)] | None = (
        None
    )
    prompt_logprobs: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    # It stands in every chunk of the answer and in the engine's log.
    request_id: Annotated[str, Field(pattern=_VISIBLE)] | None = None


class ChatRequest(_GenerateRequest):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=_MAX_MESSAGES, fail_fast=True)]
    max_completion_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    max_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=-1, lt=2**31)] | None = None

    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: Annotated[list[dict[str, Any]], Field(max_length=_MAX_ITEMS, fail_fast=True)] | None = None
    echo: bool | None = None
    return_prompt_text: bool | None = None

    tools: Annotated[list[Tool], Field(max_length=_MAX_TOOLS, fail_fast=True)] | None = None
    # Judged by `gateway.translate.tool_choice`, which knows the tools that it names.
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    include_reasoning: bool | None = None


TokenIds = Annotated[list[TokenId], Field(min_length=1, max_length=_MAX_PROMPT_TOKENS, fail_fast=True)]


def _form_of_prompt(value: Any) -> str | None:
    """Which form is meant, by the first element: then a mistake is told in the words of that form alone."""
    if isinstance(value, str):
        return "str"
    if not isinstance(value, list):
        return None
    kind = type(value[0]) if value else str
    return {str: "list[str]", int: "list[int]", float: "list[int]", list: "list[list[int]]"}.get(kind)


Prompts = Annotated[
    Annotated[str, Tag("str")]
    | Annotated[list[str], Field(min_length=1, max_length=_MAX_PROMPTS, fail_fast=True), Tag("list[str]")]
    | Annotated[TokenIds, Tag("list[int]")]
    | Annotated[list[TokenIds], Field(min_length=1, max_length=_MAX_PROMPTS, fail_fast=True), Tag("list[list[int]]")],
    Discriminator(
        _form_of_prompt,
        custom_error_type="prompt_type",
        custom_error_message="a string, a list of strings, a list of token ids or a list of such lists",
    ),
]


class CompletionRequest(_GenerateRequest):
    """`POST /v1/completions`."""

    prompt: Prompts
    max_tokens: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    logprobs: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    echo: bool | None = None


class TokenizeRequest(_Body):
    """`POST /tokenize`: of a text or of messages. The fields below `messages` belong to these."""

    model: NonEmpty
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1, max_length=_MAX_MESSAGES, fail_fast=True)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeRequest(_Body):
    """`POST /detokenize`."""

    model: NonEmpty
    tokens: Annotated[list[TokenId], Field(max_length=_MAX_PROMPT_TOKENS, fail_fast=True)]


def parse_chat(body: bytes) -> ChatRequest:
    request = parse(body, ChatRequest)
    _check_messages(request.messages)
    return request


def parse_completion(body: bytes) -> CompletionRequest:
    return parse(body, CompletionRequest)


def _check_messages(messages: Sequence[Message]) -> None:
    """Each unknown member becomes a warning; a flood of them is a mistake, and would hold the loop."""
    unknown: list[dict[str, Any]] = []
    for message in messages:
        parts = message.content if isinstance(message.content, list) else ()
        calls = message.tool_calls or ()
        for one in (message, *parts, *calls, *(call.function for call in calls)):
            if one.model_extra:
                unknown.append(one.model_extra)
    if (number := sum(map(len, unknown))) > _MAX_UNKNOWN:
        giving_way.empty(*unknown)
        raise bad_request(
            f"messages hold {number} members that this API does not know; remove them.",
            "messages",
            "unknown_parameter",
        )


def parse_tokenize(body: bytes) -> TokenizeRequest:
    request = parse(body, TokenizeRequest)
    _check_messages(request.messages or ())
    if (request.prompt is None) == (request.messages is None):
        raise bad_request("Give exactly one of prompt and messages.", "prompt", "invalid_value")
    if request.prompt is not None:
        for name in ("add_generation_prompt", "continue_final_message", "chat_template_kwargs"):
            if getattr(request, name) is not None:
                raise bad_request(f"{name} belongs to messages; remove it.", name, "invalid_value")
    return request


def parse_detokenize(body: bytes) -> DetokenizeRequest:
    return parse(body, DetokenizeRequest)


def parse(body: bytes, kind: type[_Request]) -> _Request:
    """Parse and validate a body; a mistake is a 400 that names its place. The event loop can go on beside it where the
    body is large (`LARGE_BODY`) and this is called in a thread; its lists of token ids are arrays then."""
    if len(body) >= LARGE_BODY:
        return _parse_large(body, kind)
    try:
        return kind.model_validate(pieces.at_once(body))
    except ValidationError as error:
        raise _as_api_error(error) from None
    except ValueError as error:
        raise _not_json(str(error), body) from None


def _parse_large(body: bytes, kind: type[_Request]) -> _Request:
    too_much: ApiError | None = None
    unfinished: Sequence[Any] = ()
    try:
        value = pieces.from_json(body)
    except pieces.TooMuch as error:
        value, unfinished = error.beginning, error.unfinished
        too_much = bad_request(f"The body is too much: {error}.")
    except ValueError as error:
        raise _not_json(str(error), body) from None
    request = None
    try:
        request = giving_way.validate(kind, value)
        if too_much is not None:
            raise too_much
        # Of a request that is refused for them in the end, nothing else is to be done.
        refuse_many(request.model_extra or {})
    except ValidationError as error:
        # What is wrong with the beginning says more than that there is too much behind it.
        refusal = too_much if too_much is not None and _may_follow(error, value, unfinished) else _as_api_error(error)
        giving_way.empty(value)
        raise refusal from None
    except ApiError:
        giving_way.empty(request, value)
        raise
    return request


def _may_follow(error: ValidationError, beginning: Any, unfinished: Sequence[Any]) -> bool:
    """Whether what is wrong with the beginning of a body is that something is missing in it, which may stand behind."""
    if beginning is None:
        return True
    first = error.errors(include_url=False)[0]
    # The outermost object may be another one by now.
    is_open = len(first["loc"]) == 1 or any(one is first["input"] for one in unfinished)
    return first["type"] == "missing" and bool(unfinished) and is_open


# jiter's words → what they mean to the one who wrote the body.
_JSON_MISTAKES = (
    (re.compile(r"Detected duplicate key (\".*\") at (line .*)", re.DOTALL), r"the key \1 stands twice (\2)"),
    (re.compile(r"(?:unexpected end of|lone leading surrogate in) hex escape at (line .*)"), r"half a surrogate (\1)"),
    (re.compile(r"recursion limit exceeded at (line .*)"), r"it is nested too deeply (\1)"),
    (re.compile(r"number out of range at (line .*)"), r"an integer has more than 4300 digits (\1)"),
)


def _not_json(reason: str, body: bytes) -> ApiError:
    for words, meaning in _JSON_MISTAKES:
        if found := words.fullmatch(reason):
            reason = found.expand(meaning)
            break
    if body.startswith(codecs.BOM_UTF8):
        reason = "it begins with a byte order mark, which must be left out"
    else:
        begin = 0
        try:
            while begin < len(body):
                end = begin + pieces.PIECE
                begin += codecs.utf_8_decode(body[begin:end], "strict", end >= len(body))[1]
        except UnicodeDecodeError as error:
            reason = f"it is not UTF-8 (byte {begin + error.start})"
    return bad_request(f"The body is not valid JSON: {reason}.", code="invalid_json")


def _as_api_error(error: ValidationError) -> ApiError:
    errors = error.errors(include_url=False, include_context=True)
    first = errors[0]
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


_PATTERNS = {
    _VISIBLE: "be 1 to 256 visible ASCII characters",
    _FUNCTION_NAME: "be 1 to 64 letters, digits, '_', '-' or '.'",
}

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
    if kind == "string_pattern_mismatch":
        return _PATTERNS[error["ctx"]["pattern"]]
    if kind in ("string_too_long", "too_long"):
        unit = "characters" if kind == "string_too_long" else "elements"
        return f"hold at most {error['ctx']['max_length']} {unit}"
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
