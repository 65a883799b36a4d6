"""A worker's side of the desk: what the routes ask for a place at an instance, and tell how it went.

The same for one process and for several: only the `Channel` to the desk differs. In one process the answer of the desk
is there when `enter` returns, and nothing waits.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from gateway.desk.ask import Ask, State
from gateway.openai.errors import ApiError, bad_request, unavailable
from gateway.routing.instances import Table
from gateway.routing.weights import Weights
from gateway.triton.contract import ModelContract
from gateway.triton.failure import InstanceFailure
from gateway.triton.generate import Connections
from gateway.triton.paths import Paths

_CLOSING = "The gateway is shutting down."


class Channel(Protocol):
    """The way to the desk; see `Desk` for what each call means."""

    def enter(self, number: int, ask: Ask) -> None: ...

    def abandon(self, number: int) -> None: ...

    def failed(self, number: int, problem: str, *, unreachable: bool) -> None: ...

    def move(self, number: int) -> None: ...

    def progress(self, entries: list[tuple[int, int, bool]]) -> None: ...

    def leave(self, number: int, tokens: int, used: int) -> None: ...

    async def call(self, name: str, *arguments: Any) -> Any:
        """One of the desk's calls for the operator, by its name. Raises what it raises."""


class Running(Protocol):
    """The work of a request, as far as the desk's news concern it."""

    @property
    def waits(self) -> bool:
        """Whether it waits for the engine; else its client keeps it from reading on."""

    def cancel(self, reason: Exception) -> None: ...


@dataclass(frozen=True, slots=True)
class Upstream:
    """An instance, as requests need it."""

    name: str
    paths: Paths


class Place(NamedTuple):
    """Where a request goes: Triton's name of a model at an instance, and what that takes."""

    upstream: Upstream
    model: str
    contract: ModelContract


class Lease:
    """A place at an instance. Whoever holds it counts the tokens that come in `tokens`, and calls `leave` at the end.
    `meter` brings that up to date, where they are counted elsewhere.

    `upstream` is where, `model` Triton's name of what to ask for, `contract` what that takes there. `queue_seconds` is
    how long the request waited; `was_moved`: it is no longer where it was first sent.
    """

    __slots__ = (
        "_front",
        "_moving",
        "_running",
        "contract",
        "meter",
        "model",
        "number",
        "problem",
        "queue_seconds",
        "tokens",
        "tokens_told",
        "upstream",
        "was_moved",
    )

    def __init__(self, front: "Front", number: int, queue_seconds: float, place: Place) -> None:
        self._front = front
        self._running: Running | None = None
        self._moving: asyncio.Future[bool] | bool | None = None
        self.meter: Callable[[], None] | None = None
        self.number = number
        self.queue_seconds = queue_seconds
        self.was_moved = False
        self.put(place)

    def put(self, place: Place) -> None:
        self.upstream, self.model, self.contract = place
        self.tokens = self.tokens_told = 0
        self.problem = ""

    def run(self, running: Running) -> None:
        """What is to be cancelled when the instance makes no progress."""
        self._running = running
        if self.problem:
            self.lose(self.problem)

    @property
    def is_held(self) -> bool:
        return self._running is not None and not self._running.waits

    def lose(self, problem: str) -> None:
        """The desk gave the instance up."""
        self.problem = problem
        self.cancel(InstanceFailure("The inference server makes no progress.", problem, stalled=True))

    def cancel(self, reason: Exception) -> None:
        if self._running is not None:
            self._running.cancel(reason)

    def failed(self, failure: InstanceFailure) -> None:
        """Tell the desk of a failure that it does not know yet."""
        if not failure.stalled:
            self._front.channel.failed(self.number, failure.problem, unreachable=failure.unreachable)

    async def move(self) -> bool:
        """To another instance, once; False where that cannot be. The tokens are counted from 0 again."""
        self._moving = None
        self._running = None
        self._front.channel.move(self.number)
        if self._moving is None:
            self._moving = asyncio.get_running_loop().create_future()
            return await self._moving
        return bool(self._moving)

    def moved(self, *, is_granted: bool) -> None:
        """The desk's answer to `move`."""
        self.was_moved = self.was_moved or is_granted
        if isinstance(self._moving, asyncio.Future):
            if not self._moving.done():
                self._moving.set_result(is_granted)
        else:
            self._moving = is_granted

    def leave(self, used: int) -> None:
        """`used`: tokens of prompt and answer together."""
        # Which knows this lease in turn.
        self._running = None
        self._front.left(self, used)


