"""The least that a FastAPI service does with a chat request: `python -m bench.compare.bare PORT`.

One route that validates the body with pydantic and answers; what the gateway's requests are compared with.
"""

import sys
from typing import Literal

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel


class TextPart(BaseModel):
    type: Literal["text"]
    text: str


class Message(BaseModel):
    role: Literal["system", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None


class StreamOptions(BaseModel):
    include_usage: bool = False


class ChatRequest(BaseModel):
    model: str
    messages: list[Message]
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None


app = FastAPI()


@app.post("/v1/chat/completions")
async def chat(request: ChatRequest) -> dict[str, int]:
    return {"messages": len(request.messages)}


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), access_log=False, log_level="warning")
