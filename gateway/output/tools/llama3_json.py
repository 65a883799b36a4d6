"""Llama 3.x, and Llama 4 where its template asks for JSON: a bare JSON object.

    {"name": "get_weather", "parameters": {"city": "Paris"}}

Llama 3.1 puts `<|python_tag|>` in front of it at times, Llama 4 `<|python_start|>`; several calls are separated by
semicolons. Without such a token nothing but its form makes a call of it: it must begin a line, name a function of the
request and have parameters. Any other JSON value is an answer, whatever stands inside it.
"""

from typing import Final

from gateway.output.json_scan import JsonScanner, State
from gateway.output.reader import Markers, Steps, drop
from gateway.output.tools.base import END_TOKENS, SEPARATORS
from gateway.output.tools.lines import LineParser

_TAGS: Final = ("<|python_tag|>", "<|python_start|>")
_END_TAG: Final = "<|python_end|>"

_MARKERS: Final = Markers("{", "[", *_TAGS, _END_TAG, *END_TOKENS)


class Llama3JsonParser(LineParser):
    end_tokens = (*END_TOKENS, _END_TAG)
    argument_keys = ("parameters", "arguments")
    frame = Markers(*END_TOKENS, _END_TAG)

    def _answer(self) -> Steps[None]:
        while marker := (yield from self._free_text(_MARKERS)):
            if marker in _TAGS:
                self._hold(marker)
                yield from self._space(self._hold)
                if (yield from self._json_calls(self._give_content)):
                    yield from self._literal(_END_TAG, drop)
                self._abandon()
            elif not self._begins_line:
                self._give_content(marker)
            else:
                self._at -= 1
                if marker == "{" and (yield from self._json_call(bare=True)):
                    yield from self._span(SEPARATORS, drop)
                else:
                    yield from self._json_answer()

    def _json_answer(self) -> Steps[None]:
        """A value that is no call, of which the beginning may have been held back."""
        scanner = JsonScanner()
        scanner.scan("".join(self._held), 0)
        self._release()
        if scanner.state is State.OPEN:
            yield from self._json(self._give_content, scanner)
