"""Llama 4 and others that call as Python does: a list of calls with keyword arguments.

    [get_weather(city="Paris", days=3), get_time()]

`<|python_start|>` and `<|python_end|>` may stand around it. Without them nothing but its form makes a call of it: it
must begin a line and name a function of the request. Arguments are given one by one, as JSON.
"""

import json
from typing import Final

from gateway.output.reader import Give, Markers, Steps, drop
from gateway.output.tools.base import END_TOKENS, NAME
from gateway.output.tools.lines import LineParser
from gateway.output.tools.typed import python_to_json

_START: Final = "<|python_start|>"
_END: Final = "<|python_end|>"
_LIST: Final = "["

# Of a value: what ends it at its top level, brackets, and quotes.
_NOTABLE: Final = Markers(",", "(", ")", "[", "]", "{", "}", '"', "'")
_IN_STRING: Final = {quote: Markers(quote, "\\") for quote in "\"'"}

_MARKERS: Final = Markers(_START, _LIST, _END, *END_TOKENS)


class Llama4PythonicParser(LineParser):
    end_tokens = (*END_TOKENS, _END)

    def _answer(self) -> Steps[None]:
        while marker := (yield from self._free_text(_MARKERS)):
            if marker == _LIST and not self._begins_line:
                self._give_content(marker)
                continue
            self._hold(marker)
            if marker == _START:
                yield from self._space(self._hold)
                is_list = yield from self._literal(_LIST, self._hold)
            else:
                is_list = True
            calls = self._calls
            if is_list:
                yield from self._calls_of_list(bare=marker == _LIST)
            if marker == _START or self._calls > calls:
                self._abandon()
                yield from self._literal(_END, drop)
            else:
                self._release()

    def _calls_of_list(self, bare: bool) -> Steps[None]:
        """The calls after the opening bracket. What does not belong to one is left or held back."""
        while (yield from self._call(bare)):
            bare = False
            yield from self._space(drop)
            if (yield from self._literal("]", drop)) or not (yield from self._literal(",", self._hold)):
                return

    def _call(self, bare: bool) -> Steps[bool]:
        """Read one call; whether it is one, as a whole."""
        yield from self._space(self._hold)
        parts: list[str] = []
        yield from self._span(NAME, self._holding(parts))
        name = "".join(parts)
        if not name or (bare and name not in self._tools) or not (yield from self._literal("(", self._hold)):
            return False
        key = yield from self._key_of_argument()
        if not key and (yield from self._next()) != ")":
            return False
        self._start(name)
        opening = "{"
        while key:
            value = yield from self._value()
            if value is None:
                return False
            self._give_arguments(f"{opening}{json.dumps(key)}: {value}")
            opening = ", "
            if (yield from self._literal(",", self._hold)):
                key = yield from self._key_of_argument()
            else:
                key = ""
        if not (yield from self._literal(")", self._hold)):
            return False
        self._forget_held()
        if opening == ", ":
            self._give_arguments("}")
        self._end_call()
        return True

    def _key_of_argument(self) -> Steps[str]:
        """`key=`; empty where something else stands."""
        yield from self._space(self._hold)
        parts: list[str] = []
        yield from self._span(NAME, self._holding(parts))
        yield from self._space(self._hold)
        return "".join(parts) if parts and (yield from self._literal("=", self._hold)) else ""

    def _value(self) -> Steps[str | None]:
        """One argument as JSON; None where it does not end. What Python could not read is a string."""
        parts: list[str] = []
        give = self._holding(parts)
        depth = 0
        while True:
            mark = yield from self._until(_NOTABLE, give)
            if not mark or (depth == 0 and mark in "]}"):
                return None
            if depth == 0 and mark in ",)":
                self._at -= 1
                break
            give(mark)
            if mark in _IN_STRING:
                yield from self._rest_of_string(mark, give)
            elif mark in "([{":
                depth += 1
            elif mark != ",":
                depth -= 1
        self._forget_held()
        text = "".join(parts).strip()
        found = python_to_json(text)
        return json.dumps(text, ensure_ascii=False) if found is None else found

    def _rest_of_string(self, quote: str, give: Give) -> Steps[None]:
        while mark := (yield from self._until(_IN_STRING[quote], give)):
            give(mark)
            if mark == quote:
                return
            if (yield from self._next()):
                self._give_to(self._at + 1, give)
