"""What a client is told of what the engine produced: the output tensors of a response, and the JSON outputs of a row of
batched egress. Pure: numpy arrays and JSON values out, no vLLM and no Triton.

What a request asked for is decided once, in `ResponseBuilder` and `RowOutputs`; a response then runs one function per
tensor.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from vllm_backend import contract
from vllm_backend.request import GenerateRequest

Tensors = list[tuple[str, NDArray[Any]]]

LOWEST_LOGPROB = -9999.0
"""Stands for minus infinity, for which JSON has no number."""


class TokenLogprob(Protocol):
    """vLLM's `Logprob`, as far as it is read here."""

    logprob: float
    rank: int | None
    decoded_token: str | None


Logprobs = Sequence[dict[int, TokenLogprob] | None]
"""One entry per token."""


class Completion(Protocol):
    """vLLM's `CompletionOutput`, as far as it is read here: the tokens since the last one, when streaming."""

    text: str
    token_ids: Sequence[int]
    cumulative_logprob: float | None
    logprobs: Logprobs | None
    finish_reason: str | None
    stop_reason: int | str | None


class Prompt(Protocol):
    """What the engine knows of the prompt."""

    @property
    def prompt_token_ids(self) -> Sequence[int]: ...

    def take_prompt_logprobs(self) -> Logprobs | None:
        """One entry per token, the first one None. The first time that there is something, and never again."""


class NothingYet:
    """What has been produced at admission: no token."""

    text = ""
    token_ids: Sequence[int] = ()
    cumulative_logprob: float | None = 0.0
    logprobs: Logprobs | None = ()
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class ResponseBuilder:
    """Builds the responses of one request."""

    def __init__(self, request: GenerateRequest, prompt: Prompt) -> None:
        self._prefix = request.prompt if request.prepend_prompt and isinstance(request.prompt, str) else ""
        self._prompt = prompt
        self._prompt_ids_sent = False
        self._prompt_length = prompt_length = _count(len(prompt.prompt_token_ids))
        encoders: dict[str, Callable[[Completion], NDArray[Any]]] = {
            contract.FINISH_REASON: lambda completion: _strings(completion.finish_reason or contract.UNFINISHED),
            contract.CUMULATIVE_LOGPROB: lambda completion: np.array([completion.cumulative_logprob], dtype=np.float32),
            contract.LOGPROBS: (
                (lambda completion: _strings(json.dumps(_logprobs_values(completion.logprobs or ()))))
                if request.token_logprobs
                else (lambda completion: _NULL)
            ),
            contract.NUM_INPUT_TOKENS: lambda completion: prompt_length,
            contract.NUM_OUTPUT_TOKENS: lambda completion: _count(len(completion.token_ids)),
            contract.PROMPT_LOGPROBS: lambda completion: self._prompt_logprobs(),
            contract.TOKEN_IDS: lambda completion: _strings(json.dumps(list(completion.token_ids))),
            contract.PROMPT_TOKEN_IDS: lambda completion: self._prompt_token_ids(),
            contract.STOP_REASON: lambda completion: _strings(json.dumps(completion.stop_reason)),
        }
        asked = [output.name for output in contract.OUTPUTS if output.name in request.outputs]
        self._encoders = [(name, encoders[name]) for name in asked]

    def build(self, completion: Completion) -> Tensors:
        tensors = [(contract.TEXT_OUTPUT, _strings(self._prefix + completion.text))]
        for name, encode in self._encoders:
            tensors.append((name, encode(completion)))
        return tensors

    def admission(self) -> Tensors:
        """The response that says only that the request is valid: no text, no token, none of the prompt."""
        tensors = self.build(NothingYet())
        tensors[0] = (contract.TEXT_OUTPUT, _strings(""))
        return tensors

    def final(self, finish_reason: str, tokens: int, characters: int) -> Tensors:
        """The last response of a request whose output went by rows: how much there was of it in all, and no text."""
        return [
            (contract.TEXT_OUTPUT, _strings("")),
            (contract.FINISH_REASON, _strings(finish_reason)),
            (contract.NUM_INPUT_TOKENS, self._prompt_length),
            (contract.NUM_OUTPUT_TOKENS, _count(tokens)),
            (contract.NUM_OUTPUT_CHARACTERS, _count(characters)),
        ]

    def _prompt_logprobs(self) -> NDArray[Any]:
        logprobs = self._prompt.take_prompt_logprobs()
        return _NULL if logprobs is None else _strings(json.dumps(_logprobs_values(logprobs)))

    def _prompt_token_ids(self) -> NDArray[Any]:
        if self._prompt_ids_sent:
            return _NULL
        self._prompt_ids_sent = True
        return _strings(json.dumps(list(self._prompt.prompt_token_ids)))


