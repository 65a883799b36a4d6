"""Reading a request and sending an answer over plain ASGI, for the routes that stand ahead of FastAPI.

Also the sink: what carries an answer's bytes to the client.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, MutableMapping, Sequence
from functools import partial
from typing import Any, Protocol

from gateway.aside import aside
from gateway.openai.errors import ApiError

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Coroutine[Any, Any, None]]
Header = tuple[bytes, bytes]

JSON = (b"content-type", b"application/json")
CLIENT = "gateway.client"
"""In a request's scope: the transport that its answer is written to as it is, where the server names it. A stream goes
there in HTTP/1.1's chunks, one for each `http.response.body`."""
EVENT_STREAM = (b"content-type", b"text/event-stream; charset=utf-8")
# Proxies such as nginx buffer a stream unless told not to; caches must not keep an answer.
STREAM_HEADERS: tuple[Header, ...] = (EVENT_STREAM, (b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no"))
_MAX_WARNING_BYTES = 2048


def head_lines(headers: Iterable[Header]) -> bytes:
    """Of a head, each with its end."""
    return b"".join([b"%b: %b\r\n" % header for header in headers])


class ClientGone(Exception):
    """The client closed the connection before its answer was complete."""


class Sink(Protocol):
    """What stands between the upstream protocol and the client. `write` waits while the client is slow, which in turn
    pauses the reading of the upstream; `push` is the same for who is no task: what it returns, if anything, is to be
    awaited before the next write."""

    async def start_stream(self, headers: Iterable[Header]) -> None: ...

    async def write(self, data: bytes) -> None: ...

    def push(self, data: bytes) -> Awaitable[None] | None: ...

    async def end(self) -> None: ...


class AsgiSink:
    """The reference sink: plain ASGI `send`, for any server and with TLS."""

    def __init__(self, send: Send) -> None:
        self._send = send

    async def start_stream(self, headers: Iterable[Header]) -> None:
        await self._send({"type": "http.response.start", "status": 200, "headers": [*STREAM_HEADERS, *headers]})

    async def write(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    def push(self, data: bytes) -> Awaitable[None] | None:
        sending = self._send({"type": "http.response.body", "body": data, "more_body": True})
        try:
            # A server that can write at once does not wait in between: then there is nothing to await.
            waits_for = sending.send(None)
        except StopIteration:
            return None
        return _Begun(sending, waits_for)

    async def end(self) -> None:
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})


class _Begun:
    """The rest of a coroutine that has been run up to its first wait, which is for `waits_for`."""

    def __init__(self, rest: Coroutine[Any, Any, None], waits_for: Any) -> None:
        self._rest = rest
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, None]:
        waits_for = self._waits_for
        try:
            while True:
                try:
                    sent = yield waits_for
                except BaseException as error:
                    waits_for = self._rest.throw(error)
                else:
                    waits_for = self._rest.send(sent)
        except StopIteration:
            return


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """The whole body. Raises a 413 before the rest of a body over `limit` bytes is read, `ClientGone`."""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and (len(value) > 20 or int(value) > limit):
            raise _too_large(limit)
    parts: list[bytes] = []
    size = 0
    while True:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise ClientGone
        part = event.get("body", b"")
        size += len(part)
        if size > limit:
            raise _too_large(limit)
        parts.append(part)
        if not event.get("more_body"):
            # Python's lock is let go of while a megabyte or more is joined.
            return parts[0] if len(parts) == 1 else await aside(size, partial(b"".join, parts))


def _too_large(limit: int) -> ApiError:
    return ApiError(413, f"The body is larger than {limit} bytes (setting max_body_bytes).", code="body_too_large")


async def send_json(send: Send, status: int, body: bytes, headers: Iterable[Header] = ()) -> None:
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [JSON, length, *headers]})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def send_error(send: Send, error: ApiError, headers: Iterable[Header] = ()) -> None:
    await send_json(send, error.status, error.body(), [*error_headers(error), *headers])


def error_headers(error: ApiError) -> list[Header]:
    """Those of its own."""
    return [(name.encode(), value.encode()) for name, value in error.headers.items()]


def warning_headers(warnings: Sequence[str]) -> list[Header]:
    """`x-gateway-warning`, as ASCII of bounded length, whatever names a client made up."""
    if not warnings:
        return []
    # Of a name of megabytes no more is looked at than can be shown.
    text = "; ".join(warnings)[:_MAX_WARNING_BYTES].encode("ascii", "backslashreplace")
    printable = bytes(c if 32 <= c < 127 else 63 for c in text)
    return [(b"x-gateway-warning", printable[:_MAX_WARNING_BYTES])]


def watch_client(receive: Receive, on_gone: Callable[[], None]) -> asyncio.Task[None]:
    """Call `on_gone` when the client closes its connection. Cancel the task when the answer is sent."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        on_gone()

    return asyncio.create_task(watch())
