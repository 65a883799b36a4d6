"""Calls whose arguments are elements of text, one for each parameter: the same for all families that write them so."""

import json

from gateway.output.events import MakeId, Tools
from gateway.output.reader import Markers, Steps
from gateway.output.tools.base import ToolParser
from gateway.output.tools.typed import ParameterTypes


class ElementParser(ToolParser):
    """Gives the arguments of one call as a JSON object, parameter by parameter."""

    def __init__(self, tools: Tools, make_id: MakeId) -> None:
        super().__init__(tools, make_id)
        self._types = ParameterTypes({})

    def _start_element(self, name: str) -> None:
        self._start(name)
        self._types = ParameterTypes(self._tools.get(name, {}))

    def _element(self, key: str, end: Markers) -> Steps[bool]:
        """Give one parameter; `end` ends its value. Whether it is whole."""
        head = f"{', ' if self._has_arguments else '{'}{json.dumps(key, ensure_ascii=False)}: "
        if self._types.is_string(key):
            self._forget_held()
            self._give_arguments(head + '"')
            found = yield from self._until(end, self._give_string, is_frame=True)
            if found:
                self._give_arguments('"')
            return bool(found)
        parts: list[str] = []
        found = yield from self._until(end, self._holding(parts))
        if found:
            self._forget_held()
            self._give_arguments(head + self._types.to_json(key, "".join(parts)))
        return bool(found)

    def _give_string(self, text: str) -> None:
        self._give_arguments(json.dumps(text, ensure_ascii=False)[1:-1])

    def _end_elements(self, is_whole: bool) -> None:
        """No further parameter comes: because the call is whole, or because the text says something else."""
        if is_whole:
            self._forget_held()
        if self._has_arguments and (is_whole or not self._is_cut_off()):
            self._give_arguments("}")
        self._end_call(is_whole)
