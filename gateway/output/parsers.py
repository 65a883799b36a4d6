"""What a model's answers look like, and the parser for one of them: reasoning first, then tools on the rest."""

from dataclasses import dataclass
from typing import Final

from gateway.output.events import Content, Event, OutputParser, Tools
from gateway.output.logprobs import TokenBytes
from gateway.output.reasoning import MARKS, ReasoningSplitter
from gateway.output.thinking import ThinkingTokens
from gateway.output.tools import FAMILIES
from gateway.output.tools.base import PlainText, ToolParser
from gateway.output.tools.constrained import NamedCallParser, RequiredCallsParser
from gateway.output.tools.gpt_oss import GptOssParser
from gateway.output.tools.ids import make_call_id

GPT_OSS: Final = "gpt_oss"
"""The parser that is both: in harmony, channels hold reasoning, content and calls."""

TOOL_PARSERS: Final = tuple(sorted(FAMILIES))
REASONING_PARSERS: Final = (*sorted(MARKS), GPT_OSS)


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """`tool_parser` is one of `TOOL_PARSERS`, `reasoning_parser` one of `REASONING_PARSERS`; `None` where the model's
    answers hold none. `why` says, for the log, how it is known."""

    tool_parser: str | None
    reasoning_parser: str | None
    why: str = ""

    def __post_init__(self) -> None:
        assert self.tool_parser is None or self.tool_parser in TOOL_PARSERS
        assert self.reasoning_parser is None or self.reasoning_parser in REASONING_PARSERS

    @property
    def is_harmony(self) -> bool:
        """Whether answers are messages with channels, whichever parser was set."""
        return GPT_OSS in (self.tool_parser, self.reasoning_parser)

    def needs_special_tokens(self, has_tools: bool) -> bool:
        """Whether the engine must leave special tokens in the text (`skip_special_tokens` false): in each family's
        vocabularies there are some where its marks are special tokens."""
        if self.is_harmony:
            return True
        if has_tools and self.tool_parser is not None:
            return True
        return self.reasoning_parser is not None and MARKS[self.reasoning_parser].has_special_tokens

    def begins_in_reasoning(self, prompt: str) -> bool:
        """Whether the prompt has opened the reasoning."""
        return self.reasoning_parser in MARKS and MARKS[self.reasoning_parser].opened_by(prompt)

    def reasoning_is_over(self, prompt: str) -> bool:
        """Whether the prompt has closed the reasoning already, as templates do when thinking is switched off."""
        marks = MARKS.get(self.reasoning_parser or "")
        return marks is not None and prompt.rstrip().endswith(marks.closing)

    def parser(
        self,
        prompt: str,
        tools: Tools,
        *,
        required: bool = False,
        named: str | None = None,
        earlier_calls: int = 0,
    ) -> OutputParser | None:
        """The parser for one choice of an answer to `prompt`; `None` where all of its text is content.

        `tools` are those that may be called. `required`, `named`: the answer is bound to be calls, or one function's
        arguments (`calls_constraint` of `gateway.translate.tool_choice`); unbound answers are in the family's own
        format. `earlier_calls`: how many calls the request's messages hold.
        """
        family = FAMILIES[self.tool_parser] if self.tool_parser else None

        def make_id(name: str, index: int) -> str:
            return (family.make_id if family else make_call_id)(name, index + earlier_calls)

        rest: ToolParser | None = None
        if named is not None:
            rest = NamedCallParser(tools, make_id, named)
        elif required:
            rest = RequiredCallsParser(tools, make_id)
        if self.is_harmony:
            harmony = GptOssParser({} if rest else tools, make_id, prompt)
            return Chain(harmony, rest) if rest else harmony
        if rest is None and tools and family:
            rest = family.parser(tools, make_id)
        if self.reasoning_parser is None:
            return rest
        return Chain(ReasoningSplitter(MARKS[self.reasoning_parser], prompt), rest or PlainText(tools, make_id))


    def thinking_tokens(self, prompt: str, token_bytes: TokenBytes) -> ThinkingTokens | None:
        """Tells the tokens of one choice apart; `None` where the model does not think."""
        if self.reasoning_parser is None:
            return None
        if self.is_harmony:
            return ThinkingTokens(GptOssParser({}, make_call_id, prompt), token_bytes, at_beginning=False)
        splitter = ReasoningSplitter(MARKS[self.reasoning_parser], prompt)
        return ThinkingTokens(splitter, token_bytes, at_beginning=True)


class Chain:
    """An `OutputParser` of two: the second one reads the first one's content."""

    def __init__(self, first: OutputParser, second: OutputParser) -> None:
        self._first = first
        self._second = second

    @property
    def in_reasoning(self) -> bool:
        return self._first.in_reasoning

    @property
    def has_failed(self) -> bool:
        return self._first.has_failed or self._second.has_failed

    def feed(self, text: str) -> list[Event]:
        return self._through(self._first.feed(text))

    def finish(self, finish_reason: str) -> list[Event]:
        return [*self._through(self._first.finish(finish_reason)), *self._second.finish(finish_reason)]

    def _through(self, events: list[Event]) -> list[Event]:
        through: list[Event] = []
        for event in events:
            if isinstance(event, Content):
                through += self._second.feed(event.text)
            else:
                through.append(event)
        return through


def recognise(template: str) -> OutputFormat:
    """The format of a model's answers, by the source of its chat template: as it writes earlier calls and reasoning,
    so does the model."""
    tool_parser, why = None, []
    for name, family in FAMILIES.items():
        marks = next((group for group in family.recognised_by if all(text in template for text in group)), None)
        if marks:
            tool_parser = name
            why.append(f"{' and '.join(marks)} in the chat template: tool parser {name}")
            break
    reasoning_parser = GPT_OSS if tool_parser == GPT_OSS else None
    for name, kind in MARKS.items():
        if reasoning_parser is None and kind.closing in template:
            reasoning_parser = name
            why.append(f"{kind.closing} in the chat template: reasoning parser {name}")
    return OutputFormat(tool_parser, reasoning_parser, "; ".join(why) or "the chat template has no known mark")


def finish_reason(engine_reason: str, calls: int, named: bool) -> str:
    """The client's finish reason: `tool_calls` where the model chose to call, `stop` where the request named the
    function, as OpenAI has it. An answer that was cut off stays so."""
    return "tool_calls" if engine_reason == "stop" and calls and not named else engine_reason
