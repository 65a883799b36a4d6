"""GLM 4.5 to 4.7: a name, then pairs of key and value; no types, the tool's schema gives them.

    <tool_call>get_weather
    <arg_key>city</arg_key>
    <arg_value>Paris</arg_value>
    </tool_call>

4.7 writes the same without newlines. Strings are given as they come, other values one by one.
"""

from typing import Final

from gateway.output.reader import Markers, Steps
from gateway.output.tools.base import END_TOKENS, NAME
from gateway.output.tools.elements import ElementParser

_OPEN: Final = "<tool_call>"
_CLOSE: Final = "</tool_call>"
_KEY: Final = "<arg_key>"
_END_KEY: Final = Markers("</arg_key>")
_VALUE: Final = "<arg_value>"
_END_VALUE: Final = Markers("</arg_value>")

_MARKERS: Final = Markers(_OPEN, *END_TOKENS)


class Glm45Parser(ElementParser):
    frame = Markers(_OPEN, _KEY, _VALUE, _CLOSE)

    def _answer(self) -> Steps[None]:
        while marker := (yield from self._free_text(_MARKERS)):
            self._hold(marker)
            yield from self._call()
            self._abandon()

    def _call(self) -> Steps[None]:
        yield from self._space(self._hold)
        parts: list[str] = []
        yield from self._span(NAME, self._holding(parts))
        name = "".join(parts)
        yield from self._space(self._hold)
        has_pair = yield from self._literal(_KEY, self._hold)
        is_whole = not has_pair and (yield from self._literal(_CLOSE, self._hold))
        if not name or not (has_pair or is_whole):
            return
        self._start_element(name)
        while has_pair:
            parts = []
            marker = yield from self._until(_END_KEY, self._holding(parts))
            self._hold(marker)
            yield from self._space(self._hold)
            key = "".join(parts).strip()
            if not key or not (yield from self._literal(_VALUE, self._hold)):
                return
            if not (yield from self._element(key, _END_VALUE)):
                return
            yield from self._space(self._hold)
            has_pair = yield from self._literal(_KEY, self._hold)
            is_whole = not has_pair and (yield from self._literal(_CLOSE, self._hold))
        self._end_elements(is_whole)
