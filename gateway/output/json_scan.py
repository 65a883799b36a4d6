"""Where a JSON value ends, found piece by piece. It is not validated: only strings and brackets are followed."""

import json
import re
from enum import Enum, auto
from typing import Final

# Outside of strings: white space, separators, digits, and the letters of true, false and null.
_PLAIN: Final = re.compile(r"[\s\w.,:+\-]*")
_SCALAR: Final = re.compile(r"[\w.+\-]*")
_STRING: Final = re.compile(r'[^"\\\x00-\x1f]*')
_CLOSING: Final = {"{": "}", "[": "]"}


class State(Enum):
    OPEN = auto()
    """The value goes on, or has not begun."""
    WHOLE = auto()
    """The value has ended."""
    BROKEN = auto()
    """Here stands what cannot be JSON."""


class JsonScanner:
    """One value. It begins with its first character: white space ahead of it is not read over."""

    def __init__(self) -> None:
        self.state = State.OPEN
        self._open: list[str] = []
        self._in_string = False
        self._in_scalar = False
        self._escaped = False
        # The place of a character in the text scanned last, and what stands in for it.
        self._repairs: list[tuple[int, str]] = []

    def scan(self, text: str, at: int) -> int:
        """Where in `text` the value that goes on at `at` ends; `state` says why."""
        self._repairs = []
        while at < len(text) and self.state is State.OPEN:
            at = self._scan_string(text, at) if self._in_string else self._scan_plain(text, at)
        return at

    def repaired(self, text: str, start: int, end: int) -> str:
        """What was scanned last, from `start` to `end`, with the control characters inside of strings escaped: JSON
        forbids them and models write them all the same."""
        if not self._repairs:
            return text[start:end]
        parts = []
        for place, instead in self._repairs:
            parts += [text[start:place], instead]
            start = place + 1
        return "".join([*parts, text[start:end]])

    def end(self) -> State:
        """The text has ended: a number or word ends there, too."""
        if self._in_scalar:
            self.state = State.WHOLE
        return self.state

    def _scan_string(self, text: str, at: int) -> int:
        if self._escaped:
            self._escaped = False
            if text[at] < " ":
                self._repairs.append((at, _escape(text[at])[1:]))
            return at + 1
        found = _STRING.match(text, at)
        assert found is not None
        at = found.end()
        if at == len(text):
            return at
        if text[at] == '"':
            self._in_string = False
            self._after_value()
        elif text[at] == "\\":
            self._escaped = True
        else:
            self._repairs.append((at, _escape(text[at])))
        return at + 1

    def _scan_plain(self, text: str, at: int) -> int:
        if self._open or self._in_scalar:
            found = (_PLAIN if self._open else _SCALAR).match(text, at)
            assert found is not None
            at = found.end()
            if at == len(text):
                return at
            if self._in_scalar:
                self.state = State.WHOLE
                return at
        character = text[at]
        if character == '"':
            self._in_string = True
        elif character in _CLOSING:
            self._open.append(_CLOSING[character])
        elif self._open and character == self._open[-1]:
            self._open.pop()
            self._after_value()
        elif not self._open and _SCALAR.fullmatch(character):
            self._in_scalar = True
        else:
            self.state = State.BROKEN
            return at
        return at + 1

    def _after_value(self) -> None:
        if not self._open:
            self.state = State.WHOLE


def _escape(character: str) -> str:
    return json.dumps(character)[1:-1]
