"""What the two dialects of the vLLM backend have in common: tensors, a request once it is read, and vLLM's own
refusals.

`own.py` is this project's backend, `stock.py` the one in NVIDIA's images. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from bench.mock_engine.logprobs import MAX_LOGPROBS
from bench.mock_engine.sampling import SamplingParams
from bench.mock_engine.structured import ConstraintError, check
from bench.mock_engine.tokens import VOCABULARY_SIZE, PromptTokenizer

DataType = Literal["STRING", "BOOL", "INT32", "INT64", "UINT32", "FP32"]


@dataclass(frozen=True, slots=True)
class Tensor:
    """One input or output of the model; `STRING` is what Triton's HTTP calls BYTES."""

    name: str
    data_type: DataType
    dims: tuple[int, ...]
    optional: bool = True


STOCK_OUTPUTS = (
    Tensor("text_output", "STRING", (-1,)),
    Tensor("finish_reason", "STRING", (-1,)),
    Tensor("cumulative_logprob", "FP32", (-1,)),
    Tensor("logprobs", "STRING", (-1,)),
    Tensor("num_input_tokens", "UINT32", (1,)),
    Tensor("num_output_tokens", "UINT32", (-1,)),
)
"""What both dialects send."""


def return_flags(outputs: tuple[Tensor, ...]) -> dict[str, str]:
    """The input that asks for an output, to that output's name. `text_output` is always sent."""
    return {f"return_{output.name}": output.name for output in outputs if output.name != "text_output"}


Values = Mapping[str, list[Any]]
"""The input tensors of a request, flat, by name."""


class BackendError(Exception):
    """A request's failure; the text is what its client reads."""


@dataclass(frozen=True, slots=True)
class Model:
    """What a dialect knows of the model."""

    name: str
    max_model_len: int
    tokenizer: PromptTokenizer


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """A valid request."""

    prompt_ids: list[int]
    prefix: str
    """Precedes the answer where the prompt is not excluded."""
    stream: bool
    send_admission: bool
    outputs: frozenset[str]
    params: SamplingParams
    thinks_first: bool = False
    """Whether the answer's constraint begins behind its reasoning."""


class Dialect(Protocol):
    """One of the two backends."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    sees_close_at_once: bool
    """Whether a client that has gone away is noticed at once, or only when the engine next produces an output."""

    def read(self, values: Values, model: Model) -> GenerateRequest:
        """Raises BackendError."""

    def engine_error(self, request: GenerateRequest) -> str | None:
        """The error text for a request that vLLM ends with finish_reason `error`; None: the finish reason itself is
        sent."""


class Refusal(Exception):
    """vLLM refuses a request whose parameters are well formed: `key` is the sampling parameter, `prompt`, or
    `truncate_prompt_tokens`."""

    def __init__(self, key: str, sentence: str) -> None:
        super().__init__(sentence)
        self.key = key
        self.sentence = sentence


def first(values: Values, name: str, default: Any = None) -> Any:
    """The single value of an input of shape [1], or the default where the input is absent."""
    return values[name][0] if name in values else default


def asked_outputs(values: Values, outputs: tuple[Tensor, ...]) -> frozenset[str]:
    return frozenset(output for flag, output in return_flags(outputs).items() if first(values, flag))


@dataclass(frozen=True, slots=True)
class Truncation:
    """How many tokens of a prompt are kept, and where the others are cut off. Without a side the tokenizer does it: on
    the left, as vLLM sets tokenizers up, and special tokens stay."""

    tokens: int
    side: Literal["left", "right"] | None

    def of(self, ids: list[int]) -> list[int]:
        return ids[: self.tokens] if self.side == "right" else ids[-self.tokens :]


def tokenize(text: str, add_special_tokens: bool, model: Model, truncation: Truncation | None = None) -> list[int]:
    """The prompt's token ids. Raises Refusal for a prompt that does not fit, as vLLM's renderer does."""
    if truncation is not None:
        last = truncation.tokens if truncation.side is None else None
        return truncation.of(model.tokenizer.encode(text, add_special_tokens, last))
    most = model.max_model_len
    chars = most * model.tokenizer.max_chars_per_token
    begin = f"This model's maximum context length is {most} tokens. However, your prompt contains"
    if len(text) > chars:
        raise Refusal(
            "prompt",
            f"{begin} {len(text)} characters (more than {chars} characters, which is the upper bound for {most} input "
            "tokens). Please reduce the length of the input prompt.",
        )
    ids = model.tokenizer.encode(text, add_special_tokens)
    if len(ids) > most:
        # vLLM stops tokenising one token above the limit.
        raise Refusal(
            "prompt",
            f"{begin} at least {most + 1} input tokens, which exceeds this limit even without any output tokens. "
            "Please reduce the length of the input prompt.",
        )
    return ids


def check_with_model(prompt_ids: list[int], params: SamplingParams, model: Model) -> None:
    """The checks of vLLM that need the model. Raises Refusal."""
    if not prompt_ids:
        raise Refusal("prompt", "The decoder prompt cannot be empty")
    if len(prompt_ids) >= model.max_model_len:
        raise Refusal(
            "prompt",
            f"The decoder prompt (length {len(prompt_ids)}) plus the number of requested output tokens (at least 1) is "
            f"longer than the maximum model length of {model.max_model_len}. Make sure that `max_model_len` is no "
            "smaller than the number of text tokens (prompt + requested output tokens).",
        )
    for key, kind, count in (
        ("logprobs", "sample", params.logprobs),
        ("prompt_logprobs", "prompt", params.prompt_logprobs),
    ):
        if (count or 0) > MAX_LOGPROBS:
            raise Refusal(
                key, f"Requested {kind} logprobs of {count}, which is greater than max allowed: {MAX_LOGPROBS}"
            )
    if params.logprob_token_ids is not None and params.logprobs not in (None, len(params.logprob_token_ids)):
        raise Refusal(
            "logprob_token_ids",
            "When both logprobs and logprob_token_ids are set, logprobs must equal len(logprob_token_ids). Got "
            f"logprobs={params.logprobs}, len(logprob_token_ids)={len(params.logprob_token_ids)}.",
        )
    for key in ("logit_bias", "allowed_token_ids"):
        outside = [token for token in params.shaping.get(key) or () if not 0 <= token < VOCABULARY_SIZE]
        if outside:
            raise Refusal(
                key,
                f"token_id(s) {outside} in {key} contain out-of-vocab token ids. Vocabulary size: {VOCABULARY_SIZE}",
            )
    if params.constraint is not None:
        try:
            check(params.constraint)
        except ConstraintError as error:
            raise Refusal("structured_outputs", str(error)) from None
