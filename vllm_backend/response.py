"""The output tensors of a response, built from what the engine produced. Pure: numpy arrays out, no vLLM and no Triton.

What a request asked for is decided once, in `ResponseBuilder`; a response then runs one function per tensor.
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
        prompt_length = np.array([len(prompt.prompt_token_ids)], dtype=np.uint32)
        encoders: dict[str, Callable[[Completion], NDArray[Any]]] = {
            contract.FINISH_REASON: lambda completion: _strings(completion.finish_reason or contract.UNFINISHED),
            contract.CUMULATIVE_LOGPROB: lambda completion: np.array([completion.cumulative_logprob], dtype=np.float32),
            contract.LOGPROBS: (
                (lambda completion: _strings(_logprobs_json(completion.logprobs or ())))
                if request.token_logprobs
                else (lambda completion: _NULL)
            ),
            contract.NUM_INPUT_TOKENS: lambda completion: prompt_length,
            contract.NUM_OUTPUT_TOKENS: lambda completion: np.array([len(completion.token_ids)], dtype=np.uint32),
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

    def _prompt_logprobs(self) -> NDArray[Any]:
        logprobs = self._prompt.take_prompt_logprobs()
        return _NULL if logprobs is None else _strings(_logprobs_json(logprobs))

    def _prompt_token_ids(self) -> NDArray[Any]:
        if self._prompt_ids_sent:
            return _NULL
        self._prompt_ids_sent = True
        return _strings(json.dumps(list(self._prompt.prompt_token_ids)))


def _strings(text: str) -> NDArray[Any]:
    return np.array([text.encode()], dtype=np.object_)


_NULL = _strings("null")


def _logprobs_json(logprobs: Logprobs) -> str:
    """`[{token_id: {logprob, rank, decoded_token}, …}, …]`, one object per token, its own key first; null for a token
    that has none. The order is vLLM's own and must be kept."""
    return json.dumps(
        [
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
    )
