"""What a model says by itself: where the requests' telling values (a stop string, a token to ban) come from. Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.parity.shape import CHAT, COMPLETIONS, SEA, SHORT, SNOW, Body, user


@dataclass(frozen=True)
class Ids:
    """Token ids: those of the chat answer, and those of two prompts. `unknown` is a number that no token id reaches."""

    chat: Sequence[int]
    snow: Sequence[int]
    rain: Sequence[int]
    unknown: int = 2**30


@dataclass(frozen=True)
class Sample:
    """What the model says greedily: `chat` to SEA, and `pieces`, the texts of its tokens (of its words, where the
    server gives no log probabilities); `text` after SNOW, None where there are no text completions.

    `ids` and `max_model_len` are None where the server does not say them.
    """

    chat: str
    pieces: Sequence[str]
    text: str | None
    ids: Ids | None
    max_model_len: int | None

    @property
    def inside(self) -> str:
        """A text from inside a token of the chat answer, so that neither of its ends is the token's."""
        long = [piece for piece in self.pieces[2:] if len(piece) > 3 and piece in self.chat]
        return long[0][1:-1] if long else self.chat[3:6]

    @property
    def across(self) -> str:
        """A text of the chat answer that begins in one token and ends in the next."""
        pairs = zip(self.pieces[3:], self.pieces[4:], strict=False)
        texts = (one[-1:] + other[:2] for one, other in pairs if one and other)
        return next((text for text in texts if text in self.chat), self.chat[4:8])


GREEDY: Body = {"temperature": 0, "max_tokens": SHORT}
NEEDED: tuple[str, Body] = (CHAT, {"messages": user(SEA), **GREEDY})
"""Without an answer to it nothing can be compared."""
WANTED: dict[str, tuple[str, Body]] = {
    "tokens": (CHAT, {"messages": user(SEA), **GREEDY, "logprobs": True, "return_token_ids": True}),
    "text": (COMPLETIONS, {"prompt": SNOW, **GREEDY}),
    "snow": ("/tokenize", {"prompt": SNOW}),
    "rain": ("/tokenize", {"prompt": "Rain"}),
}
"""Without an answer to one of them some requests are left out."""


def make_sample(chat: Any, wanted: Mapping[str, Any], max_model_len: int | None) -> Sample:
    """From the bodies of the answers to NEEDED and WANTED. Raises LookupError or TypeError for what is none."""
    said: str = chat["choices"][0]["message"]["content"]
    ids, pieces = None, re.findall(r"\s*\S+", said)
    choice = wanted["tokens"]["choices"][0] if "tokens" in wanted else {}
    if choice.get("logprobs"):
        pieces = [entry["token"] for entry in choice["logprobs"]["content"]]
    if choice.get("token_ids") and {"snow", "rain"} <= wanted.keys():
        ids = Ids(choice["token_ids"], wanted["snow"]["tokens"], wanted["rain"]["tokens"])
        max_model_len = wanted["snow"].get("max_model_len") or max_model_len
    text = wanted["text"]["choices"][0]["text"] if "text" in wanted else None
    return Sample(said, pieces, text, ids, max_model_len)


def left_out(sample: Sample) -> list[str]:
    """What is not asked since the server does not say what it takes."""
    reasons = {
        "text completions, since the server has none": sample.text is None,
        "requests with token ids, since the server says none (return_token_ids, /tokenize)": sample.ids is None,
        "requests at the limit of the context, since the server does not say its length": sample.max_model_len is None,
    }
    return [reason for reason, holds in reasons.items() if holds]
