"""Many requests at once, over plain sockets: a client library costs more than the gateway does."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

TIMEOUT_S = 100.0
"""For one answer, on a machine that has other things to do. What takes longer hangs."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer; `headers` by lower-case name."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


async def flood(url: str, requests: Sequence[tuple[str, bytes]], connections: int) -> list[Reply]:
    """Send each (path, body) as a POST over so many connections; the answers in the requests' order. Raises
    `TimeoutError` for an answer that does not come."""
    replies: list[Reply] = [Reply(0)] * len(requests)
    numbers = iter(range(len(requests)))

    async def work() -> None:
        connection = _Connection(url)
        try:
            for number in numbers:
                async with asyncio.timeout(TIMEOUT_S):
                    replies[number] = await connection.post(*requests[number])
        finally:
            connection.close()

    await asyncio.gather(*(work() for _ in range(connections)))
    return replies


class _Connection:
    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, path: str, body: bytes) -> Reply:
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._host, self._port, limit=2**24)
        reader, writer = self._streams
        head = f"POST {path} HTTP/1.1\r\nHost: {self._host}\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        reply = await _read(reader)
        if reply.headers.get("connection") == "close":
            self.close()
        return reply

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def _read(reader: asyncio.StreamReader) -> Reply:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
    if "content-length" in headers:
        body = await reader.readexactly(int(headers["content-length"]))
    else:
        body = b""
        while size := int(await reader.readuntil(b"\r\n"), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readexactly(2)
    return Reply(int(first.split(" ", 2)[1]), headers, body)
