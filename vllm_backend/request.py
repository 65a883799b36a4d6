"""A request's input tensors, read once into a typed value. Pure: numpy arrays in, a `GenerateRequest` out, or one of
the two requests of batched egress that are no generation; no vLLM and no Triton."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from numpy.typing import NDArray

from vllm_backend import contract
from vllm_backend.contract import InvalidArgument
from vllm_backend.sampling import parse_sampling, place_of, shown

Inputs = Mapping[str, NDArray[Any]]

_Default = TypeVar("_Default", bool, None)


@dataclass(frozen=True, slots=True)
class Truncation:
    """How much of a prompt is kept."""

    tokens: int
    """At least 1, or -1: as many as leave room for one token of the answer."""
    side: str | None
    """Where tokens are cut off: `left`, `right`, or None: where the tokenizer does it by itself, which vLLM sets to the
    left; a text then keeps its special tokens."""


@dataclass(frozen=True, slots=True)
class Position:
    """How much of a stream there is in front of a place in it."""

    stream_id: int
    tokens: int
    characters: int


@dataclass(frozen=True, slots=True)
class SubscriptionRequest:
    """Asks for the rows of a subscriber's streams, see EGRESS.md."""

    subscriber: str
    resume: tuple[Position, ...]
    """The streams whose rows are to be sent again, and from where."""


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """Says what of a subscription has been applied."""

    subscriber: str
    acknowledged: int
    """The number of the last message up to which all have been."""
    resume: tuple[Position, ...] = ()
    cancelled: tuple[int, ...] = ()
    """The streams that nobody wants any more."""


@dataclass(frozen=True, slots=True)
class StreamName:
    """Whose stream an answer is, and which of them: its output goes by the subscriber's rows."""

    subscriber: str
    stream_id: int


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """What one request asks for, complete and checked as far as that needs no model."""

    prompt: str | list[int]
    """Text still to be tokenised, or token ids."""
    add_special_tokens: bool
    """Whether the tokenizer adds its BOS and the like to a text prompt."""
    truncation: Truncation | None
    cache_salt: str | None
    """Keeps what the prefix cache holds for this prompt apart from prompts with another salt."""
    session_id: str | None
    """What belongs together; vLLM adds it to the events of its cache."""
    reasoning_ended: bool | None
    """Whether the answer begins after the model's reasoning, so that a constraint holds from its first token; None: as
    the engine finds it in the prompt."""
    priority: int
    """Lower is earlier. 0 unless the engine schedules by it."""
    stream: bool
    """A response per engine output, or a single one at the end."""
    prepend_prompt: bool
    """Whether the answer's text begins with the prompt's."""
    send_admission: bool
    """Whether an empty response is sent as soon as the request is validated."""
    outputs: frozenset[str]
    """The names of the outputs asked for besides `text_output`."""
    token_logprobs: bool
    """Whether the `logprobs` output holds something: it is asked for token by token in the sampling parameters."""
    sampling: dict[str, Any]
    """Arguments of vLLM's `SamplingParams`, see `sampling.parse_sampling`."""
    batched: StreamName | None = None
    """None: every output of the engine is a response."""


Request = GenerateRequest | SubscriptionRequest | Acknowledgement


def parse_request(inputs: Inputs) -> Request:
    """Reads the tensors of one request, by name. Raises InvalidArgument."""
    for name in contract.NOT_YET_SUPPORTED:
        if name in inputs:
            raise InvalidArgument(name, "not supported yet.")
    if not _flag(inputs, contract.BATCHED_EGRESS, default=False):
        for name in _EGRESS_INPUTS:
            if name in inputs:
                raise InvalidArgument(name, f"needs {contract.BATCHED_EGRESS}, which is absent or false.")
        return _generate_request(inputs, None)
    subscriber = _subscriber(inputs)
    if contract.STREAM_ID in inputs or contract.TEXT_INPUT in inputs or contract.INPUT_IDS in inputs:
        return _generate_request(inputs, StreamName(subscriber, _stream_id(inputs)))
    # Neither generates anything, so what a generation could be told would be ignored.
    for name in inputs:
        if name not in _EGRESS_INPUTS and name != contract.BATCHED_EGRESS:
            raise InvalidArgument(name, "must be absent from a request of batched egress without a prompt.")
    resume = _resume(inputs)
    acknowledged = _integer(inputs, contract.ACKNOWLEDGED)
    if acknowledged is None:
        if contract.CANCELLED in inputs:
            raise InvalidArgument(contract.CANCELLED, f"needs {contract.ACKNOWLEDGED}, which is absent.")
        return SubscriptionRequest(subscriber, resume)
    if acknowledged < 0:
        raise InvalidArgument(contract.ACKNOWLEDGED, f"must be the number of a message, or 0, not {acknowledged}.")
    return Acknowledgement(subscriber, acknowledged, resume, _cancelled(inputs))


