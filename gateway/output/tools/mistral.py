"""Mistral: a marker, then the calls, in one of two forms.

    [TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}}]
    [TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}

The second one, of tokenizers from version 11 on, has a marker for each call, and `[CALL_ID]` may stand ahead of
`[ARGS]`, which may be missing. Ids have nine letters or digits: the templates refuse others in the next turn.
"""

import re
from typing import Final

from gateway.output.reader import Markers, Steps
from gateway.output.tools.base import END_TOKENS, NAME, ToolParser

_CALLS: Final = "[TOOL_CALLS]"
_ID: Final = "[CALL_ID]"
_ARGUMENTS: Final = "[ARGS]"
_ID_TEXT: Final = re.compile(r"[A-Za-z0-9]*")
_ID_LENGTH: Final = 9

_END_TOKENS: Final = (*END_TOKENS, "</s>")
_MARKERS: Final = Markers(_CALLS, *_END_TOKENS)


class MistralParser(ToolParser):
    end_tokens = _END_TOKENS
    frame = Markers(_ID, _ARGUMENTS, _CALLS, *_END_TOKENS)

    def _answer(self) -> Steps[None]:
        while marker := (yield from self._free_text(_MARKERS)):
            self._hold(marker)
            yield from self._space(self._hold)
            if (yield from self._next()) in ("[", "{"):
                yield from self._json_calls(self._give_content)
            else:
                yield from self._named_call()
            self._abandon()

    def _named_call(self) -> Steps[None]:
        name: list[str] = []
        call_id: list[str] = []
        yield from self._span(NAME, self._holding(name))
        if (yield from self._literal(_ID, self._hold)):
            yield from self._span(_ID_TEXT, self._holding(call_id))
        has_arguments = yield from self._literal(_ARGUMENTS, self._hold)
        if not name or not (has_arguments or (yield from self._next()) == "{"):
            return
        given = "".join(call_id)
        self._start("".join(name), given if len(given) == _ID_LENGTH else None)
        yield from self._read_arguments()
