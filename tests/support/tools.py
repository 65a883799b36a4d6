"""Answers with calls and thinking, as the official client reads them, streamed and whole.

Every stream is checked on the way for what holds of all of them: clients add deltas up by concatenation, so that a
call's index, id, type and name come once, ahead of its arguments.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import openai
from openai.lib.streaming.chat import ChatCompletionStreamState

from bench.mock_engine.running import MockEngine
from bench.mock_engine.tokens import pieces
from tests.support.gateway import Gateway
from tests.support.output import Call

THOUGHTS = {
    # Opened by the answer, by the prompt, by both, and not at all.
    ("qwen3", ""): ["<think>\nHm.\n</think>\n\nYes.", "<think>one two six</think>four", "Yes, no <think>.", "<th"],
    ("qwen3", "<think>\n"): ["Hm 🌊 日.\n</think>\n\nYes 🌊.", "<think>Hm.</think>Yes.", "Hm. Yes", "</think>"],
    ("magistral", ""): ["[THINK]Hm.[/THINK]Yes."],
    ("gpt_oss", "<|start|>assistant"): [
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.",
        "<|channel|>analysis<|message|>A<|end|><|start|>assistant<|channel|>commentary<|message|>B<|end|>"
        "<|start|>assistant<|channel|>analysis<|message|>C<|end|><|start|>assistant<|channel|>final<|message|>D",
        "<|channel|>final<|message|>Yes.",
    ],
}
"""Answers of models that think, by the family and what the prompt ends with: the gateway knows their tokens."""

WHOLE = 100_000
"""More tokens than any answer has: all of it in one response."""


@dataclass
class Reply:
    """One choice. `logprobs` are the tokens' texts."""

    content: str
    reasoning: str
    calls: list[Call]
    finish_reason: str
    logprobs: list[str] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    usage: dict[str, Any] = field(default_factory=dict)

    def said(self) -> tuple[Any, ...]:
        """What must be the same in every stream and whole. Ids of calls are drawn."""
        calls = [(call.name, call.arguments) for call in self.calls]
        return self.content, self.reasoning, calls, self.finish_reason, self.logprobs, self.usage


@dataclass
class Talk:
    """The official client at a gateway whose models write calls and thinking in their families' ways (`model` is
    the family), and the engine behind it."""

    gateway: Gateway
    engine: MockEngine

    def __post_init__(self) -> None:
        self.client = openai.OpenAI(base_url=f"{self.gateway.url}/v1", api_key="none", max_retries=0, timeout=60)

    def body(self, model: str, **fields: Any) -> dict[str, Any]:
        """A request. Fields that the official client does not know go the way that it has for them."""
        messages = [{"role": "user", "content": "Weather in Paris?"}]
        body: dict[str, Any] = {"model": model, "messages": messages} | fields
        extra = {name: body.pop(name) for name in ("chat_template_kwargs", "include_reasoning") if name in body}
        return body | ({"extra_body": extra} if extra else {})

    def whole(self, model: str, text: str | Sequence[str] | None = None, **fields: Any) -> list[Reply]:
        """The choices of a whole answer; `text` is what the model says, in each of them."""
        self._script(text)
        for _ in range(5):
            raw = self.client.chat.completions.with_raw_response.create(**self.body(model, **fields))
            # On a machine that pauses, the gateway may have no time to look at the answer.
            if raw.headers.get("x-gateway-structured-output") != "not-validated":
                break
        answer = raw.parse()
        usage = answer.usage.to_dict() if answer.usage else {}
        return [_reply(choice, dict(raw.headers), usage) for choice in answer.choices]

    def streamed(
        self, model: str, text: str | Sequence[str] | None = None, merge: int | list[int] = 1, **fields: Any
    ) -> list[Reply]:
        """The choices of a stream, added up by the official client; `merge` tokens come at once."""
        self._script(text, merge=merge)
        fields |= {"stream": True, "stream_options": {"include_usage": True}}
        raw = self.client.chat.completions.with_raw_response.create(**self.body(model, **fields))
        state: ChatCompletionStreamState[None] = ChatCompletionStreamState()
        chunks = list(raw.parse())
        for chunk in chunks:
            state.handle_chunk(chunk)
        check_stream([chunk.to_dict() for chunk in chunks])
        snapshot = state.current_completion_snapshot
        usage = snapshot.usage.to_dict() if snapshot.usage else {}
        return [_reply(choice, dict(raw.headers), usage) for choice in snapshot.choices]

    def reply(self, model: str, text: str | None = None, **fields: Any) -> Reply:
        """The one choice of an answer, the same whole and streamed in several cuts."""
        (whole,) = self.whole(model, text, **fields)
        for merge in (1, 4, WHOLE):
            (streamed,) = self.streamed(model, text, merge, **fields)
            assert streamed.said() == whole.said(), merge
        return whole

    def arrived(self) -> list[dict[str, Any]]:
        """What the engine got since the last time."""
        requests = self.engine.requests()
        self.engine.forget_requests()
        return requests

    def _script(self, text: str | Sequence[str] | None, **fault: Any) -> None:
        self.engine.clear_faults()
        self.engine.add_fault(text=text, **fault)


