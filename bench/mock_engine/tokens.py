"""Tokens: how text becomes token ids and back. Pure.

Two tokenizers stand behind `PromptTokenizer`. `PieceTokenizer` is the mock's own simple rule, and every generated
token follows it. `FileTokenizer` reads a model's `tokenizer.json` and is used for prompts where a model repository
gives one.

The simple rule: words (with the space before them), numbers, runs of white space and runs of anything else are cut
into pieces of at most three UTF-8 bytes; a piece is a token. So a character of four bytes spans two tokens, as in
real vocabularies.
"""

import re
from pathlib import Path
from typing import Protocol

from tokenizers import Tokenizer

EOS = 256
BOS = 257
_SPECIAL = {EOS: b"</s>", BOS: b"<s>"}

_RUN = re.compile(rb" ?[A-Za-z]+| ?[0-9]+|\s+|[^A-Za-z0-9\s]+")
PIECE_BYTES = 3
_FIRST_ID_OF_LENGTH = {1: 0, 2: 512, 3: 512 + 2**16}
VOCABULARY_SIZE = 512 + 2**16 + 2**24


class PromptTokenizer(Protocol):
    max_chars_per_token: int
    """No token stands for more characters than this."""

    def encode(self, text: str, add_special_tokens: bool, last: int | None = None) -> list[int]:
        """`last`: at most so many tokens, special ones included; what is cut off is the beginning of the text."""

    def decode(self, ids: list[int]) -> str:
        """The text of these tokens, special ones included. U+FFFD stands for a character that is not complete."""


class PieceTokenizer:
    """The simple rule. `add_special_tokens` puts one BOS in front."""

    max_chars_per_token = PIECE_BYTES

    def encode(self, text: str, add_special_tokens: bool, last: int | None = None) -> list[int]:
        ids = [token_id(piece) for piece in pieces(text.encode())]
        special = [BOS] if add_special_tokens else []
        return special + ids[_cut(len(ids), len(special), last) :]

    def decode(self, ids: list[int]) -> str:
        return b"".join(map(piece, ids)).decode(errors="replace")


class FileTokenizer:
    """A model's own `tokenizer.json`."""

    def __init__(self, path: Path) -> None:
        self._tokenizer: Tokenizer = Tokenizer.from_file(str(path))
        self.max_chars_per_token = max(map(len, self._tokenizer.get_vocab()), default=1)

    def encode(self, text: str, add_special_tokens: bool, last: int | None = None) -> list[int]:
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        special = self._tokenizer.num_special_tokens_to_add(False) if add_special_tokens else 0
        encoding.truncate(len(encoding) - _cut(len(encoding), special, last), direction="left")
        ids: list[int] = self._tokenizer.post_process(encoding, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=False)
        return text


def _cut(tokens: int, special: int, last: int | None) -> int:
    """How many of the text's tokens have to go."""
    return 0 if last is None else max(tokens + special - last, 0)


def pieces(data: bytes) -> list[bytes]:
    """Cuts UTF-8 bytes into tokens' bytes by the simple rule."""
    return [run[at : at + PIECE_BYTES] for run in _RUN.findall(data) for at in range(0, len(run), PIECE_BYTES)]


def token_id(piece: bytes) -> int:
    """The id of a piece of one to three bytes. Ids of different pieces differ."""
    return _FIRST_ID_OF_LENGTH[len(piece)] + int.from_bytes(piece, "big")


def piece(token: int) -> bytes:
    """The piece that a token stands for; empty for an id that stands for none."""
    if token in _SPECIAL:
        return _SPECIAL[token]
    for length, first in reversed(_FIRST_ID_OF_LENGTH.items()):
        if token >= first:
            number = token - first
            return number.to_bytes(length, "big") if number < 256**length else b""
    return b""


def is_token(token: int) -> bool:
    """Whether an answer can hold this token: the end, or what stands for a piece."""
    data = piece(token)
    return token == EOS or (bool(data) and token_id(data) == token)
