"""Chat requests and answers, as tests write and read them."""

import json
from typing import Any

import httpx

MODEL = "mock"


def chat(text: str = "Say something.", /, **changes: Any) -> dict[str, Any]:
    """A request body."""
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 20} | changes


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
