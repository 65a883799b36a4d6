"""What a probe looks at in an answer, in the same words for both request types. Pure: JSON values in, values out.

A member that is not there raises `KeyError` or `IndexError`, one of the wrong type `TypeError` or `ValueError`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from gateway.check.client import Response

Api = Literal["chat", "completions"]

_AS_ID = "token_id:"


@dataclass(frozen=True, slots=True)
class Position:
    """The log probabilities of one token of an answer. `top` are the alternatives by the name of their token; for
    completions the token itself is among them."""

    token: str
    logprob: float
    top: Mapping[str, float]

    @property
    def token_id(self) -> int:
        """For requests with `return_tokens_as_token_ids`."""
        return token_id(self.token)

    @property
    def top_ids(self) -> set[int]:
        return set(map(token_id, self.top))

    @property
    def is_likeliest(self) -> bool:
        return self.logprob >= max(self.top.values())


def token_id(name: str) -> int:
    if not name.startswith(_AS_ID):
        raise ValueError(f"{name!r} is no token id")
    return int(name.removeprefix(_AS_ID))


class Answer:
    """An answer with status 200."""

    def __init__(self, api: Api, response: Response) -> None:
        self._api = api
        self._bodies = response.bodies
        self.warning = response.headers.get("x-gateway-warning")

    @property
    def body(self) -> Mapping[str, Any]:
        """The whole answer, or the last event of a stream."""
        last: Mapping[str, Any] = self._bodies[-1]
        return last

    @property
    def choices(self) -> Sequence[Mapping[str, Any]]:
        choices: Sequence[Mapping[str, Any]] = self.body["choices"]
        return choices

    @property
    def choice(self) -> Mapping[str, Any]:
        return self.choices[0]

    @property
    def text(self) -> str:
        """All that the model said: what is taken for its thinking too."""
        if self._api == "completions":
            return str(self.choice["text"])
        return self.reasoning + (self.choice["message"]["content"] or "")

    @property
    def reasoning(self) -> str:
        return str(self.choice["message"].get("reasoning_content") or "")

    @property
    def calls(self) -> Sequence[Mapping[str, Any]]:
        calls: Sequence[Mapping[str, Any]] = self.choice["message"].get("tool_calls") or ()
        return calls

    @property
    def finish_reason(self) -> str:
        return str(self.choice["finish_reason"])

    @property
    def tokens(self) -> int:
        return int(self.body["usage"]["completion_tokens"])

    @property
    def prompt_tokens(self) -> int:
        return int(self.body["usage"]["prompt_tokens"])

    @property
    def prompt_token_ids(self) -> list[int]:
        return list((self.body if self._api == "chat" else self.choice)["prompt_token_ids"])

    @property
    def prompt_logprobs(self) -> list[Mapping[str, Any] | None]:
        return list((self.body if self._api == "chat" else self.choice)["prompt_logprobs"])

    @property
    def texts(self) -> list[str]:
        """The text of each event of a stream that has some."""
        choices = [choice for body in self._bodies for choice in body["choices"]]
        if self._api == "completions":
            return [text for choice in choices if (text := choice["text"])]
        deltas = [choice["delta"] for choice in choices]
        return [text for delta in deltas if (text := delta.get("content") or delta.get("reasoning_content"))]

    @cached_property
    def positions(self) -> list[Position]:
        logprobs = self.choice["logprobs"]
        if self._api == "chat":
            return [
                Position(one["token"], one["logprob"], {top["token"]: top["logprob"] for top in one["top_logprobs"]})
                for one in logprobs["content"]
            ]
        columns = (logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"])
        return [Position(*position) for position in zip(*columns, strict=True)]

    @property
    def ids(self) -> list[int]:
        """The answer's token ids, for requests with `return_tokens_as_token_ids`."""
        return [position.token_id for position in self.positions]
