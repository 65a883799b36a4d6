"""Answer bytes: chat completions and completions, as server-sent events and whole. Pure: values in, bytes out.

A chunk is a prepared prefix, the escaped delta and a suffix: per token one small `dumps` and a join,
no model object (what a token costs is measured by `bench/`).
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import orjson
from orjson import Fragment

from gateway.openai.errors import ApiError

DONE = b"data: [DONE]\n\n"

Usage = Mapping[str, int]
Members = Mapping[str, Any]
"""Further members of a choice or of an answer: what only some requests ask for."""

NONE: Members = {}
_OPEN_END = b',"finish_reason":null'


def error_event(error: ApiError) -> bytes:
    """An error after the head has left: the event, then the end of the stream."""
    return b"data: " + error.body() + b"\n\n" + DONE


class Telling(NamedTuple):
    """The events of an answer of one choice that is nothing but text, each without its beginning, the `Identity`:
    ahead of the first text, around a text, around the reason of the end, around the usage (none where it is not
    wanted). `end`: behind all, whole."""

    begin: bytes
    before: bytes
    after: bytes
    finish_before: bytes
    finish_after: bytes
    usage_before: bytes
    usage_after: bytes
    end: bytes


class Identity:
    """How each event of an answer begins, for all answers of one model."""

    def __init__(self, kind: str, model: str) -> None:
        self._kind, self._model = orjson.dumps(kind), orjson.dumps(model)

    def of(self, answer_id: str, created: int) -> bytes:
        named = orjson.dumps(answer_id), self._kind, created, self._model
        return b'data: {"id":%b,"object":%b,"created":%d,"model":%b' % named


class _Stream:
    """The events of one answer with any number of choices.

    `usage_last`: a final event with the usage (`stream_options.include_usage`), all others then carry
    `"usage": null`. `usage_always`: the running usage of its choice on every event
    (`continuous_usage_stats`); an event's `usage` is given then, else it is None.
    """

    kind: str
    _nothing: bytes  # The member of a choice that adds no text.

    def __init__(self, answer_id: str, created: int, model: str, *, usage_last: bool, usage_always: bool) -> None:
        self._head = Identity(self.kind, model).of(answer_id, created)
        self._choice = self._head + b',"choices":[{"index":'
        self.usage_always = usage_always
        self._usage_last = usage_last
        self._no_usage = b',"usage":null}\n\n' if self._usage_last else b"}\n\n"
        self._content_end = b'},"logprobs":null' + _OPEN_END + b"}]" + self._no_usage

    def finish(self, index: int, reason: str, usage: Usage | None, members: Members = NONE) -> bytes:
        """The last event of a choice."""
        choice = b'%d,%s,"logprobs":null,"finish_reason":' % (index, self._nothing) + orjson.dumps(reason)
        return self._choice + choice + _more(members) + b"}]" + self._tail(usage)

    def end(self, usage: Usage) -> bytes:
        """The usage, where it was asked for, and the end of the stream."""
        if not self._usage_last:
            return DONE
        return self._head + b',"choices":[],"usage":' + orjson.dumps(usage) + b"}\n\n" + DONE

    def _tail(self, usage: Usage | None) -> bytes:
        return self._no_usage if usage is None else b',"usage":' + orjson.dumps(usage) + b"}\n\n"


class ChatStream(_Stream):
    kind = "chat.completion.chunk"
    _nothing = b'"delta":{}'

    def role(self, index: int, usage: Usage | None, members: Members = NONE) -> bytes:
        """The first event of a choice; `members` are the answer's."""
        choice = b'%d,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]' % index
        return self._choice + choice + _more(members) + self._tail(usage)

    def content(
        self,
        index: int,
        text: str,
        usage: Usage | None,
        logprobs: Sequence[Members] | None = None,
        members: Members = NONE,
    ) -> bytes:
        """What nearly every event is: text, made with less than `delta` needs."""
        content = self._choice + b'%d,"delta":{"content":' % index + orjson.dumps(text)
        if usage is None and logprobs is None and not members:
            return content + self._content_end
        shown = b'},"logprobs":null' if logprobs is None else b'},"logprobs":' + orjson.dumps(_content(logprobs))
        return content + shown + _OPEN_END + _more(members) + b"}]" + self._tail(usage)

    def around_content(self, index: int) -> tuple[bytes, bytes]:
        """What stands before and after the text, as JSON, in an event of nothing else and without usage."""
        return self._choice + b'%d,"delta":{"content":' % index, self._content_end

    def telling(self) -> Telling | None:
        """None where the events carry the running usage."""
        if self.usage_always:
            return None
        own = len(self._head)
        before, after = self.around_content(0)
        mark = "reason"
        finish_before, finish_after = self.finish(0, mark, None)[own:].split(orjson.dumps(mark))
        usage = b"", b""
        if self._usage_last:
            counts = {mark: 0}
            usage_before, usage_after = self.end(counts)[own:].removesuffix(DONE).split(orjson.dumps(counts))
            usage = usage_before, usage_after
        return Telling(self.role(0, None)[own:], before[own:], after, finish_before, finish_after, *usage, DONE)

    def delta(
        self,
        index: int,
        delta: Members,
        usage: Usage | None,
        logprobs: Sequence[Members] | None = None,
        members: Members = NONE,
    ) -> bytes:
        """An event of anything but content: reasoning, calls, or log probabilities of a text that is held back."""
        choice = b'%d,"delta":' % index + orjson.dumps(delta) + b',"logprobs":'
        shown = b"null" if logprobs is None else orjson.dumps(_content(logprobs))
        return self._choice + choice + shown + _OPEN_END + _more(members) + b"}]" + self._tail(usage)


