"""`parallel_tool_calls: false`: of several calls that a model makes at once, the first one counts. Pure."""

from gateway.output.events import CallArguments, CallStart, Event, OutputParser


class FirstCall:
    """An `OutputParser` that leaves out all calls of another one but the first, as vLLM's server does: a model cannot
    be kept from more where nothing binds its answer."""

    def __init__(self, parser: OutputParser) -> None:
        self._parser = parser

    @property
    def in_reasoning(self) -> bool:
        return self._parser.in_reasoning

    @property
    def has_failed(self) -> bool:
        return self._parser.has_failed

    def feed(self, text: str) -> list[Event]:
        return _first(self._parser.feed(text))

    def finish(self, finish_reason: str) -> list[Event]:
        return _first(self._parser.finish(finish_reason))


def _first(events: list[Event]) -> list[Event]:
    return [event for event in events if not isinstance(event, CallStart | CallArguments) or event.index == 0]
