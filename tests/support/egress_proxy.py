"""A proxy between gateways and one Triton that knows batched egress: it cuts subscriptions off, changes their messages,
and notes what each request's own final says.

An event loop in a thread of its own, so that a test may wait as it likes.
"""

import asyncio
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]
Change = Callable[[Message], list[Message]]
"""What goes on in place of a message with rows."""

_TOTALS = re.compile(rb'"num_output_characters":(\d+),"num_output_tokens":(\d+)')
_READ = 1 << 16


@dataclass
class Own:
    """A batched request's own stream. `tokens` and `characters` are those of its final, None until it has come;
    `is_answered`: something has come, the admission first."""

    subscriber: str
    stream: int
    is_answered: bool = False
    tokens: int | None = None
    characters: int | None = None


@dataclass
class Seen:
    """Requests that have passed. `plain` are generations that asked for no batched egress."""

    subscriptions: int = 0
    acknowledgements: int = 0
    plain: int = 0
    own: list[Own] = field(default_factory=list)

    def answered(self, begin: int = 0) -> int:
        """How many batched requests have been, from the one of this number on."""
        return sum(own.is_answered for own in self.own[begin:])

    def finished(self, begin: int = 0) -> int:
        """How many of them have had their final."""
        return sum(own.tokens is not None for own in self.own[begin:])


class EgressProxy:
    """`change` is applied to each message with rows; `refuses`: a new connection is closed at once."""

    def __init__(self, upstream: str) -> None:
        self.seen = Seen()
        self.change: Change | None = None
        self.refuses = False
        self._host, _, port = upstream.removeprefix("http://").partition(":")
        self._port = int(port)
        self._links: set[_Link] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = self._call(self._listen())

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    @property
    def open_subscriptions(self) -> int:
        return sum(link.is_subscription for link in list(self._links))

    def drop_subscriptions(self) -> int:
        """Cuts those off by which messages have come; how many there were."""

        async def drop() -> int:
            links = [link for link in self._links if link.is_subscription and link.messages]
            for link in links:
                link.cut()
            return len(links)

        return int(self._call(drop()))

    def close(self) -> None:
        async def close() -> None:
            self._server.close()
            for link in list(self._links):
                link.cut()

        self._call(close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=4096)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refuses:
            writer.transport.abort()
            return
        try:
            up_reader, up_writer = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.transport.abort()
            return
        link = _Link(self, writer, up_writer)
        self._links.add(link)
        ways = [asyncio.create_task(link.requests(reader)), asyncio.create_task(link.answers(up_reader))]
        try:
            # Whichever side ends, both do: neither leaves a half-closed connection behind.
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            link.cut()
            self._links.discard(link)


class _Link:
    """One connection and what it is used for now."""

    def __init__(self, proxy: EgressProxy, client: asyncio.StreamWriter, upstream: asyncio.StreamWriter) -> None:
        self.is_subscription = False
        self.messages = 0
        """With rows, that have come by it."""
        self._proxy = proxy
        self._client = client
        self._upstream = upstream
        self._own: Own | None = None
        self._rewriter: _Rewriter | None = None

    def cut(self) -> None:
        # Cut once: it is among the links until its tasks have ended.
        self.is_subscription = False
        for writer in (self._client, self._upstream):
            writer.transport.abort()

    async def requests(self, reader: asyncio.StreamReader) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
                body = await reader.readexactly(int(length[1])) if length else b""
                self._note(body)
                self._upstream.write(head + body)
                await self._upstream.drain()

    async def answers(self, reader: asyncio.StreamReader) -> None:
        with suppress(OSError):
            while data := await reader.read(_READ):
                if self._own is not None:
                    self._own.is_answered = True
                    if totals := _TOTALS.search(data):
                        self._own.characters, self._own.tokens = int(totals[1]), int(totals[2])
                if self._rewriter is not None:
                    data = self._rewriter.feed(data)
                self._client.write(data)
                await self._client.drain()

    def _note(self, body: bytes) -> None:
        seen = self._proxy.seen
        self._own, self._rewriter, self.is_subscription, self.messages = None, None, False, 0
        if not body:
            return
        asked = json.loads(body)
        if not asked.get("batched_egress"):
            seen.plain += "sampling_parameters" in asked
        elif "stream_id" in asked:
            self._own = Own(asked["subscriber"], asked["stream_id"])
            seen.own.append(self._own)
        elif "acknowledged" in asked:
            seen.acknowledgements += 1
        else:
            seen.subscriptions += 1
            self.is_subscription = True
            self._rewriter = _Rewriter(self._changed)

    def _changed(self, message: Message) -> list[Message]:
        self.messages += 1
        return [message] if self._proxy.change is None else self._proxy.change(message)


class _Rewriter:
    """The answer of a subscription, a chunked stream of events, with its messages changed. A refusal is none."""

    def __init__(self, change: Change) -> None:
        self._change = change
        self._raw = b""
        self._text = b""
        self._in_body = False
        self._is_refusal = False

    def feed(self, data: bytes) -> bytes:
        """What goes on of it."""
        self._raw += data
        out = b""
        if not self._in_body:
            head, end, rest = self._raw.partition(b"\r\n\r\n")
            if not end:
                return b""
            self._in_body, self._raw, out = True, rest, head + end
            self._is_refusal = b"chunked" not in head.lower()
        if self._is_refusal:
            out, self._raw = out + self._raw, b""
            return out
        while True:
            line, end, rest = self._raw.partition(b"\r\n")
            if not end:
                return out
            size = int(line, 16)
            if len(rest) < size + 2:
                return out
            self._raw = rest[size + 2 :]
            if size == 0:
                self._in_body = False
                return out + b"0\r\n\r\n" + self._raw
            self._text += rest[:size]
            out += b"".join(map(_chunk, self._events()))

    def _events(self) -> Iterator[bytes]:
        while True:
            event, end, rest = self._text.partition(b"\n\n")
            if not end:
                return
            self._text = rest
            yield from self._changed(event + end)

    def _changed(self, event: bytes) -> Iterator[bytes]:
        response = json.loads(event.removeprefix(b"data:"))
        message = json.loads(response.get("text_output") or "{}")
        if "rows" not in message:
            yield event
            return
        for one in self._change(message):
            yield b"data: " + json.dumps(response | {"text_output": json.dumps(one)}).encode() + b"\n\n"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


@contextmanager
def running_egress_proxy(upstream: str) -> Iterator[EgressProxy]:
    proxy = EgressProxy(upstream)
    try:
        yield proxy
    finally:
        proxy.close()
