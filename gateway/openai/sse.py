"""Answer bytes: chat completions whole and as server-sent events. Pure: values in, bytes out.

A chunk is a prepared prefix, the escaped delta and a suffix: per token one small `dumps` and a join,
no model object (what a token costs is measured by `bench/`).
"""

from typing import Any

import orjson

from gateway.openai.errors import ApiError

DONE = b"data: [DONE]\n\n"


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def error_event(error: ApiError) -> bytes:
    """An error after the head has left: the event, then the end of the stream."""
    return b"data: " + error.body() + b"\n\n" + DONE


class ChatStream:
    """The events of one streamed chat completion with one choice.

    `usage_last`: a final event with the usage (`stream_options.include_usage`), all others then carry
    `"usage": null`. `usage_always`: the running usage on every event (`continuous_usage_stats`).
    """

    def __init__(self, answer_id: str, created: int, model: str, *, usage_last: bool, usage_always: bool) -> None:
        head = {"id": answer_id, "object": "chat.completion.chunk", "created": created, "model": model}
        self._head = b"data: " + orjson.dumps(head)[:-1]
        self._delta = self._head + b',"choices":[{"index":0,"delta":{"content":'
        self._usage_last = usage_last or usage_always
        self._usage_always = usage_always
        self._no_usage = b',"usage":null}\n\n' if self._usage_last else b"}\n\n"

    def role(self, prompt_tokens: int) -> bytes:
        choice = (
            b',"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
        )
        return self._head + choice + self._tail(prompt_tokens, 0)

    def content(self, text: str, prompt_tokens: int, completion_tokens: int) -> bytes:
        end = b'},"logprobs":null,"finish_reason":null}]'
        return self._delta + orjson.dumps(text) + end + self._tail(prompt_tokens, completion_tokens)

    def finish(self, reason: str, prompt_tokens: int, completion_tokens: int) -> bytes:
        choice = b',"choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":' + orjson.dumps(reason) + b"}]"
        events = self._head + choice + self._tail(prompt_tokens, completion_tokens)
        if self._usage_last:
            counts = orjson.dumps(usage(prompt_tokens, completion_tokens))
            events += self._head + b',"choices":[],"usage":' + counts + b"}\n\n"
        return events + DONE

    def _tail(self, prompt_tokens: int, completion_tokens: int) -> bytes:
        if not self._usage_always:
            return self._no_usage
        return b',"usage":' + orjson.dumps(usage(prompt_tokens, completion_tokens)) + b"}\n\n"


def chat_completion(
    answer_id: str, created: int, model: str, text: str, finish_reason: str, counts: dict[str, int]
) -> bytes:
    """The body of a chat completion that was not streamed."""
    answer: dict[str, Any] = {
        "id": answer_id,
        "object": "chat.completion",
        "created": created,
        "model": model,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text, "refusal": None},
                "logprobs": None,
                "finish_reason": finish_reason,
            }
        ],
        "usage": counts,
    }
    return orjson.dumps(answer)
