"""Made-up logprobs in the form of vLLM's: a plausible order of tokens for a position. Pure.

What the numbers are means nothing; which tokens there are, in which order, with which ranks and decoded texts follows
vLLM's rules (`logprobs.py`, `v1/engine/logprobs.py`).
"""

import random
from collections.abc import Callable, Sequence
from typing import Any

from bench.mock_engine.tokens import token_id
from bench.mock_engine.words import WORDS

MAX_LOGPROBS = 20
"""vLLM's default for `max_logprobs`."""

Logprobs = dict[str, dict[str, Any]]
"""`{token id: {logprob, rank, decoded_token}}` of one position; the first key is the token that stands there."""

_REPLACEMENT = "\ufffd"
_PART_OF_A_CHARACTER = token_id("\N{WATER WAVE}".encode()[:3])


class DecodedTokens:
    """The `decoded_token` of each token of a sequence: empty for one that leaves a character incomplete; the token that
    completes it has the whole, and what else the incomplete ones hold."""

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._incomplete: list[int] = []

    def of(self, token: int) -> str:
        """The text of a token that may stand next."""
        text = self._decode([token])
        if text.endswith(_REPLACEMENT):
            text = self._decode([*self._incomplete, token])
            return "" if text.endswith(_REPLACEMENT) else text
        return text

    def add(self, token: int) -> str:
        """The text of the token that stands next."""
        text = self.of(token)
        if text:
            self._incomplete.clear()
        else:
            self._incomplete.append(token)
        return text


def position_logprobs(
    token: int, rank: int, count: int, listed: Sequence[int] | None, decoded: DecodedTokens, rng: random.Random
) -> Logprobs:
    """The token that stands at a position first, then the `count` most likely ones by rank (-1: all, of which the mock
    gives 20), or the listed ones in place of these, numbered from 1 as in vLLM. Advances `decoded`."""
    others = [token_id(word[:3].encode()) for word in rng.sample(WORDS, len(WORDS))]
    others.insert(rng.randrange(3), _PART_OF_A_CHARACTER)
    ranked = [other for other in dict.fromkeys(others) if other != token]
    ranked.insert(rank - 1, token)
    count = MAX_LOGPROBS if count == -1 else count
    texts = {other: decoded.of(other) for other in (*ranked[:count], *(listed or ()))}
    texts[token] = decoded.add(token)
    logprob = 0.0
    logprobs = {}
    for candidate in ranked[: max(count, rank)]:
        logprob -= rng.uniform(0.05, 1.0)
        logprobs[candidate] = round(logprob, 6)
    entries = {token: rank}
    for number, other in enumerate(ranked[:count] if listed is None else listed, start=1):
        entries[other] = number
    return {
        str(one): {"logprob": logprobs.get(one, -12.5), "rank": number, "decoded_token": texts[one]}
        for one, number in entries.items()
    }


def prompt_logprobs(ids: Sequence[int], count: int, decode: Callable[[list[int]], str]) -> list[Logprobs | None]:
    """One entry per token of the prompt, the first of which has none."""
    rng = random.Random(repr(list(ids)))
    decoded = DecodedTokens(decode)
    positions: list[Logprobs | None] = [None]
    # The first one is no context either, since vLLM takes that from the positions before.
    for token in ids[1:]:
        positions.append(position_logprobs(token, drawn_rank(rng, count), count, None, decoded, rng))
    return positions


def drawn_rank(rng: random.Random, count: int) -> int:
    """Mostly the best, sometimes one that is not among the `count` best."""
    return rng.choice((1, 1, 1, 1, 2, 3, max(count, 0) + 3))
