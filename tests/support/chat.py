"""Chat requests and answers, as tests write and read them."""

import json
from typing import Any

import httpx

from gateway.check.probes import UNSEEN

MODEL = "mock"

# A value that is no default for every field that is forwarded to the engine.
TELLING: dict[str, Any] = {
    **UNSEEN,
    "temperature": 0.25,
    "top_p": 0.5,
    "frequency_penalty": -0.5,
    "presence_penalty": 0.75,
    "seed": 12345,
    "stop": ["zzz"],
    "logit_bias": {"5": -50.0},
    "top_k": 7,
    "min_p": 0.125,
    "repetition_penalty": 1.5,
    "min_tokens": 3,
    "stop_token_ids": [5, 6],
    "include_stop_str_in_output": True,
    "ignore_eos": True,
    "bad_words": ["x"],
    "allowed_token_ids": [1, 2],
    "skip_special_tokens": False,
    "spaces_between_special_tokens": False,
    "stream_interval": 4,
    "repetition_detection": {"max_pattern_size": 30, "min_pattern_size": 20, "min_count": 9},
    "truncate_prompt_tokens": 9,
    "truncation_side": "left",
    "prompt_logprobs": 2,
    "logprob_token_ids": [3, 4],
    "top_logprobs": 2,
}
COMPLETION_TELLING: dict[str, Any] = {name: value for name, value in TELLING.items() if name != "top_logprobs"} | {
    "max_tokens": 17,
    "logprobs": 3,
}

# What a field cannot be sent without.
BESIDE: dict[str, dict[str, Any]] = {
    "top_logprobs": {"logprobs": True},
    "truncation_side": {"truncate_prompt_tokens": 9},
    "spaces_between_special_tokens": {"skip_special_tokens": False},
    "stream_interval": {"stream": True},
}


def beside(name: str, *, is_chat: bool) -> dict[str, Any]:
    """The other fields that a request with this one needs."""
    if name == "logprob_token_ids":
        return {"logprobs": True if is_chat else 0}
    return BESIDE.get(name, {})


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "n": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["name", "n"],
    "additionalProperties": False,
}


def chat(text: str = "Say something.", /, **changes: Any) -> dict[str, Any]:
    """A request body."""
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 20} | changes


def completion(prompt: Any = "Say something.", /, **changes: Any) -> dict[str, Any]:
    """The body of a request for completions."""
    return {"model": MODEL, "prompt": prompt, "max_tokens": 20} | changes


def complete(client: httpx.Client, prompt: Any = "Say something.", /, **changes: Any) -> httpx.Response:
    return client.post("/v1/completions", json=completion(prompt, **changes))


def ask(client: httpx.Client, text: str = "Say something.", /, **changes: Any) -> httpx.Response:
    return client.post("/v1/chat/completions", json=chat(text, **changes))


def events(answer: httpx.Response) -> list[dict[str, Any]]:
    """The JSON events of a stream that ended with [DONE]."""
    lines = [line for line in answer.text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines), answer.text
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line[6:]) for line in lines[:-1]]


def joined(chunks: list[dict[str, Any]]) -> str:
    return "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c.get("choices"))
