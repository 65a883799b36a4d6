"""What an answer has come to so far: text, finish reason, token counts. Incremental, no I/O."""

from gateway.openai.errors import ApiError, internal_error, unavailable
from gateway.triton.contract import Delta

# The finish reasons that a client may see as they are; an engine's other ends are errors.
_TRUTHFUL = {"stop", "length"}


class Answer:
    """One choice. Counts are in tokens; a response of the engine says how many it adds."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.begun = False
        self.finish_reason: str | None = None
        self.prompt_tokens = 0
        self.completion_tokens = 0

    @property
    def text(self) -> str:
        return "".join(self.parts)

    def add(self, delta: Delta) -> None:
        self.parts.append(delta.text)
        self.prompt_tokens = delta.prompt_tokens or self.prompt_tokens
        self.completion_tokens += delta.new_tokens
        self.finish_reason = delta.finish_reason or self.finish_reason

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


def constraint_failed(kind: str | None) -> ApiError:
    """vLLM's finish reason `error`: the grammar did not compile or refused a token; it gives no text."""
    what = f"the {kind} constraint could not be held" if kind else "it ended the request with an error"
    return internal_error(f"{what}, and it gave no reason")
