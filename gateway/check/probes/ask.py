"""What a probe is, what it may ask, and the requests that several of them build on.

A probe asks for a few tokens and never trusts the model to say something sensible: where a text must be known it is
forced by a constraint, where a token must be known it is one that the model has said before. No I/O but through `Ask`.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gateway.check.answers import Answer, Api, token_id
from gateway.check.verdicts import Verdict
from gateway.models import ServedModel
from gateway.triton.contract import Backend

PROMPT = "Say something about the sea, please."
WORDS = ("kiwi", "plum")
"""Of which a constraint allows one."""
NO_TOKENS = "no token of this model is known to see it by"


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens of this model. `answer` are the eight that it says to the plain request when it may not end, `second` is
    the next likeliest one in place of the first of them, but not the one that ends an answer."""

    answer: Sequence[int]
    second: int


class Ask(Protocol):
    """Asks one model by one API. `plain` is its answer to the plain request, `end` the token that ends an answer.
    `tokens` and `end` are None where no log probabilities come back, by which tokens are known."""

    api: Api
    name: str
    model: ServedModel
    backend: Backend
    plain: Answer
    tokens: Tokens | None
    end: int | None

    async def __call__(self, **changes: Any) -> Answer:
        """Sends the plain request with these changes. Ends the probe unless it is answered with 200."""


Probe = Callable[[Ask], Awaitable[Verdict]]


def plain_request(api: Api, model: str) -> dict[str, Any]:
    asked: dict[str, Any] = {"messages": [user(PROMPT)]} if api == "chat" else {"prompt": PROMPT}
    return {"model": model, **asked, "temperature": 0, "max_tokens": 4}


async def find_end(ask: Ask) -> int:
    return (await ask(**logprobs(ask, 1), **one_of(WORDS[0]))).ids[-1]


async def find_tokens(ask: Ask) -> Tokens:
    answer = await ask(**logprobs(ask, 3), **endless(8))
    first = answer.positions[0]
    likely = {token_id(name): logprob for name, logprob in first.top.items()}
    others = [token for token in likely if token not in (first.token_id, ask.end)]
    return Tokens(answer.ids, max(others, key=likely.__getitem__))


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def endless(tokens: int) -> dict[str, Any]:
    """An answer of just so many tokens."""
    return {"max_tokens": tokens, "ignore_eos": True}


def logprobs(ask: Ask, top: int) -> dict[str, Any]:
    """Log probabilities that name tokens by their ids."""
    named = {"return_tokens_as_token_ids": True}
    return named | ({"logprobs": True, "top_logprobs": top} if ask.api == "chat" else {"logprobs": top})


def one_of(*texts: str) -> dict[str, Any]:
    """An answer that is one of these texts."""
    return {"structured_outputs": {"choice": list(texts)}, "max_tokens": 16}


def only(*tokens: int) -> dict[str, Any]:
    """An answer of these tokens."""
    return {"allowed_token_ids": list(tokens)}
