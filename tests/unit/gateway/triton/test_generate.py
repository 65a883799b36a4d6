"""Connections and calls, against real sockets that behave well and badly."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager

import pytest
import uvloop

from gateway.triton.generate import BrokenConnection, Call, ConnectError, Connections

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def chunk(event: bytes) -> bytes:
    data = b"data: " + event + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(data), data)


async def read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
    return head + await reader.readexactly(length)


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[Connections]:
    async def guarded(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handler(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(guarded, "127.0.0.1", 0)
    connections = Connections(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/base/", 1)
    try:
        yield connections
    finally:
        connections.close()
        server.close()


async def following(call: Call) -> list[bytes] | None:
    """What comes next, at least one event; None at the end of the answer."""
    while (events := call.take()) is not None and not events:
        await call.change()
    return events


async def collect(call: Call) -> list[bytes]:
    assert await call.head() == 200
    events: list[bytes] = []
    while (some := await following(call)) is not None:
        events += some
    return events


async def test_a_call_and_its_request() -> None:
    seen: list[bytes] = []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await read_request(reader))
        writer.write(HEAD + chunk(b"1") + chunk(b"2") + END)

    async with serving(handler) as connections:
        assert await collect(connections.call("/v2/x", b"body")) == [b"1", b"2"]
    head, _, body = seen[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /base/v2/x HTTP/1.1\r\nHost: 127.0.0.1:")
    assert body == b"body"


async def test_a_connection_is_used_again() -> None:
    opened = 0

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal opened
        opened += 1
        while True:
            await read_request(reader)
            writer.write(HEAD + chunk(b"x") + END)

    async with serving(handler) as connections:
        for _ in range(3):
            assert await collect(connections.call("/", b"")) == [b"x"]
    assert opened == 1


LONG = b"0123456789abcdef" * 500_000


async def test_a_long_request_comes_whole_and_leaves_the_connection_to_the_next() -> None:
    seen: list[bytes] = []
    opened = 0

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal opened
        opened += 1
        while True:
            seen.append((await read_request(reader)).partition(b"\r\n\r\n")[2])
            writer.write(HEAD + chunk(b"x") + END)

    async with serving(handler) as connections:
        for body in (LONG, b"short", LONG + b"!"):
            assert await collect(connections.call("/", body)) == [b"x"]
    assert seen == [LONG, b"short", LONG + b"!"]
    assert opened == 1


async def test_other_work_is_done_between_the_pieces_of_a_long_request() -> None:
    turns = 0

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(HEAD + chunk(b"x") + END)

    async with serving(handler) as connections:
        working = asyncio.create_task(collect(connections.call("/", LONG)))
        while not working.done():
            turns += 1
            await asyncio.sleep(0)
    assert await working == [b"x"]
    assert turns > len(LONG) // (256 * 1024)


async def test_a_connection_whose_request_was_not_read_to_its_end_is_not_kept() -> None:
    opened = 0

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal opened
        opened += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(HEAD + chunk(b"x") + END)
        await writer.drain()
        await gone.wait()

    gone = asyncio.Event()
    async with serving(handler) as connections:
        for _ in range(2):
            assert await collect(connections.call("/", LONG)) == [b"x"]
        gone.set()
    assert opened == 2


async def test_a_call_is_cancelled_while_its_request_is_being_sent() -> None:
    has_begun, is_over = asyncio.Event(), asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        has_begun.set()
        # A connection that was aborted ends with an error or without.
        with contextlib.suppress(ConnectionError):
            while await reader.read(65536):
                pass
        is_over.set()

    async with serving(handler) as connections:
        call = connections.call("/", LONG * 10)
        asking = asyncio.create_task(call.head())
        await asyncio.wait_for(has_begun.wait(), 30)
        call.cancel(RuntimeError("enough"))
        with pytest.raises(RuntimeError, match="enough"):
            await asking
        await asyncio.wait_for(is_over.wait(), 30)


@pytest.mark.parametrize("close", ["at once", "on the next request"])
async def test_a_kept_connection_that_was_closed_is_replaced_once(close: str) -> None:
    requests = 0

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal requests
        await read_request(reader)
        requests += 1
        writer.write(HEAD + chunk(b"x") + END)
        if close == "on the next request":
            await read_request(reader)
            requests += 1

    async with serving(handler) as connections:
        assert await collect(connections.call("/", b"")) == [b"x"]
        if close == "at once":
            await asyncio.sleep(0.05)
        assert await collect(connections.call("/", b"")) == [b"x"]
    assert requests == (2 if close == "at once" else 3)


async def test_no_request_is_repeated_once_a_byte_of_its_answer_came() -> None:
    requests = 0

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal requests
        await read_request(reader)
        requests += 1
        writer.write(HEAD + chunk(b"x") + END)
        await read_request(reader)
        requests += 1
        writer.write(b"HTTP/1.1 2")

    async with serving(handler) as connections:
        await collect(connections.call("/", b""))
        with pytest.raises(BrokenConnection) as caught:
            await connections.call("/", b"").head()
    assert caught.value.answered
    assert requests == 2


async def test_a_fresh_connection_that_is_closed_is_not_tried_again() -> None:
    requests = 0

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal requests
        await read_request(reader)
        requests += 1

    async with serving(handler) as connections:
        with pytest.raises(BrokenConnection) as caught:
            await connections.call("/", b"").head()
    assert not caught.value.answered
    assert requests == 1


async def test_nobody_listens() -> None:
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    with pytest.raises(ConnectError):
        await Connections(f"http://127.0.0.1:{port}", 1).call("/", b"").head()


async def test_an_error_body() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 13\r\n\r\n")
        await writer.drain()
        await asyncio.sleep(0.01)
        writer.write(b'{"error":"x"}')

    async with serving(handler) as connections:
        call = connections.call("/", b"")
        assert await call.head() == 400
        assert await call.error_body() == b'{"error":"x"}'


class Gone(Exception):
    pass


@pytest.mark.parametrize("sent", [b"", HEAD, HEAD + chunk(b"x")])
async def test_cancel_closes_the_connection_at_every_stage(sent: bytes) -> None:
    closed = asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(sent)
        try:
            await reader.read()
        finally:
            closed.set()

    async with serving(handler) as connections:
        call = connections.call("/", b"")
        waiting = asyncio.create_task(collect(call))
        await asyncio.sleep(0.05)
        call.cancel(Gone())
        with pytest.raises(Gone):
            await waiting
        async with asyncio.timeout(1):
            await closed.wait()
        with pytest.raises(Gone):
            await following(call)


async def test_cancel_before_the_request_was_sent() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)

    async with serving(handler) as connections:
        call = connections.call("/", b"")
        call.cancel(Gone())
        with pytest.raises(Gone):
            await call.head()


async def test_what_is_not_read_is_not_taken_from_the_peer() -> None:
    """A slow client costs no memory: reading pauses, and the peer's writes wait."""
    sent = 0

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await read_request(reader)
        writer.write(HEAD)
        piece = chunk(b"x" * 10_000)
        for _ in range(5_000):
            writer.write(piece)
            await writer.drain()
            sent += len(piece)
        writer.write(END)

    async with serving(handler) as connections:
        call = connections.call("/", b"")
        await call.head()
        await asyncio.sleep(0.3)
        stalled_at = sent
        await asyncio.sleep(0.2)
        assert sent == stalled_at < 20_000_000
        count = 0
        while (some := await following(call)) is not None:
            count += len(some)
        assert count == 5_000


