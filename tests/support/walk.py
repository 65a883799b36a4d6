"""Walking a grammar of llguidance at random: what could a model write under it?

Tokens are bytes, an end, and `MARKS` and `HARMONY` as tokens of their own, which are no text to the library.
"""

import random
import re
from collections.abc import Mapping, Sequence
from typing import Literal

from llguidance import LLMatcher, LLTokenizer

END = 256
MARKS = {"<think>": 257, "</think>": 258}
HARMONY = {"<|start|>": 259, "<|end|>": 260, "<|channel|>": 261, "<|message|>": 262, "<|constrain|>": 263}
# Bytes that make JSON interesting or bring it to its end; drawn more often than the others.
_TELLING = frozenset(b'"\\{}[],:0123456789abcdeu-.ETZ ')
_CLOSING = frozenset(b'"}]')


class _Bytes:
    is_tokenizer_wrapper = True
    eos_token_id = END
    bos_token_id = None
    tokens = (*(bytes([byte]) for byte in range(256)), b"<end>", *(mark.encode() for mark in (*MARKS, *HARMONY)))
    special_token_ids = (END, *MARKS.values(), *HARMONY.values())

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text if isinstance(text, bytes) else text.encode())


_tokenizer = LLTokenizer(_Bytes(), n_vocab=END + 1 + len(MARKS) + len(HARMONY), eos_token=END, slices=[])  # type: ignore[arg-type]

Why = Literal["stop", "length", "dead"]


def tokens(text: str, marks_are_tokens: bool, marks: Mapping[str, int] = MARKS) -> list[int]:
    if not marks_are_tokens:
        return list(text.encode())
    parts = re.split(f"({'|'.join(map(re.escape, marks))})", text)
    return [token for part in parts for token in ([marks[part]] if part in marks else part.encode())]


def allows(grammar: str, answer: list[int]) -> bool:
    """Whether the grammar allows these tokens, and the end behind them."""
    matcher = LLMatcher(_tokenizer, grammar, log_level=0)
    return matcher.try_consume_tokens(answer) == len(answer) and matcher.is_accepting()


def walk(grammar: str, rng: random.Random, limit: int, begin: Sequence[int] = ()) -> tuple[bytes, Why]:
    """One text that the grammar allows, byte by byte: "stop" when it ended, "dead" when the engine gave up. `begin` are
    tokens ahead of it, which the grammar has to allow."""
    matcher = LLMatcher(_tokenizer, grammar, log_level=0)
    assert matcher.try_consume_tokens(list(begin)) == len(begin)
    out = bytearray()
    for _ in range(limit):
        mask = int.from_bytes(matcher.compute_bitmask(), "little")
        if matcher.is_error():
            return bytes(out), "dead"
        allowed = [token for token in range(END) if mask >> token & 1]
        if mask >> END & 1 and (not allowed or rng.random() < 0.3):
            return bytes(out), "stop" if matcher.is_accepting() else "dead"
        if not allowed:
            return bytes(out), "dead"
        if rng.random() < 0.7:
            closing = [token for token in allowed if token in _CLOSING] if len(out) > limit // 3 else []
            allowed = closing or [token for token in allowed if token in _TELLING] or allowed
        token = rng.choice(allowed)
        matcher.consume_token(token)
        out.append(token)
    return bytes(out), "length"


def json_grammar(schema: object) -> str:
    """The grammar that the engine makes of a schema, without white space."""
    return LLMatcher.grammar_from_json_schema(schema, defaults={"whitespace_flexible": False})  # type: ignore[arg-type]
