"""Reasoning between two marks, at the beginning of an answer → reasoning and the rest. Incremental, no I/O.

Whether an answer begins inside the reasoning is decided by the end of the prompt: many templates open it there. If the
prompt does not, the answer has to begin with the opening mark; anywhere else the mark is text. The closing mark alone
ends the reasoning: what stands before it is reasoning, also a call that the model rehearses there. White space beside
the marks is part of the frame. `gateway.output.tools.gpt_oss` does the same for harmony's channels.
"""

from dataclasses import dataclass
from functools import cache
from typing import Final

from gateway.output.events import Content, Reasoning
from gateway.output.reader import Markers, Steps, TextReader, drop
from gateway.output.tools.base import END_TOKENS, TrimmedText


@dataclass(frozen=True, slots=True)
class ReasoningMarks:
    opening: str
    closing: str
    has_special_tokens: bool
    """Whether the marks are lost where the engine leaves special tokens out."""

    def opened_by(self, prompt: str) -> bool:
        """Whether an answer to this prompt begins inside the reasoning."""
        return prompt.rstrip().endswith(self.opening)


MARKS: Final = {
    "think": ReasoningMarks("<think>", "</think>", has_special_tokens=False),
    "mistral": ReasoningMarks("[THINK]", "[/THINK]", has_special_tokens=True),
}
"""Name of the reasoning parser → its marks."""


@cache
def _markers(closing: str) -> Markers:
    return Markers(closing, *END_TOKENS)


class ReasoningSplitter(TextReader):
    """Gives `Reasoning`, and everything behind it as `Content`, exactly as it stands."""

    def __init__(self, marks: ReasoningMarks, prompt: str) -> None:
        super().__init__()
        self._marks = marks
        self.in_reasoning = marks.opened_by(prompt)
        self._reasoning = TrimmedText()

    def _answer(self) -> Steps[None]:
        yield from self._space(drop if self.in_reasoning else self._hold)
        opened = yield from self._literal(self._marks.opening, drop)
        if not (self.in_reasoning or opened):
            self._release()
            return
        self._forget_held()
        self.in_reasoning = True
        yield from self._space(drop)
        yield from self._read_reasoning()
        self.in_reasoning = False
        yield from self._space(drop)

    def _read_reasoning(self) -> Steps[None]:
        markers = _markers(self._marks.closing)
        while (marker := (yield from self._until(markers, self._give_reasoning))) in END_TOKENS:
            self._reasoning.wait(marker)

    def _give_reasoning(self, text: str) -> None:
        if given := self._reasoning.add(text):
            self._events.append(Reasoning(given))

    def _give_content(self, text: str) -> None:
        self._events.append(Content(text))

    def _close(self) -> None:
        pass