@pytest.mark.parametrize("status", [200, 400])
async def test_an_event_longer_than_the_read_ahead_arrives(status: int) -> None:
    """In the pieces of a real network: what is held back may be the rest of what is waited for."""
    long = b"x" * 1_000_000

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        body = HEAD.replace(b"200 OK", b"%d X" % status) + chunk(long) + END
        for at in range(0, len(body), 14_480):
            writer.write(body[at : at + 14_480])
            await writer.drain()
            await asyncio.sleep(0)

    async with serving(handler) as connections, asyncio.timeout(10):
        call = connections.call("/", b"")
        assert await call.head() == status
        if status == 200:
            assert await following(call) == [long]
        else:
            assert await call.error_body() == b"data: " + long + b"\n\n"


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
@pytest.mark.parametrize("has_head", [False, True])
@pytest.mark.parametrize("ends", [False, True])
def test_what_has_been_read_elsewhere_stands_before_what_is_read_here(
    run: Callable[[Coroutine[None, None, None]], None], has_head: bool, ends: bool
) -> None:
    body = chunk(b"a") + chunk(b"b") + END
    answer = body if has_head else HEAD + body

    async def adopt(listening: socket.socket, cut: int) -> None:
        connections = Connections("http://127.0.0.1:1", 1)
        call = connections.call("", b"")
        ours = socket.create_connection(listening.getsockname())
        theirs, _ = listening.accept()
        with theirs:
            theirs.sendall(answer[cut:])
            if ends:
                theirs.shutdown(socket.SHUT_WR)
            ours.setblocking(False)
            events: list[bytes] = []
            over = asyncio.Event()

            def listener() -> None:
                while call.status and (some := call.take()) != []:
                    if some is None:
                        over.set()
                        return
                    events.extend(some)

            await call.adopt(ours, answer[:cut], listener, has_head=has_head, seconds=0.1)
            await over.wait()
        assert events == [b"a", b"b"]
        connections.close()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        for cut in range(len(answer)):
            run(adopt(listening, cut))
