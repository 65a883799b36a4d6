"""What a client gets of an answer's events, and ways to cut a text."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from gateway.output.events import CallArguments, CallStart, Content, Event, OutputParser, Reasoning


@dataclass
class Call:
    id: str
    name: str
    arguments: str = ""


@dataclass
class Message:
    """The events of an answer, added up as a client does. What no client could take is an assertion error."""

    content: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)

    def add(self, events: Iterable[Event]) -> None:
        for event in events:
            match event:
                case CallStart(index, call_id, name):
                    assert index == len(self.calls)
                    assert call_id not in {call.id for call in self.calls}
                    self.calls.append(Call(call_id, name))
                case CallArguments(index, text):
                    assert text
                    assert index == len(self.calls) - 1
                    self.calls[index].arguments += text
                case Content(text):
                    assert text
                    self.content += text
                case Reasoning(text):
                    assert text
                    self.reasoning += text

    def without_ids(self) -> tuple[str, str, list[tuple[str, str]]]:
        return self.content, self.reasoning, [(call.name, call.arguments) for call in self.calls]


def read(parser: OutputParser, pieces: Iterable[str], finish_reason: str = "stop") -> Message:
    message = Message()
    for piece in pieces:
        message.add(parser.feed(piece))
    message.add(parser.finish(finish_reason))
    return message


def cut(text: str, places: Iterable[int]) -> list[str]:
    """The text, cut at these places; those beyond its end count from its beginning again."""
    bounds = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(bounds)]


def all_cuts(text: str) -> Iterator[list[str]]:
    """Whole, in every two pieces, and character by character."""
    yield [text]
    for place in range(1, len(text)):
        yield [text[:place], text[place:]]
    yield list(text)


def assert_same_for_all_cuts(make: Callable[[], OutputParser], text: str, finish_reason: str = "stop") -> Message:
    whole = read(make(), [text], finish_reason)
    for pieces in all_cuts(text):
        assert read(make(), pieces, finish_reason).without_ids() == whole.without_ids(), pieces
    return whole
