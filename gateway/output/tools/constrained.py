"""Answers that a constraint (`gateway.translate.tool_choice`) binds to be calls: nothing but JSON, in any family."""

from gateway.output.events import MakeId, Tools
from gateway.output.reader import Steps
from gateway.output.tools.base import END_MARKERS, ToolParser


class RequiredCallsParser(ToolParser):
    """`[{"name": "get_weather", "parameters": {"city": "Paris"}}]`, with at least one call."""

    argument_keys = ("parameters", "arguments")

    def _answer(self) -> Steps[None]:
        yield from self._space(self._hold)
        yield from self._json_calls(self._give_content)
        self._abandon()
        yield from self._free_text(END_MARKERS)


class NamedCallParser(ToolParser):
    """The arguments of one function, which the request named."""

    def __init__(self, tools: Tools, make_id: MakeId, name: str) -> None:
        super().__init__(tools, make_id)
        self._name = name

    def _answer(self) -> Steps[None]:
        yield from self._space(self._hold)
        if (yield from self._next()):
            self._start(self._name)
            yield from self._read_arguments()
        self._release()
        yield from self._free_text(END_MARKERS)
