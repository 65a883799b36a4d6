"""Both ends of the socket between a worker and the desk in the supervisor.

A message is one line: a JSON array of its name and its values. Lines are written in the order of the calls, so a worker
knows the state of an instance before it is sent there. A worker that dies closes its socket; its requests leave then.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Any, cast

import orjson

from gateway.desk.ask import Ask, State
from gateway.desk.desk import TICK_S, Desk
from gateway.desk.front import Front
from gateway.desk.rates import Limits
from gateway.model_list import Copy, Listing
from gateway.openai.errors import ApiError
from gateway.settings import Settings
from gateway.triton.generate import Connections

_log = logging.getLogger(__name__)


class _Lines(asyncio.Protocol):
    """One end. `on_message` gets the name and the values of each message; `on_lost` is called once."""

    def __init__(self, on_message: Callable[[str, list[Any]], None], on_lost: Callable[[], None]) -> None:
        self._on_message = on_message
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have asyncio's methods without being its classes.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            name, *values = orjson.loads(line)
            self._on_message(name, values)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._on_lost()

    def send(self, *message: Any) -> None:
        if self._transport is not None:
            self._transport.write(orjson.dumps(message) + b"\n")

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class RemoteDesk:
    """The desk in the supervisor, to a worker: the front of its routes, and their channel.

    `state` is the desk's at the start; `link` the worker's end of the socket. `on_lost` is called when the supervisor
    is gone, and with it whoever would stop the worker.
    """

    def __init__(self, settings: Settings, state: State, link: socket.socket, on_lost: Callable[[], None]) -> None:
        self._listing: str = state["listing"]
        self._models = Copy(Listing.model_validate_json(self._listing))
        self.served = self._models.served
        self.front = Front(settings.max_in_flight, lambda url: Connections(url, settings.connect_timeout))
        self.front.channel = self
        self._link = link
        self.lines = _Lines(self._take, on_lost)
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._last_call = 0
        self._has_state = asyncio.Event()
        self._reading: set[asyncio.Task[None]] = set()
        self._ticks: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns when the state of the instances is known."""
        await asyncio.get_running_loop().connect_accepted_socket(lambda: self.lines, self._link)
        await self._has_state.wait()
        self._ticks = asyncio.create_task(self._tick())

    async def close(self) -> None:
        if self._ticks is not None:
            self._ticks.cancel()
            await asyncio.gather(self._ticks, return_exceptions=True)
        await self.front.close()
        self.lines.close()

    def reload(self) -> None:
        """The supervisor does that."""

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            try:
                self.front.tick()
            except Exception:
                # Unless it hears of tokens, the desk gives every instance up.
                _log.exception("a worker met an unexpected failure")

    def enter(self, number: int, ask: Ask) -> None:
        limits = ask.limits
        self.lines.send(
            "enter",
            number,
            ask.name,
            ask.model,
            ask.generations,
            ask.prompt_tokens,
            ask.max_tokens,
            ask.key,
            limits.requests_per_minute,
            limits.tokens_per_minute,
            ask.priority,
        )

    def abandon(self, number: int) -> None:
        self.lines.send("abandon", number)

    def failed(self, number: int, problem: str, *, unreachable: bool) -> None:
        self.lines.send("failed", number, problem, unreachable)

    def move(self, number: int) -> None:
        self.lines.send("move", number)

    def progress(self, entries: list[tuple[int, int, bool]]) -> None:
        self.lines.send("progress", entries)

    def leave(self, number: int, tokens: int, used: int) -> None:
        self.lines.send("leave", number, tokens, used)

    def serves(self) -> None:
        """Tell the supervisor that connections are taken."""
        self.lines.send("serves")

    async def call(self, name: str, *arguments: Any) -> Any:
        self._last_call += 1
        answer = self._calls[self._last_call] = asyncio.get_running_loop().create_future()
        self.lines.send("call", self._last_call, name, *arguments)
        return await answer

    def _take(self, name: str, values: list[Any]) -> None:
        match name, values:
            case "granted", [number, instance, model]:
                self.front.granted(number, instance, model)
            case "refused", [number, error]:
                self.front.refused(number, _error(error))
            case "lost", [numbers, problem]:
                self.front.lost(numbers, problem)
            case "changed", [state]:
                self.front.changed(state)
                self._has_state.set()
                self._follow_models(state["listing"])
            case "answer", [number, value]:
                self._answer(number, lambda future: future.set_result(value))
            case "error", [number, error]:
                self._answer(number, lambda future: future.set_exception(_error(error)))
            case _:
                raise ValueError(f"the supervisor says {name!r}")

    def _follow_models(self, listing: str) -> None:
        if listing != self._listing:
            self._listing = listing
            reading = asyncio.create_task(self._models.take(Listing.model_validate_json(listing)))
            self._reading.add(reading)
            reading.add_done_callback(self._reading.discard)

    def _answer(self, number: int, settle: Callable[[asyncio.Future[Any]], None]) -> None:
        future = self._calls.pop(number)
        if not future.done():
            settle(future)


class DeskEnd:
    """A worker, as the desk sees it. `on_serves` is called when it takes connections."""

    def __init__(self, desk: Desk, on_serves: Callable[[], None]) -> None:
        self._desk = desk
        self._on_serves = on_serves
        self.lines = _Lines(self._take, lambda: desk.gone(self))

    async def start(self, link: socket.socket) -> None:
        """`link` is the desk's end of the socket."""
        await asyncio.get_running_loop().connect_accepted_socket(lambda: self.lines, link)
        self._desk.join(self)

    def granted(self, number: int, instance: str, model: str) -> None:
        self.lines.send("granted", number, instance, model)

    def refused(self, number: int, error: ApiError) -> None:
        self.lines.send("refused", number, _as_json(error))

    def lost(self, numbers: list[int], problem: str) -> None:
        self.lines.send("lost", numbers, problem)

    def changed(self, state: State) -> None:
        self.lines.send("changed", state)

    def _take(self, name: str, values: list[Any]) -> None:
        match name, values:
            case "enter", [number, asked, model, generations, prompt_tokens, max_tokens, key, rpm, tpm, priority]:
                ask = Ask(asked, model, generations, prompt_tokens, max_tokens, key, Limits(rpm, tpm), priority)
                self._desk.enter(self, number, ask)
            case "abandon", [number]:
                self._desk.abandon(self, number)
            case "failed", [number, problem, unreachable]:
                self._desk.failed(self, number, problem, unreachable=unreachable)
            case "move", [number]:
                self._desk.move(self, number)
            case "progress", [entries]:
                self._desk.progress(self, entries)
            case "leave", [number, tokens, used]:
                self._desk.leave(self, number, tokens, used)
            case "serves", []:
                self._on_serves()
            case "call", [number, call, *arguments]:
                self._call(number, call, arguments)
            case _:
                raise ValueError(f"a worker says {name!r}")

    def _call(self, number: int, call: str, arguments: list[Any]) -> None:
        try:
            self.lines.send("answer", number, self._desk.call(call, *arguments))
        except ApiError as error:
            self.lines.send("error", number, _as_json(error))


def _as_json(error: ApiError) -> list[Any]:
    return [error.status, error.message, error.param, error.code, error.headers]


def _error(value: list[Any]) -> ApiError:
    status, message, param, code, headers = value
    return ApiError(status, message, param=param, code=code, headers=headers)