class Entry:
    """A request on its way in: `lease` if it is in already; else `wait`."""

    __slots__ = ("_arrived", "_decided", "_error", "_front", "_number", "_on_decided", "lease")

    def __init__(self, front: "Front", number: int) -> None:
        self._front = front
        self._number = number
        self._arrived = time.monotonic()
        self._decided: asyncio.Future[None] | None = None
        self._on_decided: Callable[[], None] | None = None
        self._error: Exception | None = None
        self.lease: Lease | None = None

    async def wait(self) -> Lease:
        """Raises the desk's refusal, or what `cancel` was given."""
        try:
            if self.lease is None and self._error is None:
                self._decided = asyncio.get_running_loop().create_future()
                await self._decided
            if self._error is not None:
                raise self._error
            assert self.lease is not None
            return self.lease
        except BaseException as error:
            self.cancel(error if isinstance(error, Exception) else RuntimeError("cancelled"))
            raise

    def decided(self, then: Callable[[], None]) -> None:
        """Call `then` when there is a lease or an `error`, once: `wait` for who is no task."""
        self._on_decided = then
        if self.lease is not None or self._error is not None:
            self._wake()

    @property
    def error(self) -> Exception | None:
        """The desk's refusal, or what `cancel` was given."""
        return self._error

    def cancel(self, reason: Exception) -> None:
        """Give up waiting."""
        if self._error is None:
            self._error = reason
            self._front.abandon(self._number)
            self._wake()

    def grant(self, place: Place) -> Lease:
        self.lease = Lease(self._front, self._number, time.monotonic() - self._arrived, place)
        self._wake()
        return self.lease

    def refuse(self, error: ApiError) -> None:
        self._error = error
        self._wake()

    def _wake(self) -> None:
        if self._decided is not None and not self._decided.done():
            self._decided.set_result(None)
        if self._on_decided is not None:
            then, self._on_decided = self._on_decided, None
            then()


