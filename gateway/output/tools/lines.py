"""Formats in which nothing but its form makes a call: it has to begin a line."""

from gateway.output.events import MakeId, Tools
from gateway.output.tools.base import ToolParser


class LineParser(ToolParser):
    """Knows whether a line of content begins here: only white space stands ahead of it, or a call."""

    def __init__(self, tools: Tools, make_id: MakeId) -> None:
        super().__init__(tools, make_id)
        self._begins_line = True

    def _give_content(self, text: str) -> None:
        line = text.rfind("\n") + 1
        self._begins_line = (line > 0 or self._begins_line) and not text[line:].strip()
        super()._give_content(text)

    def _end_call(self, is_whole: bool = False) -> None:
        self._begins_line = True
        super()._end_call(is_whole)