def text_tensors(text: bytes) -> Tensors:
    """A response that is nothing but a text."""
    return [(contract.TEXT_OUTPUT, np.array([text], dtype=np.object_))]


_KEPT_OUTPUTS = frozenset((contract.TOKEN_IDS, contract.LOGPROBS, contract.PROMPT_LOGPROBS))
_ROW_OUTPUTS = _KEPT_OUTPUTS | {contract.CUMULATIVE_LOGPROB, contract.STOP_REASON}
"""The others come with the admission, or are a row's own fields."""


class RowOutputs:
    """The JSON outputs of one request's rows. What there is for each token is kept until it is let go, so that a row
    can be sent again. An output that is null is left out."""

    def __init__(self, request: GenerateRequest, prompt: Prompt) -> None:
        self._asked = request.outputs
        self._prompt = prompt
        self._token_ids: list[int] | None = [] if contract.TOKEN_IDS in self._asked else None
        wants_logprobs = contract.LOGPROBS in self._asked and request.token_logprobs
        self._logprobs: list[dict[int, TokenLogprob] | None] | None = [] if wants_logprobs else None
        self._prompt_logprobs: Logprobs | None = None
        self._cumulative_logprob: float | None = None
        self._stop_reason: int | str | None = None
        self._let_go = 0

    @classmethod
    def of(cls, request: GenerateRequest, prompt: Prompt) -> "RowOutputs | None":
        """None if the request asks for none of them."""
        return cls(request, prompt) if request.outputs & _ROW_OUTPUTS else None

    def add(self, completion: Completion) -> None:
        """Takes what belongs to the tokens that follow."""
        if self._token_ids is not None:
            self._token_ids.extend(completion.token_ids)
        if self._logprobs is not None:
            self._logprobs.extend(completion.logprobs or ())
        if contract.PROMPT_LOGPROBS in self._asked:
            self._prompt_logprobs = self._prompt.take_prompt_logprobs() or self._prompt_logprobs
        if contract.CUMULATIVE_LOGPROB in self._asked:
            self._cumulative_logprob = completion.cumulative_logprob
        if contract.STOP_REASON in self._asked:
            self._stop_reason = completion.stop_reason

    def has(self, tokens: int) -> bool:
        """Whether nothing that stands behind so many tokens was let go."""
        return tokens >= self._let_go

    def since(self, tokens: int) -> dict[str, Any]:
        """The outputs of a row with so many tokens in front of it; `has` must be true."""
        values: dict[str, Any] = {}
        if self._token_ids is not None:
            values[contract.TOKEN_IDS] = self._token_ids[tokens - self._let_go :]
        if self._logprobs is not None:
            values[contract.LOGPROBS] = _logprobs_values(self._logprobs[tokens - self._let_go :])
        if self._prompt_logprobs is not None and tokens == 0:
            values[contract.PROMPT_LOGPROBS] = _logprobs_values(self._prompt_logprobs)
        if self._cumulative_logprob is not None:
            values[contract.CUMULATIVE_LOGPROB] = max(self._cumulative_logprob, LOWEST_LOGPROB)
        if self._stop_reason is not None:
            values[contract.STOP_REASON] = self._stop_reason
        return values

    def let_go(self, tokens: int) -> None:
        """Nobody will ask again for what belongs to the first so many tokens."""
        gone = tokens - self._let_go
        if gone <= 0 or not self._asked & _KEPT_OUTPUTS:
            return
        self._let_go = tokens
        self._prompt_logprobs = None
        if self._token_ids is not None:
            del self._token_ids[:gone]
        if self._logprobs is not None:
            del self._logprobs[:gone]


def _strings(text: str) -> NDArray[Any]:
    return np.array([text.encode()], dtype=np.object_)


def _count(number: int) -> NDArray[Any]:
    return np.array([number], dtype=np.uint32)


_NULL = _strings("null")


def _logprobs_values(logprobs: Logprobs) -> list[dict[str, Any] | None]:
    """`[{token_id: {logprob, rank, decoded_token}, …}, …]`, one object per token, its own key first; null for a token
    that has none. The order is vLLM's own and must be kept."""
    return [
        None
        if position is None
        else {
            str(token_id): {
                "logprob": max(entry.logprob, LOWEST_LOGPROB),
                "rank": entry.rank,
                "decoded_token": entry.decoded_token,
            }
            for token_id, entry in position.items()
        }
        for position in logprobs
    ]
