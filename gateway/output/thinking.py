"""Which tokens of an answer are its thinking. Told token by token, so that it does not matter how the tokens come:
streamed or whole, one in a response or many. Incremental, no I/O.

The marks' own tokens are thinking. A token is known by its id; what it says, by the tokenizer's or the engine's word.
"""

import codecs
from collections.abc import Iterable, Mapping, Sequence
from itertools import compress
from typing import Any, TypeVar

from gateway.output.events import OutputParser, Reasoning
from gateway.output.logprobs import Position, TokenBytes

_T = TypeVar("_T")


class ThinkingTokens:
    """One choice's tokens.

    `reader` tells thinking from the rest; it is this object's own. `at_beginning`: there is no thinking behind the
    first text that is none. `token_bytes` as for log probabilities.
    """

    def __init__(self, reader: OutputParser, token_bytes: TokenBytes, *, at_beginning: bool) -> None:
        self.flags = bytearray()
        """1 for a token that is thinking, else 0, as far as it is decided: what may be a mark's beginning is not."""
        self.is_exact = True
        """Whether it is known of every token so far what it says."""
        self._reader = reader
        self._token_bytes = token_bytes
        self._at_beginning = at_beginning
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._undecided = 0
        self._over = False

    @property
    def count(self) -> int:
        return sum(self.flags)

    def add(self, outputs: Mapping[str, Any]) -> None:
        """The tokens of one response, by its JSON outputs `token_ids` or `logprobs`."""
        positions: Sequence[Position] = outputs.get("logprobs") or ()
        ids: Sequence[int] | None = outputs.get("token_ids")
        if ids is None:
            ids = [int(next(iter(position))) if position else -1 for position in positions]
        for index, token_id in enumerate(ids):
            self._add(token_id, positions[index] if index < len(positions) else None)

    def finish(self) -> None:
        """No more tokens come: what may have been the beginning of a mark was none."""
        self._decide(0)

    def _add(self, token_id: int, position: Position) -> None:
        self._undecided += 1
        if self._over:
            self._decide(0)
            return
        thought = self._reader.in_reasoning
        events = self._reader.feed(self._decoder.decode(self._bytes(token_id, position)))
        if thought or self._reader.in_reasoning or any(isinstance(event, Reasoning) for event in events):
            self._decide(1)
        elif events:
            self._over = self._at_beginning
            self._decide(0)

    def _bytes(self, token_id: int, position: Position) -> bytes:
        data = self._token_bytes(token_id) if self._token_bytes and token_id >= 0 else None
        if data is None and position:
            entry = position.get(str(token_id))
            data = str((entry or {}).get("decoded_token") or "").encode()
        if data is None:
            self.is_exact = False
        return data or b""

    def _decide(self, flag: int) -> None:
        self.flags.extend(bytes([flag]) * self._undecided)
        self._undecided = 0


def without_thinking(items: Sequence[_T], thinking: ThinkingTokens) -> list[_T]:
    """Of something that each token of a finished answer has, what belongs to no thinking."""
    return _unflagged(items, thinking.flags)


class Withheld:
    """What the tokens of a stream have, log probabilities and ids, until it is decided that they are no thinking."""

    def __init__(self, thinking: ThinkingTokens) -> None:
        self._thinking = thinking
        self._decided = 0
        self._logprobs: list[Position] = []
        self._ids: list[int] = []

    def pass_on(self, logprobs: Iterable[Position], ids: Iterable[int]) -> tuple[list[Position], list[int]]:
        """Takes those of one response, and gives what can be shown now. Either may be empty throughout."""
        self._logprobs += logprobs
        self._ids += ids
        flags = self._thinking.flags[self._decided :]
        self._decided += len(flags)
        shown = _unflagged(self._logprobs[: len(flags)], flags), _unflagged(self._ids[: len(flags)], flags)
        del self._logprobs[: len(flags)]
        del self._ids[: len(flags)]
        return shown


def _unflagged(items: Sequence[_T], flags: bytearray) -> list[_T]:
    return list(compress(items, (not flag for flag in flags)))
