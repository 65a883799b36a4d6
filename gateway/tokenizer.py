"""A model's tokenizer: text to token ids and back, and what each single token stands for.

Belongs here: what is asked of the `tokenizers` library, the only place that knows its ways. The files are read
by `gateway.models`. No I/O. Safe to use from several threads.
"""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tokenizers import Tokenizer

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")

# Decoders that look at one token at a time and, beside it, only at whether it is the first or the last: what they
# make of one can be asked of the library. CTC is none of them: it drops a token that repeats the one before.
_LOCAL_DECODERS = {"BPEDecoder", "ByteFallback", "Metaspace", "Replace", "Strip", "WordPiece"}
# A token whose text every decoder leaves as it is.
_NEIGHBOUR = "a"


class ModelTokenizer:
    """One model's tokenizer.

    `tokenizer` becomes this object's own: its truncation and padding are switched off, since no prompt is cut or
    filled up in silence. `special_tokens` are those that the tokenizer's configuration names; as in the engine,
    they are special even where the tokenizer's own file lists them as plain ones.
    """

    def __init__(self, tokenizer: Tokenizer, special_tokens: Iterable[str] = ()) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        listed = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
        tokenizer.add_special_tokens([token for token in special_tokens if token not in listed])
        self._tokenizer = tokenizer
        self.vocabulary_size: int = tokenizer.get_vocab_size(with_added_tokens=True)
        """Tokens that have a name. The model's own table may be longer: rows without a token."""
        added = tokenizer.get_added_tokens_decoder()
        self.added_tokens = {token.content: token_id for token_id, token in added.items()}
        """The ids of the tokens that stand beside those of the tokenizer's model, special or not, by their text."""
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        """The tokens that `skip_special_tokens` leaves out of a text."""
        inside, first = _rules(tokenizer.decoder)
        self.knows_bytes = inside is not _unknown
        """Whether `token_bytes` knows its tokens at all."""
        self._bytes = _Memo(self._string, inside)
        self._first_bytes = _Memo(self._string, first)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """`add_special_tokens`: with those that the tokenizer itself puts around a text, such as a BOS. Special
        tokens that are written out in the text become those tokens, as in the engine."""
        # Of the library's ways to encode, only those for batches let other threads run meanwhile.
        (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        ids: list[int] = encoding.ids
        return ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Raises `ValueError` that names an id which the vocabulary lacks."""
        self.token_strings(ids)
        (text,) = self._tokenizer.decode_batch([ids], skip_special_tokens=skip_special_tokens)
        return str(text)

    def token_strings(self, ids: Sequence[int]) -> list[str]:
        """The vocabulary's own spelling of each token, such as `Ġthe` or `▁the`. Raises `ValueError` that names an
        id which the vocabulary lacks."""
        strings = []
        for token_id in ids:
            string = self._string(token_id)
            if string is None:
                raise ValueError(f"the vocabulary has no token {token_id}")
            strings.append(string)
        return strings

    def token_bytes(self, token_id: int) -> bytes | None:
        """The bytes that a token adds in the middle of a text, exact also where it is only a part of a character.

        `None` where they cannot be known: the vocabulary lacks the id, or what the decoder makes of a token
        depends on its neighbours. Cheap from a token's second time on.
        """
        return self._bytes[token_id]

    def first_token_bytes(self, token_id: int) -> bytes | None:
        """As `token_bytes`, for the token that a text begins with: some decoders drop the blank there that the
        tokenizer has put before the first word."""
        return self._first_bytes[token_id]

    def _string(self, token_id: int) -> str | None:
        # Outside of 32 bits, the library does not answer but raises.
        if not 0 <= token_id < 2**32:
            return None
        string: str | None = self._tokenizer.id_to_token(token_id)
        return string


_Rule = Callable[[str], bytes | None]


class _Memo(dict[int, bytes | None]):
    """Each token's bytes, worked out when it is first asked for: an answer uses few of a vocabulary's tokens, so a
    whole table would cost time at the start and memory for nothing."""

    def __init__(self, string: Callable[[int], str | None], rule: _Rule) -> None:
        self._string = string
        self._rule = rule

    def __missing__(self, token_id: int) -> bytes | None:
        string = self._string(token_id)
        # Ids that no vocabulary has are not remembered: there are too many of them.
        if string is None:
            return None
        found = self[token_id] = self._rule(string)
        return found


def _rules(decoder: Any) -> tuple[_Rule, _Rule]:
    """What turns a token's string into its bytes, by the kind of the tokenizer's decoder: inside a text, and at its
    beginning."""
    steps = _steps(json.loads(decoder.__getstate__())) if decoder else []
    if steps == ["ByteLevel"]:
        return _byte_level, _byte_level
    if not _is_local(steps):
        return _unknown, _unknown

    def joined(*strings: str) -> str:
        # Without a decoder, the library joins the tokens with blanks.
        return str(decoder.decode(list(strings))) if decoder else " ".join(strings)

    before = joined(_NEIGHBOUR)
    after = joined(_NEIGHBOUR, _NEIGHBOUR).removeprefix(before)
    falls_back = joined(_NEIGHBOUR, "<0x21>", _NEIGHBOUR) == f"{before}!{after}"

    def rule_after(*neighbours: str) -> _Rule:
        def rule(string: str) -> bytes:
            if falls_back and (byte := _BYTE_TOKEN.fullmatch(string)):
                return bytes.fromhex(byte[1])
            text = joined(*neighbours, string, _NEIGHBOUR).removesuffix(after)
            return (text.removeprefix(before) if neighbours else text).encode()

        return rule

    return rule_after(_NEIGHBOUR), rule_after()


def _is_local(steps: Sequence[str]) -> bool:
    """Whether what becomes of a token does not depend on which ones stand beside it."""
    fused = steps.index("Fuse") if "Fuse" in steps else len(steps)
    # Of a text that is joined already, only the ends may still change.
    return set(steps[:fused]) <= _LOCAL_DECODERS and set(steps[fused:]) <= {"Fuse", "Strip"}


def _unknown(_: str) -> None:
    return None


def _steps(decoder: dict[str, Any]) -> list[str]:
    if decoder["type"] == "Sequence":
        return [step for inner in decoder["decoders"] for step in _steps(inner)]
    return [decoder["type"]]


def _byte_alphabet() -> dict[str, int]:
    """The characters that stand for the 256 bytes in byte-level vocabularies, as GPT-2 introduced them: printable
    Latin-1 stands for itself, the rest for the characters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()


def _byte_level(string: str) -> bytes:
    # An added token is plain text; the decoder tells it by a character that stands for no byte.
    try:
        return bytes([_BYTE_OF[character] for character in string])
    except KeyError:
        return string.encode()
