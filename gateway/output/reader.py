"""Reading a text that comes in pieces, with code that looks as if it were all there.

A `TextReader`'s `_read` is a generator that takes the text with the methods below. Each of them waits (`yield`) where
what has come does not decide the matter, so that the outcome cannot depend on the cuts. They leave no more than a
marker's length of it unread, whatever comes: reading is linear in the text, also when it comes character by character.
What has to be kept is held in pieces (`_hold`).
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from dataclasses import replace
from itertools import groupby
from typing import Final, TypeAlias, TypeVar

from gateway.output.events import MAX_HELD, CallStart, Event
from gateway.output.json_scan import JsonScanner, State

_T = TypeVar("_T")

Steps: TypeAlias = Generator[None, None, _T]
"""A read that may wait for more text, and then has a result: call it with `yield from`."""

Give = Callable[[str], None]
"""Takes the next piece of text; never an empty one."""

_SPACE: Final = re.compile(r"\s*")


class Markers:
    """Texts that mean something, to be looked for all at once. None of them may stand inside another one, except at
    its end: then the longer one is found, since it begins first."""

    def __init__(self, *texts: str) -> None:
        longest_first = sorted(texts, key=len, reverse=True)
        self.search: Final = re.compile("|".join(map(re.escape, longest_first))).search
        self._beginnings = {text[:length] for text in texts for length in range(1, len(text))}
        self._longest = max(map(len, texts))
        self._first = re.compile("[" + re.escape("".join({text[0] for text in texts})) + "]").search

    def begun(self, text: str, at: int) -> int:
        """The length of the longest end of `text[at:]` that a marker may begin with."""
        found = self._first(text, max(at, len(text) - self._longest + 1))
        while found:
            if text[found.start() :] in self._beginnings:
                return len(text) - found.start()
            found = self._first(text, found.end())
        return 0


class TooLong(Exception):
    """More would have to be held back than `MAX_HELD`."""


class TextReader(ABC):
    """An `OutputParser`; a subclass says in `_answer` what the text means. What `_answer` leaves is content."""

    in_reasoning = False
    has_failed = False

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._ended = False
        self._finish_reason = ""
        self._events: list[Event] = []
        self._held: list[str] = []
        self._held_size = 0
        self._steps = self._read()

    def feed(self, text: str) -> list[Event]:
        self._text = self._text[self._at :] + text
        self._at = 0
        next(self._steps)
        return self._taken()

    def finish(self, finish_reason: str) -> list[Event]:
        self._ended = True
        self._finish_reason = finish_reason
        next(self._steps, None)
        return self._taken()

    @abstractmethod
    def _answer(self) -> Steps[None]: ...

    @abstractmethod
    def _give_content(self, text: str) -> None: ...

    @abstractmethod
    def _close(self) -> None:
        """The text has ended."""

    def _read(self) -> Steps[None]:
        try:
            yield from self._answer()
        except TooLong:
            self.has_failed = True
            self._release()
        while (yield from self._next()):
            self._give_to(len(self._text), self._give_content)
        self._close()

    def _taken(self) -> list[Event]:
        """The events since the last time; pieces of one text are one event."""
        given, self._events = self._events, []
        if len(given) < 2:
            return given
        events: list[Event] = []
        for _, group in groupby(given, key=type):
            first, *others = group
            if isinstance(first, CallStart):
                events += [first, *others]
            elif others:
                others_text = "".join(event.text for event in others if not isinstance(event, CallStart))
                events.append(replace(first, text=first.text + others_text))
            else:
                events.append(first)
        return events

    def _next(self) -> Steps[str]:
        """The next character, which stays; empty where the text has ended."""
        while self._at == len(self._text):
            if self._ended:
                return ""
            yield
        return self._text[self._at]

    def _until(self, markers: Markers, give: Give, *, is_frame: bool = False) -> Steps[str]:
        """Give the text ahead of the next marker, and take the marker; empty where the text ends without one.

        `is_frame`: where the text was cut off in what may be a marker, that is no text.
        """
        while True:
            found = markers.search(self._text, self._at)
            if found:
                end = found.start()
            elif self._ended and not (is_frame and self._finish_reason == "length"):
                end = len(self._text)
            else:
                end = len(self._text) - markers.begun(self._text, self._at)
            self._give_to(end, give)
            if found:
                self._at = found.end()
                return found.group()
            if self._ended:
                self._at = len(self._text)
                return ""
            yield

    def _span(self, pattern: re.Pattern[str], give: Give) -> Steps[None]:
        """Give the text that the pattern matches; it matches any number of characters of a class."""
        while True:
            found = pattern.match(self._text, self._at)
            assert found is not None
            self._give_to(found.end(), give)
            if self._at < len(self._text) or self._ended:
                return
            yield

    def _space(self, give: Give) -> Steps[None]:
        yield from self._span(_SPACE, give)

    def _literal(self, text: str, give: Give) -> Steps[bool]:
        """Whether this text comes next; if so, it is given."""
        while len(self._text) - self._at < len(text) and not self._ended:
            if not text.startswith(self._text[self._at :]):
                return False
            yield
        if not self._text.startswith(text, self._at):
            return False
        self._give_to(self._at + len(text), give)
        return True

    def _json(self, give: Give, scanner: JsonScanner, *, repair: bool = False) -> Steps[State]:
        """Give one JSON value, or as much of it as `scanner` has not seen; how it ended, OPEN where the text did."""
        while True:
            start, self._at = self._at, scanner.scan(self._text, self._at)
            if self._at > start:
                give(scanner.repaired(self._text, start, self._at) if repair else self._text[start : self._at])
            if scanner.state is not State.OPEN:
                return scanner.state
            if self._ended:
                return scanner.end()
            yield

    def _give_to(self, end: int, give: Give) -> None:
        piece = self._text[self._at : end]
        self._at = end
        if piece:
            give(piece)

    # Text of which it is not known yet what it is.

    def _hold(self, text: str) -> None:
        self._held.append(text)
        self._held_size += len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))
        if self._held_size > MAX_HELD:
            raise TooLong

    def _holding(self, parts: list[str]) -> Give:
        """Hold the text, and add it to `parts`."""

        def give(text: str) -> None:
            parts.append(text)
            self._hold(text)

        return give

    def _release(self) -> None:
        """What was held back is content."""
        text = "".join(self._held)
        self._forget_held()
        if text:
            self._give_content(text)

    def _forget_held(self) -> None:
        self._held = []
        self._held_size = 0


def drop(text: str) -> None:
    """A `Give` for what belongs to the frame."""