async def ask_all(url: str, requests: Sequence[tuple[dict[str, Any], bool]], at_a_time: int = 16) -> list[Reply]:
    """The one choice of each answer, in order; a request is its body and whether it is streamed."""
    turn = asyncio.Semaphore(at_a_time)
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=600) as client:

        async def whole(body: dict[str, Any]) -> Reply:
            raw = await client.chat.completions.with_raw_response.create(**body)
            return _reply(raw.parse().choices[0], dict(raw.headers), {})

        async def streamed(body: dict[str, Any]) -> Reply:
            raw = await client.chat.completions.with_raw_response.create(**body, stream=True)
            state: ChatCompletionStreamState[None] = ChatCompletionStreamState()
            chunks = [chunk async for chunk in raw.parse()]
            for chunk in chunks:
                state.handle_chunk(chunk)
            check_stream([chunk.to_dict() for chunk in chunks])
            return _reply(state.current_completion_snapshot.choices[0], dict(raw.headers), {})

        async def ask(body: dict[str, Any], stream: bool) -> Reply:
            async with turn:
                return await (streamed(body) if stream else whole(body))

        return await asyncio.gather(*(ask(*request) for request in requests))


def tokens_of(text: str) -> int:
    """How many tokens the mock engine says a text in: with this limit it is cut off right behind it."""
    return len(pieces(text.encode()))


def check_stream(chunks: Sequence[dict[str, Any]]) -> None:
    """What holds of every stream."""
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    for index in {choice["index"] for choice in choices}:
        of_choice = [choice for choice in choices if choice["index"] == index]
        deltas = [choice["delta"] for choice in of_choice]
        assert ["role" in delta for delta in deltas] == [True] + [False] * (len(deltas) - 1)
        assert all(choice["finish_reason"] is None for choice in of_choice[:-1])
        assert of_choice[-1]["finish_reason"] is not None
        begun = 0
        for delta in deltas:
            # One thing at a time: clients differ in what they read first.
            assert sum(name in delta for name in ("content", "reasoning_content", "tool_calls")) <= 1
            for call in delta.get("tool_calls", ()):
                if call["index"] == begun:
                    assert call.keys() == {"index", "id", "type", "function"}
                    assert call["id"]
                    assert call["type"] == "function"
                    assert call["function"].keys() == {"name", "arguments"}
                    assert call["function"]["name"]
                    begun += 1
                else:
                    assert call.keys() == {"index", "function"}
                    assert call["index"] == begun - 1
                    assert call["function"].keys() == {"arguments"}
                    assert call["function"]["arguments"]


def _reply(choice: Any, headers: dict[str, str], usage: dict[str, Any]) -> Reply:
    message = choice.message
    calls = [Call(call.id, call.function.name, call.function.arguments) for call in message.tool_calls or ()]
    assert all(call.type == "function" for call in message.tool_calls or ())
    assert len({call.id for call in calls}) == len(calls)
    logprobs = [] if choice.logprobs is None else [entry.token for entry in choice.logprobs.content or ()]
    reasoning = getattr(message, "reasoning_content", None) or ""
    return Reply(message.content or "", reasoning, calls, choice.finish_reason, logprobs, headers, usage)
