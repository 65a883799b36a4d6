"""What a prompt asks of the synthetic engine, and the text that it then answers. Pure, and imports nothing that is
installed: the engine reads it inside Triton, tests and benchmarks write it and know the right answer.

A prompt may hold `synthetic{...}`, a JSON object of `Script`'s fields, anywhere in its text; without it the answer is
that of `Script()`. `max_tokens` of the sampling parameters says how many tokens an answer has (16 when absent).
"""

import json
from dataclasses import asdict, dataclass
from functools import cached_property

_MARK = "synthetic{"

TOKENS = 4096
"""How many different tokens there are; behind the last comes the first again."""

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_MULTIBYTE = "äß€中文日本語🙂🚀👩é́ñ"


def _word(number: int, letters: str) -> str:
    """A word that no other number has."""
    number, letter = divmod(number, len(letters))
    word = f" {letters[letter]}"
    while number:
        number, letter = divmod(number, len(letters))
        word += letters[letter]
    return word


WORDS = tuple(_word(number, _LETTERS) for number in range(TOKENS))
MULTIBYTE_WORDS = tuple(_word(number, _MULTIBYTE) for number in range(TOKENS))


@dataclass(frozen=True)
class Script:
    """One request's."""

    first: int = 0
    """The number of the answer's first token among TOKENS: answers that begin elsewhere are nowhere alike."""
    pace: int = 1
    """A token in each so-many-th step of the engine."""
    wait: int = 0
    """So many steps before the first token."""
    admission_seconds: float = 0.0
    """What the engine takes to admit the request."""
    silent: int = 0
    """Each so-many-th token has no text of its own; 0: none."""
    multibyte: bool = False
    """Words of characters of 2 to 4 bytes."""
    step_milliseconds: float | None = None
    """From now on the engine's steps are so far apart, for all requests."""
    fail_after: int | None = None
    """After so many tokens the engine ends the request with an error."""
    die_after: int | None = None
    """After so many tokens of this request the engine dies, and with it all requests."""

    def prompt(self, text: str = "") -> str:
        """A prompt that asks for this, with `text` before it."""
        asked = {name: value for name, value in asdict(self).items() if value != getattr(_USUAL, name)}
        return f"{text}synthetic{json.dumps(asked)}"

    def token(self, number: int) -> str:
        """The text of the answer's token of that number, counted from 0."""
        if self.silent and number % self.silent == self.silent - 1:
            return ""
        return self.words[(self.first + number) % TOKENS]

    def text(self, tokens: int) -> str:
        """The text of an answer of so many tokens."""
        return "".join(map(self.token, range(tokens)))

    @cached_property
    def words(self) -> tuple[str, ...]:
        return MULTIBYTE_WORDS if self.multibyte else WORDS

    @property
    def is_plain(self) -> bool:
        """Whether each step gives one token whose text is a word of WORDS."""
        return self == Script(
            first=self.first, admission_seconds=self.admission_seconds, step_milliseconds=self.step_milliseconds
        )


_USUAL = Script()


def read_script(prompt: str) -> Script:
    """Raises ValueError for one that asks for what there is not."""
    at = prompt.find(_MARK)
    if at < 0:
        return _USUAL
    asked, _ = json.JSONDecoder().raw_decode(prompt, at + len(_MARK) - 1)
    try:
        return Script(**asked)
    except TypeError as error:
        raise ValueError(str(error)) from None
