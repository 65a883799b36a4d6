"""Kimi K2: a section of calls, each headed by its id, in which the function's name stands.

    <|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"city": "Paris"}
    <|tool_call_end|><|tool_calls_section_end|>

The model counts its calls over the whole conversation, and the template repeats an id as it is: so the model's id is
given on, unless it gives the same one twice.
"""

import re
from typing import Final

from gateway.output.events import MakeId, Tools
from gateway.output.reader import Markers, Steps, drop
from gateway.output.tools.base import END_TOKENS, ToolParser

_CALLS: Final = "<|tool_calls_section_begin|>"
_END_CALLS: Final = "<|tool_calls_section_end|>"
_CALL: Final = "<|tool_call_begin|>"
_END_CALL: Final = "<|tool_call_end|>"
_ARGUMENTS: Final = "<|tool_call_argument_begin|>"
_HEAD: Final = re.compile(r"[\w.:\-\s]*")
_ID: Final = re.compile(r"(?:functions\.)?([\w.\-]+?)(?::(\d+))?")

_MARKERS: Final = Markers(_CALLS, _CALL, _END_CALL, _END_CALLS, *END_TOKENS)


class KimiK2Parser(ToolParser):
    frame = Markers(_ARGUMENTS, _CALL, _END_CALL, _END_CALLS, *END_TOKENS)

    def __init__(self, tools: Tools, make_id: MakeId) -> None:
        super().__init__(tools, make_id)
        self._ids: set[str] = set()

    def _answer(self) -> Steps[None]:
        while marker := (yield from self._free_text(_MARKERS)):
            if marker == _CALL:
                self._hold(marker)
                yield from self._call()
                self._abandon()
            elif marker == _CALLS:
                self._let_wait(marker)
            elif not self._calls:
                self._give_content(marker)

    def _call(self) -> Steps[None]:
        parts: list[str] = []
        yield from self._span(_HEAD, self._holding(parts))
        found = _ID.fullmatch("".join(parts).strip())
        if not found or not (yield from self._literal(_ARGUMENTS, self._hold)):
            return
        name, number = found.groups()
        self._start(name, self._id(name, number))
        yield from self._read_arguments()
        yield from self._space(drop)

    def _id(self, name: str, number: str | None) -> str:
        index = self._calls
        call_id = self._make_id(name, index) if number is None else f"functions.{name}:{number}"
        while call_id in self._ids:
            call_id = self._make_id(name, index)
            index += 1
        self._ids.add(call_id)
        return call_id