class Front:
    """`is_closing`: no request gets in any more.

    `max_in_flight` is the setting; `connections` makes those to an instance, given its URL. `table` and `weights` are
    the desk's own in one process; else copies, which `changed` keeps true."""

    def __init__(
        self,
        max_in_flight: int,
        connections: Callable[[str], Connections],
        table: Table | None = None,
        weights: dict[str, Weights] | None = None,
    ) -> None:
        self.channel: Channel
        self.is_closing = False
        self._is_copy = table is None
        self.table = Table() if table is None else table
        self.weights: dict[str, Weights] = {} if weights is None else weights
        self._max_in_flight = max_in_flight
        self._connections = connections
        self._upstreams: dict[str, tuple[str, Upstream]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._entries: dict[int, Entry] = {}
        self._leases: dict[int, Lease] = {}
        self._last = 0

    # For the routes

    def pick(self, name: str) -> str | None:
        """Triton's name of the version that the next request for a served name is for; None for a model without
        versions, or where none is ready."""
        weights = self.weights.get(name)
        if weights is None:
            return None
        return weights.pick([model for model in weights.current if self.table.is_ready(model)])

    def check_size(self, prompts: int, choices: int) -> None:
        """Raises a 400 for a request that would never fit."""
        if prompts * choices > self._max_in_flight:
            raise bad_request(
                f"{prompts * choices} choices in one request are more than the {self._max_in_flight} that may be open "
                "(setting max_in_flight); ask for fewer.",
                "n" if choices > 1 else "prompt",
                "invalid_value",
            )

    def enter(self, ask: Ask) -> Entry:
        """Ask for a place."""
        self._last += 1
        number = self._last
        entry = self._entries[number] = Entry(self, number)
        if self.is_closing:
            self.refused(number, unavailable(_CLOSING))
        else:
            self.channel.enter(number, ask)
        return entry

    def end_all(self) -> None:
        """End the requests that wait and that run: the time to finish is over."""
        for entry in list(self._entries.values()):
            entry.cancel(unavailable(_CLOSING))
        for lease in list(self._leases.values()):
            lease.cancel(unavailable(_CLOSING))

    async def instances(self) -> list[dict[str, Any]]:
        """The desk's view, as `GET /admin/instances` shows it."""
        found: list[dict[str, Any]] = await self.channel.call("instances")
        return found

    async def waiting(self) -> dict[str, int]:
        """How many requests wait for room, by Triton's name of a model."""
        found: dict[str, int] = await self.channel.call("waiting")
        return found

    # For leases and entries

    def abandon(self, number: int) -> None:
        self._leases.pop(number, None)
        self._entries.pop(number, None)
        self.channel.abandon(number)

    def left(self, lease: Lease, used: int) -> None:
        if self._leases.pop(lease.number, None) is not None:
            self.channel.leave(lease.number, lease.tokens, used)

    # What the desk says

    def granted(self, number: int, instance: str, model: str) -> None:
        entry = self._entries.pop(number, None)
        if entry is not None:
            self._leases[number] = entry.grant(self._place(instance, model))
        elif lease := self._leases.get(number):
            lease.put(self._place(instance, model))
            lease.moved(is_granted=True)

    def refused(self, number: int, error: ApiError) -> None:
        entry = self._entries.pop(number, None)
        if entry is not None:
            entry.refuse(error)
        elif lease := self._leases.get(number):
            lease.moved(is_granted=False)

    def lost(self, numbers: list[int], problem: str) -> None:
        for number in numbers:
            if lease := self._leases.get(number):
                lease.lose(problem)

    def changed(self, state: State) -> None:
        if self._is_copy:
            self.table.restore(state["instances"])
            self._set_weights(state["weights"])
        for name, (url, upstream) in list(self._upstreams.items()):
            instance = self.table.instances.get(name)
            if instance is None or instance.url != url:
                del self._upstreams[name]
                closing = asyncio.get_running_loop().create_task(upstream.paths.close())
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)

    def tick(self) -> None:
        """Tell the desk what came; call it every `TICK_S`."""
        entries: list[tuple[int, int, bool]] = []
        for lease in self._leases.values():
            if lease.meter is not None:
                lease.meter()
            if lease.tokens != lease.tokens_told or lease.is_held:
                entries.append((lease.number, lease.tokens, lease.is_held))
                lease.tokens_told = lease.tokens
        if entries:
            self.channel.progress(entries)

    async def close(self) -> None:
        upstreams = [upstream for _, upstream in self._upstreams.values()]
        await asyncio.gather(*self._closing, *(upstream.paths.close() for upstream in upstreams))

    def _set_weights(self, weights: Mapping[str, dict[str, int]]) -> None:
        for name, current in weights.items():
            known = self.weights.get(name)
            if known is None or known.current != current:
                self.weights[name] = Weights(current)

    def _place(self, name: str, model: str) -> Place:
        instance = self.table.instances[name]
        contract = instance.targets[model].contract
        assert contract is not None
        known = self._upstreams.get(name)
        if known is None or known[0] != instance.url:
            paths = Paths(name, self._connections(instance.url))
            known = self._upstreams[name] = instance.url, Upstream(name, paths)
        return Place(known[1], model, contract)
