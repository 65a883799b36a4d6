"""DeepSeek V3 and R1, and V3.1, whose calls have neither type nor fence.

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather
    ```json
    {"city": "Paris"}
    ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Paris"}
    <｜tool▁call▁end｜><｜tool▁calls▁end｜>

One parser reads both.
"""

import re
from typing import Final

from gateway.output.reader import Markers, Steps, drop
from gateway.output.tools.base import END_TOKENS, NAME, ToolParser
from gateway.output.tools.frame import CallFrame

_CALLS: Final = "<｜tool▁calls▁begin｜>"
_END_CALLS: Final = "<｜tool▁calls▁end｜>"
_CALL: Final = "<｜tool▁call▁begin｜>"
_END_CALL: Final = "<｜tool▁call▁end｜>"
_SEPARATOR: Final = "<｜tool▁sep｜>"
_FENCE: Final = "```json"
_END_FENCE: Final = re.compile(r"[\s`]*")

V3_FRAME: Final = CallFrame(
    trigger=_CALLS,
    before=_CALL + "function" + _SEPARATOR + "{name}\n" + _FENCE + "\n",
    after="\n```" + _END_CALL,
    section=(_CALLS, _END_CALLS),
    separator="\n",
)
V31_FRAME: Final = CallFrame(
    trigger=_CALLS,
    before=_CALL + "{name}" + _SEPARATOR,
    after=_END_CALL,
    section=(_CALLS, _END_CALLS),
)

_MARKERS: Final = Markers(_CALLS, _CALL, _END_CALL, _END_CALLS, *END_TOKENS)


class DeepSeekParser(ToolParser):
    frame = Markers("\n```" + _END_CALL, _FENCE, _SEPARATOR, _CALL, _END_CALL, _END_CALLS, *END_TOKENS)

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
        type_or_name: list[str] = []
        name: list[str] = []
        yield from self._span(NAME, self._holding(type_or_name))
        if not type_or_name or not (yield from self._literal(_SEPARATOR, self._hold)):
            return
        yield from self._span(NAME, self._holding(name))
        if name:
            yield from self._space(self._hold)
            if not (yield from self._literal(_FENCE, self._hold)):
                return
        elif not (yield from self._next()):
            return
        self._start("".join(name or type_or_name))
        yield from self._read_arguments()
        yield from self._span(_END_FENCE, drop)
