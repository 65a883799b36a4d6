"""What parsers make of an answer's text, and the interface that they share. Types only.

A parser belongs to one choice of one answer. `feed` takes the text as it comes and returns the events that it
makes certain; `finish` returns what was still open. **The events add up to the same reasoning, content and calls
for every way of cutting the text into pieces**: a parser never looks at where a piece ends.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A piece of `reasoning_content`."""

    text: str


@dataclass(frozen=True, slots=True)
class Content:
    """A piece of `content`."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call begins: what the first delta of a call holds. `index` counts an answer's calls from 0, `id` is unique
    among them."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A piece of the arguments text of call `index`, which began before. The pieces of a finished call add up to
    JSON as far as the model wrote JSON, and are never nothing: a call without arguments has `{}`."""

    index: int
    text: str


Event = Reasoning | Content | CallStart | CallArguments


class OutputParser(Protocol):
    """One choice's text → events."""

    @property
    def in_reasoning(self) -> bool:
        """Whether the text fed so far ends inside the reasoning."""

    @property
    def has_failed(self) -> bool:
        """Whether the text holds a call that is not written as the family writes them, as far as it is read: one that
        became content, arguments that are no JSON, or more than may be held back. Nothing of it is lost."""

    def feed(self, text: str) -> list[Event]:
        """More of the text, of any length. No text of an event is empty."""

    def finish(self, finish_reason: str) -> list[Event]:
        """The text has ended, for the engine's reason. A call that `length` cut off in its head, before it had a
        name, is dropped, since what it says is a frame; for any other reason its text is content."""


Tools = Mapping[str, Mapping[str, Any]]
"""The functions that the request offers: name → JSON Schema of its parameters, `{}` where it has none."""

MakeId = Callable[[str, int], str]
"""(function's name, index of the call in the answer) → the call's id."""

MAX_HELD: Final = 1024 * 1024
"""Bytes of UTF-8 that a parser holds back at most because it cannot know yet what they are: a call's head, one value
that has to be converted, white space. Past it the answer is no longer parsed: what was held back is given as content,
and so is all the text that follows. Text that is passed on as it comes (content, reasoning, arguments) has no limit."""
