"""Hermes, Qwen 2.5 and Qwen 3: a JSON object between tags.

    <tool_call>
    {"name": "get_weather", "arguments": {"city": "Paris"}}
    </tool_call>

Only the tags make a call; one pair may hold several objects. A closing tag that is missing is not missed.
"""

from typing import Final

from gateway.output.reader import Markers, Steps, drop
from gateway.output.tools.base import END_TOKENS, ToolParser
from gateway.output.tools.frame import CallFrame

_OPEN: Final = "<tool_call>"
_CLOSE: Final = "</tool_call>"

FRAME: Final = CallFrame(
    trigger=_OPEN,
    before=_OPEN + '\n{"name": "{name}", "arguments": ',
    after="}\n" + _CLOSE,
)

_MARKERS: Final = Markers(_OPEN, _CLOSE, *END_TOKENS)


class HermesParser(ToolParser):
    frame = Markers(_CLOSE, _OPEN, *END_TOKENS)

    def _answer(self) -> Steps[None]:
        is_open = False
        while marker := (yield from self._free_text(_MARKERS)):
            if marker == _CLOSE:
                if not is_open:
                    self._give_content(marker)
                is_open = False
                continue
            self._hold(marker)
            yield from self._space(self._hold)
            calls = yield from self._json_calls(drop)
            is_open = calls > 0
            self._abandon()
            if is_open:
                yield from self._skip_closing()
