"""A client of the gateway in the same process: ASGI calls instead of a connection.

So a request takes the whole way of a client's, and nothing listens on a port.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import orjson

from gateway.api.http import Event, Receive, Scope, Send

Application = Callable[[Scope, Receive, Send], Awaitable[None]]

_DONE = "[DONE]"
# For the gateway to notice that its client is gone.
_GOODBYE_S = 5.0


@dataclass(frozen=True, slots=True)
class Response:
    """`bodies` are the JSON values: the one of a whole answer, or those of the events of a stream without its end."""

    status: int
    headers: Mapping[str, str]
    bodies: list[Any]


class InProcessClient:
    """Runs the application's lifespan as an `async with` block. A call that is cancelled is, to the application, a
    client that goes away."""

    def __init__(self, application: Application) -> None:
        self._application = application
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._lifespan: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        answers: asyncio.Queue[Event] = asyncio.Queue()
        scope: Scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
        self._lifespan = asyncio.ensure_future(self._application(scope, self._events.get, answers.put))
        self._events.put_nowait({"type": "lifespan.startup"})
        await answers.get()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._lifespan is not None
        self._events.put_nowait({"type": "lifespan.shutdown"})
        await self._lifespan

    async def post(self, path: str, value: Any) -> Response:
        """Raises `ValueError` for an answer that is neither JSON nor a complete stream of JSON events."""
        gone = asyncio.Event()
        unread: list[Event] = [{"type": "http.request", "body": orjson.dumps(value), "more_body": False}]
        sent: list[Event] = []

        async def receive() -> Event:
            if unread:
                return unread.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(event: Event) -> None:
            sent.append(event)

        scope: Scope = {
            "type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"",
            "headers": [(b"content-type", b"application/json")], "http_version": "1.1", "scheme": "http",
            "asgi": {"version": "3.0"},
        }  # fmt: skip
        call = asyncio.ensure_future(self._application(scope, receive, send))
        try:
            await asyncio.wait([call])
        except asyncio.CancelledError:
            gone.set()
            await asyncio.wait([call], timeout=_GOODBYE_S)
            raise
        call.result()
        return _response(sent)


def _response(sent: list[Event]) -> Response:
    start, *rest = sent
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in start["headers"]}
    body = b"".join(event.get("body", b"") for event in rest)
    if not headers["content-type"].startswith("text/event-stream"):
        return Response(start["status"], headers, [orjson.loads(body)])
    *events, end = [event.removeprefix("data: ") for event in body.decode().split("\n\n") if event]
    if end != _DONE:
        raise ValueError("the stream has no end")
    return Response(start["status"], headers, [orjson.loads(event) for event in events])
