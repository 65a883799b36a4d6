"""What an answer has come to so far: text, finish reason, counts, log probabilities, and the message that the text
says. Incremental, no I/O."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from gateway.openai.errors import ApiError, internal_error, unavailable
from gateway.output.events import CallArguments, CallStart, Content, Event, OutputParser, Reasoning
from gateway.output.logprobs import Position
from gateway.output.thinking import ThinkingTokens
from gateway.triton.contract import Delta, Unread

# The finish reasons that a client may see as they are (the last one is vLLM's, for repetition_detection); an
# engine's other ends are errors.
_TRUTHFUL = {"stop", "length", "repetition"}


class Call(NamedTuple):
    """A finished call; `arguments` is JSON text as far as the model wrote JSON."""

    id: str
    name: str
    arguments: str


class Message:
    """What a parser has made of a text: content, reasoning and calls."""

    def __init__(self) -> None:
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[tuple[CallStart, list[str]]] = []

    def add(self, events: Iterable[Event]) -> None:
        for event in events:
            match event:
                case Content(text):
                    self._content.append(text)
                case Reasoning(text):
                    self._reasoning.append(text)
                case CallStart():
                    self._calls.append((event, []))
                case CallArguments(index, text):
                    self._calls[index][1].append(text)

    @property
    def content(self) -> str:
        return "".join(self._content)

    @property
    def reasoning(self) -> str:
        return "".join(self._reasoning)

    @property
    def calls(self) -> list[Call]:
        return [Call(start.id, start.name, "".join(arguments)) for start, arguments in self._calls]


_NOTHING = Message()
"""What is made of a text that is nothing but content."""


class Answer:
    """One choice. `index` is its number among all choices, `prompt` that of its prompt; `parser` makes a
    message of the text, where it is more than content; `thinking` tells its tokens apart, where they are known.
    `keeps_text`: `text` will be asked for; of a stream that a client does not read it would be the largest part.
    Counts are in tokens; a response of the engine says how many it adds. What was not asked of the engine stays empty
    or None."""

    def __init__(
        self,
        index: int,
        prompt: int,
        parser: OutputParser | None = None,
        thinking: ThinkingTokens | None = None,
        *,
        keeps_text: bool = True,
    ) -> None:
        self.index = index
        self.prompt = prompt
        self.parser = parser
        self.thinking = thinking
        self.message = _NOTHING if parser is None else Message()
        self.events: list[Event] = []
        """What the last response, or the end, made certain of the message."""
        self._parts: list[str] | None = [] if keeps_text else None
        self.begun = False
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.logprobs: list[Position] = []
        self.token_ids: list[int] = []
        self.prompt_token_ids: list[int] | None = None
        self._prompt_logprobs: list[Position] | Unread | None = None

    @property
    def prompt_logprobs(self) -> list[Position] | None:
        """Those of a long prompt are read when they are first asked for, which takes long. Raises a 500 then."""
        kept = self._prompt_logprobs
        if not isinstance(kept, Unread):
            return kept
        read: list[Position] = kept.read()
        self._prompt_logprobs = read
        return read

    @property
    def large(self) -> list[object]:
        """What is to be freed in parts."""
        return [self.logprobs, self._prompt_logprobs]

    @property
    def unread_bytes(self) -> int:
        """Of the JSON text of what is read when it is asked for."""
        return len(self._prompt_logprobs) if isinstance(self._prompt_logprobs, Unread) else 0

    @property
    def text(self) -> str:
        assert self._parts is not None
        return "".join(self._parts)

    def add(self, delta: Delta) -> None:
        if self._parts is not None:
            self._parts.append(delta.text)
        self.prompt_tokens = delta.prompt_tokens or self.prompt_tokens
        self.completion_tokens += delta.new_tokens
        self.finish_reason = delta.finish_reason or self.finish_reason
        if delta.outputs:
            self._add_outputs(delta.outputs)
        if self.parser is not None:
            self.events = self.parser.feed(delta.text)
            self.message.add(self.events)

    @property
    def is_plain(self) -> bool:
        """Whether nothing is made of the text, and nobody will ask for it."""
        return self._parts is None and self.parser is None and self.thinking is None

    def relayed(self, prompt_tokens: int, tokens: int) -> None:
        """So much came whose text went to the client by another way; the answer is plain."""
        self.prompt_tokens = prompt_tokens or self.prompt_tokens
        self.completion_tokens += tokens

    @property
    def reasoning_tokens(self) -> int:
        """How many of the tokens are thinking. Where it is not known what each of them says, they are shared out by the
        texts of the whole answer, whatever came together."""
        if self.thinking is not None and self.thinking.is_exact:
            return self.thinking.count
        thought = len(self.message.reasoning)
        said = len(self.message.content) + sum(len(call.name) + len(call.arguments) for call in self.message.calls)
        return math.ceil(self.completion_tokens * thought / (thought + said)) if thought else 0

    def _add_outputs(self, outputs: Mapping[str, Any]) -> None:
        if self.thinking is not None:
            self.thinking.add(outputs)
        self.logprobs += outputs.get("logprobs") or ()
        self.token_ids += outputs.get("token_ids") or ()
        if (prompt_logprobs := outputs.get("prompt_logprobs")) is not None:
            self._prompt_logprobs = prompt_logprobs
        for once in ("prompt_token_ids", "stop_reason"):
            if outputs.get(once) is not None:
                setattr(self, once, outputs[once])

    def finish(self, constraint_kind: str | None) -> str:
        """The stream has ended: the engine's finish reason, or an `ApiError` where it is no proper end."""
        reason = self.finish_reason
        if reason in _TRUTHFUL:
            if self.parser is not None:
                self.events = self.parser.finish(reason)
                self.message.add(self.events)
            if self.thinking is not None:
                self.thinking.finish()
            return reason
        if reason is None:
            raise unavailable("The engine ended the answer without saying why.")
        if reason == "abort":
            raise unavailable("The engine aborted the request.")
        if reason == "error":
            raise constraint_failed(constraint_kind)
        raise internal_error(f"it ended the answer with the unknown reason {reason!r}")


def usage(answers: Sequence[Answer]) -> dict[str, Any]:
    """The usage of a request: each prompt counts once, however many choices it has."""
    prompts: dict[int, int] = {}
    completion_tokens = 0
    for answer in answers:
        # Of a request that has failed, not every choice has heard of its prompt.
        prompts[answer.prompt] = max(prompts.get(answer.prompt, 0), answer.prompt_tokens)
        completion_tokens += answer.completion_tokens
    counts = usage_of(sum(prompts.values()), completion_tokens)
    if any(answer.parser for answer in answers):
        reasoning = sum(answer.reasoning_tokens for answer in answers)
        counts["completion_tokens_details"] = {"reasoning_tokens": reasoning}
    return counts


def usage_of(prompt_tokens: int, completion_tokens: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def constraint_failed(kind: str | None) -> ApiError:
    """vLLM's finish reason `error`: the grammar did not compile or refused a token; it gives no text."""
    what = f"the {kind} constraint could not be held" if kind else "it ended the request with an error"
    return internal_error(f"{what}, and it gave no reason")
