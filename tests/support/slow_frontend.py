"""A frontend as many are written: one worker, one event loop, and a pydantic model per request and per chunk, with some
work added to each so that it is slow on any machine. `python -m tests.support.slow_frontend --port 0 --engine URL`

It passes chat completions to the engine's own route. Deliberately slow: a diagnosis must find it.
"""

import argparse
import json
import socket
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict

# Seconds of processor time that each chunk and each request costs beside what they cost anyway.
_PER_CHUNK, _PER_REQUEST = 0.002, 0.01


class Request(BaseModel):
    model_config = ConfigDict(extra="allow")
    model: str
    messages: list[dict[str, Any]]


class Chunk(BaseModel):
    model_config = ConfigDict(extra="allow")
    choices: list[dict[str, Any]]


def burn(seconds: float) -> None:
    """Holds the event loop, as parsing and rendering do, by work and not by the clock's time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def make_app(engine: str) -> FastAPI:
    app = FastAPI()
    client = httpx.AsyncClient(base_url=engine, timeout=None, limits=httpx.Limits(), verify=False)

    @app.get("/v1/models")
    async def models() -> Any:
        return (await client.get("/v1/models")).json()

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> StreamingResponse:
        burn(_PER_REQUEST)
        return StreamingResponse(chunks(request), media_type="text/event-stream")

    async def chunks(request: Request) -> AsyncIterator[str]:
        async with client.stream("POST", "/v1/chat/completions", content=request.model_dump_json()) as answer:
            async for line in answer.aiter_lines():
                data = line.removeprefix("data: ")
                if data.startswith("{"):
                    burn(_PER_CHUNK)
                    yield f"data: {Chunk.model_validate_json(data).model_dump_json()}\n\n"
                elif data:
                    yield f"{line}\n\n"

    return app


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--engine", required=True)
    given = parser.parse_args()
    with socket.create_server(("127.0.0.1", given.port)) as listening:
        # As the services of this project say it.
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        print(json.dumps({"message": f"listening on {address}"}), file=sys.stderr, flush=True)
        uvicorn.Server(uvicorn.Config(make_app(given.engine), log_level="warning")).run([listening])


if __name__ == "__main__":
    main()