_EGRESS_INPUTS = (contract.SUBSCRIBER, contract.STREAM_ID, contract.ACKNOWLEDGED, contract.RESUME, contract.CANCELLED)


def _generate_request(inputs: Inputs, batched: StreamName | None) -> GenerateRequest:
    prompt = _prompt(inputs)
    stream = _flag(inputs, contract.STREAM, default=False)
    is_text = isinstance(prompt, str)
    # The prompt of a streamed answer is never sent back, and token ids have no text to send back.
    never_prepended = stream or not is_text
    exclude = _flag(inputs, contract.EXCLUDE_INPUT_IN_OUTPUT, default=never_prepended)
    if never_prepended and not exclude:
        reason = "stream is true" if stream else f"the prompt is given as {contract.INPUT_IDS}"
        raise InvalidArgument(contract.EXCLUDE_INPUT_IN_OUTPUT, f"must be true or absent, since {reason}.")
    add_special_tokens = _flag(inputs, contract.ADD_SPECIAL_TOKENS, default=is_text)
    if add_special_tokens and not is_text:
        raise InvalidArgument(
            contract.ADD_SPECIAL_TOKENS, f"must be false or absent, since the prompt is given as {contract.INPUT_IDS}."
        )
    outputs = frozenset(output for flag, output in contract.RETURN_FLAGS.items() if _flag(inputs, flag, default=False))
    sampling = parse_sampling(_text(inputs, contract.SAMPLING_PARAMETERS) or "{}")
    if "prompt_logprobs" in sampling and contract.PROMPT_LOGPROBS not in outputs:
        raise InvalidArgument(
            place_of("prompt_logprobs"), f"needs return_{contract.PROMPT_LOGPROBS}, which is absent or false."
        )
    token_logprobs = "logprobs" in sampling or "logprob_token_ids" in sampling
    if contract.CUMULATIVE_LOGPROB in outputs and not token_logprobs:
        # vLLM sums up only what it is asked to compute; 0 is the sampled token's own.
        sampling["logprobs"] = 0
    send_admission = _flag(inputs, contract.SEND_ADMISSION, default=False)
    for name, is_set in ((contract.STREAM, stream), (contract.SEND_ADMISSION, send_admission)):
        if batched is not None and not is_set:
            raise InvalidArgument(name, f"must be true, since {contract.BATCHED_EGRESS} is.")
    return GenerateRequest(
        prompt=prompt,
        add_special_tokens=add_special_tokens,
        truncation=_truncation(inputs),
        cache_salt=_cache_salt(inputs),
        session_id=_session_id(inputs),
        reasoning_ended=_flag(inputs, contract.REASONING_ENDED, default=None),
        priority=_integer(inputs, contract.PRIORITY) or 0,
        stream=stream,
        prepend_prompt=not exclude,
        send_admission=send_admission,
        outputs=outputs,
        token_logprobs=token_logprobs,
        sampling=sampling,
        batched=batched,
    )


def _prompt(inputs: Inputs) -> str | list[int]:
    text = _text(inputs, contract.TEXT_INPUT)
    ids = inputs.get(contract.INPUT_IDS)
    if ids is None:
        if text is None:
            raise InvalidArgument(contract.TEXT_INPUT, f"is missing: give it or {contract.INPUT_IDS}.")
        return text
    if text is not None:
        raise InvalidArgument(contract.INPUT_IDS, f"must be absent, since {contract.TEXT_INPUT} is given.")
    tokens: list[int] = ids.reshape(-1).tolist()
    if not tokens or min(tokens) < 0:
        raise InvalidArgument(contract.INPUT_IDS, "must be at least one token id, each of at least 0.")
    return tokens


def _truncation(inputs: Inputs) -> Truncation | None:
    tokens, side = _integer(inputs, contract.TRUNCATE_PROMPT_TOKENS), _text(inputs, contract.TRUNCATION_SIDE)
    if side not in (None, "left", "right"):
        raise InvalidArgument(contract.TRUNCATION_SIDE, f"must be left or right, not {shown(side)}.")
    if tokens is None:
        if side is not None:
            raise InvalidArgument(
                contract.TRUNCATION_SIDE, f"must be absent, since {contract.TRUNCATE_PROMPT_TOKENS} is."
            )
        return None
    if tokens < 1 and tokens != -1:
        raise InvalidArgument(contract.TRUNCATE_PROMPT_TOKENS, f"must be at least 1, or -1, not {tokens}.")
    return Truncation(tokens, side)


