"""The engine's log probabilities → OpenAI's two shapes, of chat and of completions. Pure: no I/O.

A position is what the backend's `logprobs` output holds of one token: `{token id: {logprob, rank,
decoded_token}}`, the sampled token's key first, whatever its rank. A position that the engine gave nothing for is
`None` or empty.
"""

import codecs
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

Position = Mapping[str, Mapping[str, Any]] | None
TokenBytes = Callable[[int], bytes | None] | None
"""A token's exact bytes; `None` where the gateway has no tokenizer for the model."""

# JSON has no infinity; this is what OpenAI and vLLM write.
_LOWEST = -9999.0
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class _Token(NamedTuple):
    """One candidate at one position: `text` is what the client reads, `data` the bytes, `None` where they are not
    known; `shown` what it adds to the answer as far as that is known. `rank` counts from 1."""

    text: str
    data: bytes | None
    shown: bytes
    logprob: float
    rank: int | None

    def entry(self) -> dict[str, Any]:
        return {
            "token": self.text,
            "logprob": self.logprob,
            "bytes": None if self.data is None else list(self.data),
        }


class _Reader:
    """What both shapes read of a position. `top` is how many alternatives were asked for (-1: all that the engine
    gives), `every` that tokens were named (`logprob_token_ids`), so that each entry is wanted."""

    def __init__(self, token_bytes: TokenBytes, top: int, every: bool, as_token_ids: bool) -> None:
        self._token_bytes = token_bytes
        self._every = every
        self._top = None if top == -1 else top
        self._as_token_ids = as_token_ids

    def token(self, token_id: int, entry: Mapping[str, Any]) -> _Token:
        decoded: str | None = entry.get("decoded_token")
        data = self._token_bytes(token_id) if self._token_bytes else None
        if data is None and decoded and _REPLACEMENT not in decoded:
            # Not where it is empty: the engine writes nothing for a token that only begins a character.
            data = decoded.encode()
        shown = (decoded or "").encode() if data is None else data
        if self._as_token_ids or (decoded is None and data is None):
            text = f"token_id:{token_id}"
        else:
            text = shown.decode(errors="replace") if decoded is None else decoded
        logprob = entry.get("logprob")
        return _Token(text, data, shown, _LOWEST if logprob is None else max(logprob, _LOWEST), entry.get("rank"))

    def tokens(self, position: Mapping[str, Mapping[str, Any]]) -> tuple[_Token, list[_Token]]:
        """The sampled token, and those that were asked for: the best-ranked ones, best first, the sampled one among
        them only where its rank is. Tokens that were named have no ranks: all of them, as the engine gives them."""
        tokens = [self.token(int(token_id), entry) for token_id, entry in position.items()]
        if self._every:
            return tokens[0], tokens
        top = self._top
        return tokens[0], sorted((token for token in tokens if top is None or _rank(token) <= top), key=_rank)


def _rank(token: _Token) -> float:
    return float("inf") if token.rank is None else token.rank


class ChatLogprobs:
    """One choice's `logprobs.content`. `top` is `top_logprobs` as asked."""

    def __init__(self, token_bytes: TokenBytes, top: int, *, every: bool = False, as_token_ids: bool = False) -> None:
        self._reader = _Reader(token_bytes, top, every, as_token_ids)

    def content(self, positions: Iterable[Position]) -> list[dict[str, Any]]:
        """OpenAI's `ChatCompletionTokenLogprob` of each position: token, logprob, bytes, top_logprobs."""
        return [self._one(position) for position in positions]

    def _one(self, position: Position) -> dict[str, Any]:
        if not position:
            return {"token": "", "logprob": _LOWEST, "bytes": None, "top_logprobs": []}
        sampled, best = self._reader.tokens(position)
        return {**sampled.entry(), "top_logprobs": [token.entry() for token in best]}


class CompletionLogprobs:
    """One choice's `logprobs`, position by position over all its deltas.

    `top` is `logprobs` as asked; `offset` where the text begins, in characters (code points); `left_out` the tokens
    that the text does not show: the special ones, where `skip_special_tokens` holds. `first_token_bytes` is given
    where the first token begins a text, as a prompt's does; an answer's goes on with one.
    """

    def __init__(
        self,
        token_bytes: TokenBytes,
        top: int,
        *,
        every: bool = False,
        as_token_ids: bool = False,
        offset: int = 0,
        left_out: Container[int] = (),
        first_token_bytes: TokenBytes = None,
    ) -> None:
        self._reader = _Reader(token_bytes, top, every, as_token_ids)
        self._left_out = left_out
        self._first_token_bytes = first_token_bytes
        self._offsets = _Offsets(offset)

    def add(self, positions: Sequence[Position], token_ids: Sequence[int] | None = None) -> dict[str, list[Any]]:
        """`text_offset`, `token_logprobs`, `tokens` and `top_logprobs` of these positions.

        A position that the engine gave nothing for (the prompt's first) has a logprob and a top of `None`; what
        token it is, only `token_ids`, one for each position, can say.
        """
        offsets: list[int] = []
        logprobs: list[float | None] = []
        texts: list[str] = []
        tops: list[dict[str, float] | None] = []
        for index, position in enumerate(positions):
            if position:
                token_id = int(next(iter(position)))
                token, best = self._reader.tokens(position)
                top: dict[str, float] = {}
                for candidate in (token, *best):
                    # Of two tokens that read alike, the sampled one stays, then the better one.
                    top.setdefault(candidate.text, candidate.logprob)
                logprobs.append(token.logprob)
                tops.append(top)
            else:
                token_id = -1 if token_ids is None else token_ids[index]
                token = self._reader.token(token_id, {}) if token_id >= 0 else _UNKNOWN
                logprobs.append(None)
                tops.append(None)
            texts.append(token.text)
            offsets.append(self._offsets.add(self._shown(token_id, token)))
        return {"text_offset": offsets, "token_logprobs": logprobs, "tokens": texts, "top_logprobs": tops}

    def _shown(self, token_id: int, token: _Token) -> bytes:
        if token_id in self._left_out:
            return b""
        first, self._first_token_bytes = self._first_token_bytes, None
        data = first(token_id) if first else None
        return token.shown if data is None else data


_UNKNOWN = _Token("", None, b"", _LOWEST, None)


class _Offsets:
    """Where each token begins, in characters, given the tokens' bytes one after the other. What is not UTF-8 counts
    as the replacement characters that the answer shows for it."""

    def __init__(self, begin: int) -> None:
        self._characters = begin
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, data: bytes) -> int:
        """The offset of the character that the token's first byte belongs to."""
        if not data:
            return self._characters
        text = self._decoder.decode(data[:1])
        self._characters += len(text)
        # The first byte's own character is the last one, or still incomplete.
        is_complete = not self._decoder.getstate()[0]
        offset = self._characters - is_complete
        self._characters += len(self._decoder.decode(data[1:]))
        return offset