class CompletionStream(_Stream):
    kind = "text_completion"
    _nothing = b'"text":""'

    def text(
        self, index: int, text: str, usage: Usage | None, logprobs: Members | None = None, members: Members = NONE
    ) -> bytes:
        shown = b',"logprobs":' + (b"null" if logprobs is None else orjson.dumps(logprobs))
        content = b'%d,"text":' % index + orjson.dumps(text) + shown
        return self._choice + content + _OPEN_END + _more(members) + b"}]" + self._tail(usage)

    def around_text(self, index: int) -> tuple[bytes, bytes]:
        """What stands before and after the text, as JSON, in an event of nothing else and without usage."""
        return self._choice + b'%d,"text":' % index, b',"logprobs":null' + _OPEN_END + b"}]" + self._no_usage



def _more(members: Members) -> bytes:
    """Members to follow others; nothing for none."""
    return b"," + orjson.dumps(members)[1:-1] if members else b""


def one_by_one(values: Sequence[Any]) -> Fragment:
    """A list in an answer that was not streamed: to write thousands of log probabilities with their alternatives in one
    call would keep other threads waiting."""
    return Fragment(b"[%b]" % b",".join([orjson.dumps(value) for value in values]))


def _content(logprobs: Sequence[Members] | Fragment) -> Members:
    return {"content": logprobs, "refusal": None}


def call_start(index: int, call_id: str, name: str) -> dict[str, Any]:
    """The first delta of a call. The later ones must not repeat what clients would add up."""
    function = {"name": name, "arguments": ""}
    return {"tool_calls": [{"index": index, "id": call_id, "type": "function", "function": function}]}


def call_arguments(index: int, text: str) -> dict[str, Any]:
    return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}


def chat_message(content: str | None, reasoning: str = "", calls: Sequence[Members] = ()) -> dict[str, Any]:
    """`calls` have id, name and arguments."""
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = [
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": call["name"], "arguments": call["arguments"]},
            }
            for call in calls
        ]
    return message


def chat_choice(
    index: int, message: Members, reason: str, logprobs: Sequence[Members] | None, members: Members
) -> dict[str, Any]:
    return {
        "index": index,
        "message": message,
        "logprobs": None if logprobs is None else _content(one_by_one(logprobs)),
        "finish_reason": reason,
        **members,
    }


def completion_choice(index: int, text: str, reason: str, logprobs: Members | None, members: Members) -> dict[str, Any]:
    if logprobs is not None:
        logprobs = {**logprobs, "top_logprobs": one_by_one(logprobs["top_logprobs"])}
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason, **members}


def whole(
    kind: str,
    answer_id: str,
    created: int,
    model: str,
    choices: Sequence[Members],
    usage: Usage,
    members: Members = NONE,
) -> bytes:
    """The body of an answer that was not streamed."""
    head = {"id": answer_id, "object": kind, "created": created, "model": model}
    return orjson.dumps({**head, "choices": choices, "usage": usage, **members})
