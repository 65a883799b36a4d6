"""gpt-oss (harmony): messages with a channel each; reasoning, content and calls in one format.

    <|channel|>analysis<|message|>Simple sum.<|end|><|start|>assistant<|channel|>final<|message|>It is 4.<|return|>
    <|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city":"Paris"}<|call|>

- analysis is reasoning, also where it speaks to a tool of the model's own (`to=python`);
- a message to a function, on any channel, is a call; the recipient stands behind the channel or ahead of it;
- all else is content: final, commentary without a recipient (a preamble for the user), and text without a channel.

The prompt ends with `<|start|>assistant`, so that the answer begins within a message's head. Two messages of the same
kind are joined by a newline.

OpenAI's library for this format (`openai-harmony`) is not used: its parser takes token ids, and what a Triton server
sends is text. The ids could only be had by tokenising the text again, and for that the special tokens would have to be
found in it first, which is all the parsing that there is; besides, it is strict, and ends at the first mistake of the
model.
"""

import re
from typing import Final

from gateway.output.events import MakeId, Reasoning, Tools
from gateway.output.reader import Give, Markers, Steps, drop
from gateway.output.tools.base import ToolParser, TrimmedText
from gateway.output.tools.frame import CallFrame

_START: Final = "<|start|>"
_CHANNEL: Final = "<|channel|>"
_CONSTRAIN: Final = "<|constrain|>"
_MESSAGE: Final = "<|message|>"
_ENDS: Final = ("<|end|>", "<|return|>", "<|call|>", "<|endoftext|>")

_CHANNEL_NAME: Final = re.compile(rf"{re.escape(_CHANNEL)}\s*([^\s<]+)")
_RECIPIENT: Final = re.compile(r"\bto=([^\s<]+)")
_FUNCTIONS: Final = "functions."

_HEAD_ENDS: Final = Markers(_MESSAGE, _START, *_ENDS)
_PLAIN_TEXT_ENDS: Final = Markers(_START, _CHANNEL, _MESSAGE, *_ENDS)

FRAME: Final = CallFrame(
    trigger=_CHANNEL + "commentary to=functions.",
    before=_CHANNEL + "commentary to=functions.{name} " + _CONSTRAIN + "json" + _MESSAGE,
    after="<|call|>",
)


class GptOssParser(ToolParser):
    """`prompt` is the rendered prompt: where it ends within a message, the answer goes on with that."""

    end_tokens = ()
    frame = Markers(_START, _CHANNEL, _CONSTRAIN, _MESSAGE, *_ENDS)

    def __init__(self, tools: Tools, make_id: MakeId, prompt: str = "") -> None:
        super().__init__(tools, make_id)
        self._begun_head = prompt.rpartition(_START)[2].removeprefix("assistant") if _START in prompt else ""
        self._reasoning = TrimmedText()

    def _answer(self) -> Steps[None]:
        head: str | None = self._begun_head
        while (yield from self._next()):
            if head is None or _MESSAGE not in head:
                head = yield from self._rest_of_head(head or "")
            if head is not None:
                yield from self._body(head.partition(_MESSAGE)[0])
            head = None

    def _rest_of_head(self, begun: str) -> Steps[str | None]:
        """A message's head, up to `<|message|>`; None where none comes next, or where no message follows it."""
        parts = [begun]
        give = self._holding(parts)
        yield from self._space(give)
        if not begun and not (yield from self._begins_head(give)):
            self._abandon()
            marker = yield from self._until(_PLAIN_TEXT_ENDS, self._give_content)
            self._back_to_head(marker)
            return None
        if not parts[-1].endswith(_MESSAGE):
            marker = yield from self._until(_HEAD_ENDS, give)
            if marker != _MESSAGE:
                if marker:
                    self._forget_held()
                    self._back_to_head(marker)
                else:
                    self._abandon()
                return None
            parts.append(marker)
        self._forget_held()
        return "".join(parts)

    def _begins_head(self, give: Give) -> Steps[bool]:
        for mark in (_START, _CHANNEL, _CONSTRAIN, _MESSAGE, "to="):
            if (yield from self._literal(mark, give)):
                return True
        return False

    def _body(self, head: str) -> Steps[None]:
        channel = _CHANNEL_NAME.search(head)
        recipient = _RECIPIENT.search(head)
        function = self._function(recipient.group(1)) if recipient else ""
        give = self._give_content
        if function:
            self._start(function)
            yield from self._read_arguments()
            yield from self._space(drop)
        elif channel and channel.group(1) == "analysis":
            self.in_reasoning = True
            self._join(self._reasoning)
            give = self._give_reasoning
        else:
            self._join(self._content)
        marker = yield from self._until(self.frame, give, is_frame=function != "")
        self.in_reasoning = False
        self._back_to_head(marker)

    def _function(self, recipient: str) -> str:
        """The function that a message is for; empty where it is for none, or the request offers none."""
        name = recipient.removeprefix(_FUNCTIONS)
        return name if name in self._tools or (self._tools and name != recipient) else ""

    def _back_to_head(self, marker: str) -> None:
        """What ended the text may be the beginning of the next message."""
        if marker not in _ENDS:
            self._at -= len(marker)

    def _join(self, text: TrimmedText) -> None:
        """Another message of the same kind begins."""
        if text.begun:
            text.wait("\n")

    def _give_reasoning(self, text: str) -> None:
        if given := self._reasoning.add(text):
            self._events.append(Reasoning(given))
