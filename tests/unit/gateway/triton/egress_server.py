"""A Triton that speaks batched egress as a test has it do: subscriptions, requests' own streams and acknowledgements as
they come, answered by hand, over real sockets."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from gateway.settings import BatchedEgress
from gateway.triton.contract import Backend, Delta, GenerateRequest, ModelContract
from gateway.triton.egress import Row
from gateway.triton.generate import Connections
from gateway.triton.generation import Generation
from gateway.triton.paths import Paths

CONTRACT = ModelContract(Backend.OURS, frozenset({"send_admission", "batched_egress"}))
_LIMIT_S = 60.0


async def until(condition: Callable[[], Any], what: str = "what must come to hold") -> None:
    give_up_at = time.monotonic() + _LIMIT_S
    while not condition():
        assert time.monotonic() < give_up_at, f"waited too long for {what}"
        await asyncio.sleep(0.005)


class Response:
    """One request, and its answer so far: chunks of a stream, unless `refuse` gave it another end."""

    def __init__(self, inputs: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        self.inputs = inputs
        self.is_closed = False
        """By the gateway."""
        self.over = asyncio.Event()
        self._writer = writer
        self._has_head = False

    def event(self, **response: Any) -> None:
        data = b"data: " + json.dumps(response, ensure_ascii=False).encode() + b"\n\n"
        head = b"" if self._has_head else b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        self._has_head = True
        self._writer.write(head + b"%x\r\n%s\r\n" % (len(data), data))

    def refuse(self, status: int, error: str) -> None:
        self._whole(status, json.dumps({"error": error}).encode())

    def answer(self) -> None:
        """With one response, as `generate` does."""
        self._whole(200, json.dumps({"model_name": "m", "text_output": ""}).encode())

    def end(self) -> None:
        self._writer.write(b"0\r\n\r\n")
        self.over.set()

    def break_off(self) -> None:
        self._writer.transport.abort()
        self.over.set()

    def _whole(self, status: int, body: bytes) -> None:
        self._writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body))
        self.over.set()


class Subscribed(Response):
    """A subscription."""

    @property
    def resume(self) -> list[list[int]]:
        points: list[list[int]] = json.loads(self.inputs.get("resume", "[]"))
        return points

    def say(self, **text: Any) -> None:
        self.event(model_name="m", text_output=json.dumps(text))

    def hello(self, version: int = 1, following: int = 1) -> None:
        self.say(hello={"version": version, "next": following})

    def message(self, number: int, *rows: Row) -> None:
        self.say(message=number, rows=rows)

    def finish(self, reason: str) -> None:
        self.say(end=reason)
        self.end()


class Own(Response):
    """A request for an answer."""

    @property
    def number(self) -> int:
        number: int = self.inputs["stream_id"]
        return number

    def admit(self) -> None:
        self.event(text_output="", finish_reason="None", num_input_tokens=3, num_output_tokens=0)

    def rows(self, *rows: Row) -> None:
        self.event(text_output=json.dumps({"rows": rows}))

    def final(self, tokens: int, characters: int, reason: str = "stop") -> None:
        counts = {"num_output_tokens": tokens, "num_output_characters": characters}
        self.event(text_output="", finish_reason=reason, num_input_tokens=3, **counts)
        self.end()

    def error(self, text: str) -> None:
        self.event(error=text)
        self.end()


class Triton:
    """`says_hello`: subscriptions are answered at once, with the number that follows. `acknowledges`: so are
    acknowledgements, until a test wants otherwise."""

    def __init__(self) -> None:
        self.subscriptions: list[Subscribed] = []
        self.own: dict[int, Own] = {}
        self.plain: list[Own] = []
        self.acknowledgements: list[dict[str, Any]] = []
        self.says_hello = True
        self.following = 1
        self.refuses_acknowledgements = ""
        self.silent_acknowledgements = False

    @property
    def subscription(self) -> Subscribed:
        """The newest."""
        return self.subscriptions[-1]

    @property
    def acknowledged(self) -> list[int]:
        return [inputs["acknowledged"] for inputs in self.acknowledgements]

    @property
    def resumes(self) -> list[list[list[int]]]:
        """What acknowledgements asked for again."""
        return [json.loads(inputs["resume"]) for inputs in self.acknowledgements if "resume" in inputs]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                response = self._request(await _read(reader), writer)
                gone = asyncio.ensure_future(_gone(reader))
                over = asyncio.ensure_future(response.over.wait())
                await asyncio.wait([gone, over], return_when=asyncio.FIRST_COMPLETED)
                response.is_closed = not response.over.is_set()
                over.cancel()
                if not gone.done():
                    # A kept connection: what comes next is the next request, which `_gone` does not take.
                    gone.cancel()
                    await asyncio.gather(gone, return_exceptions=True)
                elif response.is_closed:
                    return
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    def _request(self, read: tuple[str, dict[str, Any]], writer: asyncio.StreamWriter) -> Response:
        path, inputs = read
        response: Response
        if path.endswith("/generate"):
            response = Response(inputs, writer)
            self.acknowledgements.append(inputs)
            if self.refuses_acknowledgements:
                response.refuse(400, self.refuses_acknowledgements)
            elif not self.silent_acknowledgements:
                response.answer()
        elif "text_input" in inputs:
            response = own = Own(inputs, writer)
            if "batched_egress" in inputs:
                self.own[own.number] = own
            else:
                self.plain.append(own)
        else:
            response = subscribed = Subscribed(inputs, writer)
            self.subscriptions.append(subscribed)
            if self.says_hello:
                subscribed.hello(following=self.following)
        return response


async def _read(reader: asyncio.StreamReader) -> tuple[str, dict[str, Any]]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
    return head.split()[1].decode(), json.loads(await reader.readexactly(length))


async def _gone(reader: asyncio.StreamReader) -> None:
    """Until the gateway has closed the connection."""
    while not reader.at_eof() and not reader._exception:  # type: ignore[attr-defined]  # noqa: ASYNC110
        await asyncio.sleep(0.005)


class Counter:
    tokens = 0


class Client:
    """Reads one generation to its end."""

    def __init__(self, generation: Generation, counter: Counter) -> None:
        self.generation = generation
        self.counter = counter
        self.deltas: list[Delta] = []
        self.is_over = False
        self.failure: Exception | None = None
        self.is_slow = False
        """It takes one thing, and then no more until `reads_on`."""
        self.reads_on = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)

    @property
    def reason(self) -> str | None:
        return next((delta.finish_reason for delta in self.deltas if delta.finish_reason), None)

    @property
    def is_open(self) -> bool:
        """It has taken the admission."""
        return bool(self.deltas)

    def start(self) -> "Client":
        self._task = asyncio.create_task(self._run())
        return self

    async def ended(self) -> "Client":
        assert self._task is not None
        async with asyncio.timeout(_LIMIT_S):
            await self._task
        return self

    async def left(self) -> None:
        if self._task is not None:
            await self.ended()

    async def _run(self) -> None:
        try:
            await self.generation.open()
            await self.generation.each(self._take)
        except Exception as error:
            self.failure = error
        finally:
            self.generation.close()

    def _take(self, deltas: list[Delta] | None) -> Any:
        assert not self.is_over
        if deltas is None:
            self.is_over = True
            return None
        self.deltas += deltas
        return self.reads_on.wait() if self.is_slow else None


class World:
    """A gateway's worker before one Triton."""

    def __init__(self, paths: Paths, triton: Triton, connections: Connections) -> None:
        self.paths = paths
        self.triton = triton
        self.connections = connections
        self._clients: list[Client] = []

    async def client(
        self,
        setting: BatchedEgress = "always",
        buffer_bytes: int = 1_000_000,
        outputs: tuple[str, ...] = (),
        contract: ModelContract = CONTRACT,
    ) -> Client:
        counter = Counter()
        asked = GenerateRequest("p", {"max_tokens": None}, outputs=outputs)
        generation = await self.paths.generation(
            "m", contract, asked, None, {"prompt": "prompt"}, counter, b"", setting, buffer_bytes
        )
        self._clients.append(Client(generation, counter))
        return self._clients[-1]

    async def leave(self) -> None:
        """Of all clients."""
        for client in self._clients:
            client.generation.cancel(RuntimeError("the test is over"))
            client.reads_on.set()
            await client.left()

    async def admitted(self, **options: Any) -> tuple[Client, Own]:
        """A client whose request is admitted, and the request's own stream."""
        known = len(self.triton.own)
        client = (await self.client(**options)).start()
        await until(lambda: len(self.triton.own) > known)
        own = list(self.triton.own.values())[-1]
        own.admit()
        await until(lambda: client.is_open)
        return client, own


@asynccontextmanager
async def serving(*tritons: Triton) -> AsyncIterator[list[str]]:
    """Their URLs. In the end nothing is left of what the gateway had open: no task, no connection."""
    before = asyncio.all_tasks()
    servers = [await asyncio.start_server(triton.serve, "127.0.0.1", 0) for triton in tritons]
    try:
        yield [f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}" for server in servers]
    finally:
        for server in servers:
            server.close()
        await until(lambda: asyncio.all_tasks() == before, "every task to end")


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    triton = Triton()
    async with serving(triton) as (url,):
        connections = Connections(url, 60)
        the = World(Paths("t", connections), triton, connections)
        try:
            yield the
        finally:
            await the.leave()
            await the.paths.close()