def _cache_salt(inputs: Inputs) -> str | None:
    salt = _text(inputs, contract.CACHE_SALT)
    if salt is not None and (
        not 0 < len(salt) <= contract.CACHE_SALT_LENGTH or any(char in salt for char in contract.CACHE_SALT_FORBIDDEN)
    ):
        raise InvalidArgument(
            contract.CACHE_SALT,
            f"must be 1 to {contract.CACHE_SALT_LENGTH} characters, without '@', '/', '\\' and NUL.",
        )
    return salt


def _session_id(inputs: Inputs) -> str | None:
    session = _text(inputs, contract.SESSION_ID)
    if session is not None and not 0 < len(session) <= contract.SESSION_ID_LENGTH:
        raise InvalidArgument(contract.SESSION_ID, f"must be 1 to {contract.SESSION_ID_LENGTH} characters.")
    return session


def _subscriber(inputs: Inputs) -> str:
    subscriber = _text(inputs, contract.SUBSCRIBER)
    if subscriber is None:
        raise InvalidArgument(contract.SUBSCRIBER, f"is missing, since {contract.BATCHED_EGRESS} is true.")
    if not re.fullmatch(contract.SUBSCRIBER_PATTERN, subscriber):
        raise InvalidArgument(contract.SUBSCRIBER, "must be 16 to 64 characters of 0-9, a-f and '-'.")
    return subscriber


def _stream_id(inputs: Inputs) -> int:
    for name in (contract.ACKNOWLEDGED, contract.RESUME, contract.CANCELLED):
        if name in inputs:
            raise InvalidArgument(name, "must be absent from a request for an answer.")
    stream_id = _integer(inputs, contract.STREAM_ID)
    if stream_id is None:
        raise InvalidArgument(contract.STREAM_ID, f"is missing, since {contract.BATCHED_EGRESS} is true.")
    if stream_id < 1:
        raise InvalidArgument(contract.STREAM_ID, f"must be at least 1, not {stream_id}.")
    return stream_id


def _resume(inputs: Inputs) -> tuple[Position, ...]:
    text = _text(inputs, contract.RESUME)
    if text is None:
        return ()
    try:
        return tuple(_position(value) for value in _list(json.loads(text)))
    except (ValueError, RecursionError):
        raise InvalidArgument(
            contract.RESUME,
            "must be a JSON list of [stream_id, tokens, characters], whole numbers from 0, the first from 1, "
            f"not {shown(text)}.",
        ) from None


def _cancelled(inputs: Inputs) -> tuple[int, ...]:
    text = _text(inputs, contract.CANCELLED)
    if text is None:
        return ()
    try:
        numbers = _list(json.loads(text))
        if any(type(number) is not int or number < 1 for number in numbers):
            raise ValueError
    except (ValueError, RecursionError):
        sentence = f"must be a JSON list of stream numbers, each of at least 1, not {shown(text)}."
        raise InvalidArgument(contract.CANCELLED, sentence) from None
    return tuple(numbers)


def _position(value: Any) -> Position:
    stream_id, tokens, characters = _list(value)
    if any(type(number) is not int or number < 0 for number in (stream_id, tokens, characters)) or stream_id == 0:
        raise ValueError
    return Position(stream_id, tokens, characters)


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError
    return value


def _text(inputs: Inputs, name: str) -> str | None:
    values = inputs.get(name)
    if values is None:
        return None
    _check_single(values, name)
    value = values.reshape(-1)[0]
    try:
        return value.decode() if isinstance(value, bytes) else str(value)
    except UnicodeDecodeError:
        raise InvalidArgument(name, "is not valid UTF-8.") from None


def _integer(inputs: Inputs, name: str) -> int | None:
    values = inputs.get(name)
    if values is None:
        return None
    _check_single(values, name)
    return int(values.reshape(-1)[0])


def _flag(inputs: Inputs, name: str, *, default: _Default) -> bool | _Default:
    values = inputs.get(name)
    if values is None:
        return default
    _check_single(values, name)
    return bool(values.reshape(-1)[0])


def _check_single(values: NDArray[Any], name: str) -> None:
    if values.size != 1:
        raise InvalidArgument(name, f"must hold exactly one value, not {values.size}.")
