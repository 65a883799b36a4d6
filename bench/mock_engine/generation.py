"""The mock model: a deterministic stream of tokens for one request. Pure: no clock, no network.

An answer is a function of the prompt's token ids and the sampling parameters alone (`SamplingParams.draw_seed`).
Free text is plain words in short sentences that end after 20 to 60 words; structured outputs are valid instances
(`structured.py`). Stop strings, stop token ids, limits and what is held back while streaming follow vLLM's rules
(`v1/engine/detokenizer.py`, `v1/core/sched/utils.py`).
"""

import codecs
import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from bench.mock_engine.logprobs import DecodedTokens, Logprobs, drawn_rank, position_logprobs
from bench.mock_engine.reasoning import CLOSING
from bench.mock_engine.sampling import SamplingParams
from bench.mock_engine.structured import EngineGaveUp, instance
from bench.mock_engine.tokens import EOS, PieceTokenizer, is_token, pieces, token_id
from bench.mock_engine.tokens import piece as piece_of
from bench.mock_engine.words import WORDS

# In a row, of an answer that may not repeat itself.
_MOST_LEFT_OUT = 1000

FinishReason = Literal["stop", "length", "error", "repetition"]


@dataclass(slots=True)
class Delta:
    """What one or more tokens add to the answer: the content of one response."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[Logprobs] | None = None
    cumulative_logprob: float | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    """What ended the answer with `stop` or `repetition`: a stop token, a stop string, or vLLM's word for a repetition;
    nothing for the end-of-sequence token."""

    def extend(self, later: "Delta") -> None:
        """Merges the delta that follows this one into it."""
        self.text += later.text
        self.token_ids += later.token_ids
        if self.logprobs is not None and later.logprobs is not None:
            self.logprobs += later.logprobs
        self.cumulative_logprob = later.cumulative_logprob
        self.finish_reason = later.finish_reason
        self.stop_reason = later.stop_reason


def generate(
    prompt_ids: Sequence[int],
    params: SamplingParams,
    max_model_len: int,
    text: str | Sequence[str] | None = None,
    *,
    thinks_first: bool = False,
) -> Iterator[Delta]:
    """Yields one delta per token; the last one, and only it, has a finish reason.

    `text` replaces what the model would say, a list its tokens; everything else (stop, limits, counts) applies to it
    as well. `thinks_first`: words and the end of the reasoning stand before what obeys the constraint. A constraint
    that is valid but that the engine cannot follow ends with `error` and no message, as in vLLM.
    """
    seed = params.draw_seed(prompt_ids)
    rest = max_model_len - len(prompt_ids)
    limit = rest if params.max_tokens is None else min(params.max_tokens, rest)
    answer = _Answer(params, limit, random.Random(seed))
    try:
        stream = _piece_stream(seed, params, limit, text, thinks_first)
        for piece in _unrepeated(stream, params.no_repeat_ngram) if params.no_repeat_ngram else stream:
            delta = answer.add(piece)
            yield delta
            if delta.finish_reason is not None:
                return
    except EngineGaveUp:
        yield Delta(finish_reason="error", logprobs=[] if params.token_logprobs else None)


def _piece_stream(
    seed: int, params: SamplingParams, limit: int, text: str | Sequence[str] | None, thinks_first: bool
) -> Iterator[bytes | None]:
    """The tokens' bytes; None is the end-of-sequence token. Endless where EOS is ignored, or only some tokens
    are left to choose from."""
    rng = random.Random(seed)
    count = 0
    words_before_end = 0
    first: list[bytes] = []
    if isinstance(text, str):
        first = pieces(text.encode())
    elif text is not None:
        first = [piece.encode() for piece in text]
    elif params.constraint is not None:
        if thinks_first:
            thinking = itertools.islice(_words(rng), rng.randint(5, 30))
            first = [piece for part in (*thinking, CLOSING.encode()) for piece in pieces(part)]
        # A token is at least one byte and at most three.
        first += pieces(instance(params.constraint, seed, max_bytes=3 * limit))
    elif allowed := [token for token in params.only_tokens if is_token(token)]:
        yield from _only(allowed, params, rng)
    else:
        words_before_end = rng.randint(20, 60)
    for piece in first:
        count += 1
        yield piece
    for index, word in enumerate(_words(rng)):
        # After a constraint's last token a grammar allows nothing but the end, whatever min_tokens says.
        may_end = count >= params.min_tokens or params.constraint is not None
        if index >= words_before_end and may_end and not params.ignore_eos:
            yield None
            return
        for piece in pieces(word):
            count += 1
            yield piece


def _unrepeated(stream: Iterator[bytes | None], size: int) -> Iterator[bytes | None]:
    """Leaves out each token that completes a sequence of `size` a second time; the end where none is left."""
    seen: set[tuple[bytes | None, ...]] = set()
    last: list[bytes | None] = []
    left_out = 0
    for piece in stream:
        ngram = (*last[len(last) - size + 1 :], piece)
        if len(ngram) == size and ngram in seen and left_out < _MOST_LEFT_OUT:
            left_out += 1
            continue
        chosen = piece if left_out < _MOST_LEFT_OUT else None
        left_out = 0
        seen.add(ngram)
        last.append(chosen)
        yield chosen


def _only(allowed: Sequence[int], params: SamplingParams, rng: random.Random) -> Iterator[bytes | None]:
    """These tokens, for ever; words where the end is the only one of them and it is too early."""
    words = (piece for word in _words(rng) for piece in pieces(word))
    for count in itertools.count():
        open_to = allowed if count >= params.min_tokens else [token for token in allowed if token != EOS]
        if not open_to:
            yield next(words)
            continue
        token = rng.choice(open_to)
        yield None if token == EOS else piece_of(token)


def _words(rng: random.Random) -> Iterator[bytes]:
    """Words in sentences, each with the space before it, for ever."""
    first = True
    while True:
        length = rng.randint(4, 10)
        for position in range(length):
            word = rng.choice(WORDS)
            if position == 0:
                word = word.capitalize()
            if position == length - 1:
                word += "."
            yield (word if first else f" {word}").encode()
            first = False


class _Answer:
    """The detokenised answer so far, and vLLM's decision where it ends."""

    def __init__(self, params: SamplingParams, limit: int, rng: random.Random) -> None:
        self._params = params
        self._limit = limit
        self._rng = rng
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._decoded = DecodedTokens(PieceTokenizer().decode)
        self._text = ""
        self._sent = 0
        self._tokens: list[int] = []
        self._cumulative = 0.0
        # While the answer runs on, this many characters are kept back: they may be the beginning of a stop string.
        self._held = 0
        if params.stop and not params.include_stop_str_in_output:
            self._held = max(map(len, params.stop)) - 1

    def add(self, piece: bytes | None) -> Delta:
        token = EOS if piece is None else token_id(piece)
        self._tokens.append(token)
        delta = Delta(token_ids=[token])
        self._finish(delta, piece)
        end = len(self._text) if delta.finish_reason else max(len(self._text) - self._held, self._sent)
        delta.text = self._text[self._sent : end]
        self._sent = end
        if self._params.token_logprobs:
            entries = self._logprobs(token)
            self._cumulative += entries[str(token)]["logprob"]
            delta.logprobs = [entries]
            delta.cumulative_logprob = self._cumulative
        return delta

    def _finish(self, delta: Delta, piece: bytes | None) -> None:
        """Adds the token's text, and says in the delta whether and why it is the last one."""
        params, (token,), count = self._params, delta.token_ids, len(self._tokens)
        text = "" if piece is None else self._decoder.decode(piece)
        # Below min_tokens vLLM's sampler cannot choose a stop token, and stop strings are not looked for.
        stops_count = count > params.min_tokens
        is_end = piece is None and not params.ignore_eos
        if piece is None and not is_end and not params.skip_special_tokens:
            text = piece_of(EOS).decode()
        if is_end or (token in params.stop_token_ids and stops_count):
            delta.finish_reason = "stop"
            delta.stop_reason = None if piece is None else token
            if params.include_stop_str_in_output:
                self._text += text
            return
        self._text += text
        if stops_count and (stop := self._cut_at_stop_string(len(text))) is not None:
            delta.finish_reason, delta.stop_reason = "stop", stop
        elif count >= self._limit:
            delta.finish_reason = "length"
        elif count >= params.min_tokens and self._repeats():
            delta.finish_reason, delta.stop_reason = "repetition", "repetition_detected"

    def _repeats(self) -> bool:
        rule = self._params.repetition_detection
        return rule is not None and rule.found_in(self._tokens)

    def _cut_at_stop_string(self, new_chars: int) -> str | None:
        """The stop string that the new characters complete first, after which or before which the text now ends."""
        if not new_chars:
            return None
        hits = []
        for stop in self._params.stop:
            at = self._text.find(stop, max(0, len(self._text) - new_chars - len(stop) + 1))
            if at != -1:
                hits.append((at + len(stop), at, stop))
        if not hits:
            return None
        after, at, stop = min(hits, key=lambda hit: hit[0])
        self._text = self._text[: after if self._params.include_stop_str_in_output else at]
        return stop

    def _logprobs(self, token: int) -> Logprobs:
        params = self._params
        count = params.logprobs or 0
        rank = 1 if params.takes_likeliest else drawn_rank(self._rng, count)
        return position_logprobs(token, rank, count, params.logprob_token_ids, self._decoded, self._rng)
