"""The sink over ASGI: what can be written at once is, whoever has it; what must wait is the rest of the same send."""

import asyncio

import pytest

from gateway.api.http import AsgiSink, Event


class Server:
    """An ASGI server whose client takes so many writes, and then none until the test says so."""

    def __init__(self, takes: int = 0) -> None:
        self.takes = takes
        self.written: list[bytes] = []
        self.interrupted: BaseException | None = None
        self.can_write = asyncio.Event()
        self.gone = False

    async def send(self, event: Event) -> None:
        if self.gone:
            raise OSError("the client is gone")
        if len(self.written) >= self.takes:
            try:
                # More than one wait for one send.
                await asyncio.sleep(0)
                await self.can_write.wait()
            except BaseException as error:
                self.interrupted = error
                raise
        self.written.append(event["body"])


async def test_what_can_be_written_at_once_is() -> None:
    server = Server(takes=2)
    sink = AsgiSink(server.send)
    assert sink.push(b"a") is None
    assert sink.push(b"b") is None
    assert server.written == [b"a", b"b"]


async def test_what_must_wait_is_written_once() -> None:
    server = Server()
    begun = AsgiSink(server.send).push(b"a")
    assert begun is not None
    waiting = asyncio.ensure_future(begun)
    await asyncio.sleep(0.01)
    assert not waiting.done()
    assert server.written == []
    server.can_write.set()
    await waiting
    assert server.written == [b"a"]


async def test_who_stops_waiting_ends_the_send() -> None:
    server = Server()
    begun = AsgiSink(server.send).push(b"a")
    assert begun is not None
    waiting = asyncio.ensure_future(begun)
    await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert isinstance(server.interrupted, asyncio.CancelledError)
    assert server.written == []


async def test_a_failure_is_raised_where_it_is_met() -> None:
    server = Server()
    server.gone = True
    with pytest.raises(OSError, match="the client is gone"):
        AsgiSink(server.send).push(b"a")
