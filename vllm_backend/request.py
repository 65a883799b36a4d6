"""A request's input tensors, read once into a typed value. Pure: numpy arrays in, `GenerateRequest` out, no vLLM and
no Triton."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from vllm_backend import contract
from vllm_backend.contract import InvalidArgument
from vllm_backend.sampling import parse_sampling

Inputs = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """What one request asks for, complete and checked as far as that needs no model."""

    prompt: str | list[int]
    """Text still to be tokenised, or token ids."""
    add_special_tokens: bool
    """Whether the tokenizer adds its BOS and the like to a text prompt."""
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


def parse_request(inputs: Inputs) -> GenerateRequest:
    """Reads the tensors of one request, by name. Raises InvalidArgument."""
    for name in contract.NOT_YET_SUPPORTED:
        if name in inputs:
            raise InvalidArgument(name, "not supported yet.")
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
    token_logprobs = "logprobs" in sampling or "logprob_token_ids" in sampling
    if contract.CUMULATIVE_LOGPROB in outputs and not token_logprobs:
        # vLLM sums up only what it is asked to compute; 0 is the sampled token's own.
        sampling["logprobs"] = 0
    return GenerateRequest(
        prompt=prompt,
        add_special_tokens=add_special_tokens,
        stream=stream,
        prepend_prompt=not exclude,
        send_admission=_flag(inputs, contract.SEND_ADMISSION, default=False),
        outputs=outputs,
        token_logprobs=token_logprobs,
        sampling=sampling,
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


def _flag(inputs: Inputs, name: str, *, default: bool) -> bool:
    values = inputs.get(name)
    if values is None:
        return default
    _check_single(values, name)
    return bool(values.reshape(-1)[0])


def _check_single(values: NDArray[Any], name: str) -> None:
    if values.size != 1:
        raise InvalidArgument(name, f"must hold exactly one value, not {values.size}.")
