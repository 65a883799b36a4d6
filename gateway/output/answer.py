"""What an answer has come to so far: text, finish reason, counts, log probabilities. Incremental, no I/O."""

from collections.abc import Iterable, Mapping
from typing import Any

from gateway.openai.errors import ApiError, internal_error, unavailable
from gateway.output.logprobs import Position
from gateway.triton.contract import Delta

# The finish reasons that a client may see as they are (the last one is vLLM's, for repetition_detection); an
# engine's other ends are errors.
_TRUTHFUL = {"stop", "length", "repetition"}


class Answer:
    """One choice. `index` is its number among all choices, `prompt` that of its prompt. Counts are in tokens; a
    response of the engine says how many it adds. What was not asked of the engine stays empty or None."""

    def __init__(self, index: int, prompt: int) -> None:
        self.index = index
        self.prompt = prompt
        self.parts: list[str] = []
        self.begun = False
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.logprobs: list[Position] = []
        self.token_ids: list[int] = []
        self.prompt_token_ids: list[int] | None = None
        self.prompt_logprobs: list[Position] | None = None

    @property
    def text(self) -> str:
        return "".join(self.parts)

    def add(self, delta: Delta) -> None:
        self.parts.append(delta.text)
        self.prompt_tokens = delta.prompt_tokens or self.prompt_tokens
        self.completion_tokens += delta.new_tokens
        self.finish_reason = delta.finish_reason or self.finish_reason
        if delta.outputs:
            self._add_outputs(delta.outputs)

    def _add_outputs(self, outputs: Mapping[str, Any]) -> None:
        self.logprobs += outputs.get("logprobs") or ()
        self.token_ids += outputs.get("token_ids") or ()
        for once in ("prompt_token_ids", "prompt_logprobs", "stop_reason"):
            if outputs.get(once) is not None:
                setattr(self, once, outputs[once])

    def check_finished(self, constraint_kind: str | None) -> str:
        """The finish reason of an answer whose stream has ended; an `ApiError` where it is no proper end."""
        reason = self.finish_reason
        if reason in _TRUTHFUL:
            return reason
        if reason is None:
            raise unavailable("The engine ended the answer without saying why.")
        if reason == "abort":
            raise unavailable("The engine aborted the request.")
        if reason == "error":
            raise constraint_failed(constraint_kind)
        raise internal_error(f"it ended the answer with the unknown reason {reason!r}")


def usage(answers: Iterable[Answer]) -> dict[str, int]:
    """The usage of a request: each prompt counts once, however many choices it has."""
    prompts: dict[int, int] = {}
    completion_tokens = 0
    for answer in answers:
        # Of a request that has failed, not every choice has heard of its prompt.
        prompts[answer.prompt] = max(prompts.get(answer.prompt, 0), answer.prompt_tokens)
        completion_tokens += answer.completion_tokens
    return usage_of(sum(prompts.values()), completion_tokens)


def usage_of(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def constraint_failed(kind: str | None) -> ApiError:
    """vLLM's finish reason `error`: the grammar did not compile or refused a token; it gives no text."""
    what = f"the {kind} constraint could not be held" if kind else "it ended the request with an error"
    return internal_error(f"{what}, and it gave no reason")
