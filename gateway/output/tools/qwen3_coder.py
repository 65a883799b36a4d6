"""Qwen3-Coder, Qwen 3.5 and others with its elements: no types, the tool's schema gives them.

    <tool_call>
    <function=get_weather>
    <parameter=city>
    Paris
    </parameter>
    </function>
    </tool_call>

One newline on either side of a value belongs to the frame. Strings are given as they come, other values one by one. The
models leave out `<tool_call>` at times: then the function must be one of the request's.
"""

import re
from typing import Final

from gateway.output.reader import Markers, Steps, drop
from gateway.output.tools.base import END_TOKENS
from gateway.output.tools.elements import ElementParser

_OPEN: Final = "<tool_call>"
_CLOSE: Final = "</tool_call>"
_FUNCTION: Final = "<function="
_END_FUNCTION: Final = "</function>"
_PARAMETER: Final = "<parameter="
_HEAD: Final = re.compile(r"[^>\n]*")
_END_PARAMETER: Final = Markers("\n</parameter>", "</parameter>")

_MARKERS: Final = Markers(_OPEN, _CLOSE, _FUNCTION, *END_TOKENS)


class Qwen3CoderParser(ElementParser):
    frame = Markers(_OPEN, _FUNCTION, _PARAMETER, _END_FUNCTION, _CLOSE)

    def _answer(self) -> Steps[None]:
        is_open = False
        while marker := (yield from self._free_text(_MARKERS)):
            if marker == _CLOSE:
                if not is_open:
                    self._give_content(marker)
                is_open = False
                continue
            self._hold(marker)
            if marker == _OPEN:
                yield from self._space(self._hold)
                is_call = yield from self._literal(_FUNCTION, self._hold)
            else:
                is_call = True
            if is_call and (yield from self._function(bare=marker == _FUNCTION and not is_open)):
                is_open = True
                yield from self._space(drop)
            self._abandon()

    def _function(self, bare: bool) -> Steps[bool]:
        """Read one function's element from its name on; whether it is a call."""
        name = yield from self._head_of_element()
        if not name or (bare and name not in self._tools):
            return False
        self._start_element(name)
        while True:
            yield from self._space(self._hold)
            if not (yield from self._literal(_PARAMETER, self._hold)):
                break
            key = yield from self._head_of_element()
            if not key:
                break
            yield from self._literal("\n", self._hold)
            if not (yield from self._element(key, _END_PARAMETER)):
                return True
        self._end_elements((yield from self._literal(_END_FUNCTION, self._hold)))
        return True

    def _head_of_element(self) -> Steps[str]:
        parts: list[str] = []
        yield from self._span(_HEAD, self._holding(parts))
        return "".join(parts).strip() if (yield from self._literal(">", self._hold)) else ""
