"""One generation on one Triton instance: the bytes of `generate` with the meaning of `contract`.

Turns what goes wrong on the way into the error that the client should see. What is the instance's own failure, and not
an answer, is an `InstanceFailure`.
"""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from gateway.openai.errors import ApiError
from gateway.triton.contract import (
    Backend,
    Delta,
    UpstreamError,
    error_from,
    no_response,
    parse_response,
    refusal_text,
)
from gateway.triton.failure import InstanceFailure
from gateway.triton.generate import Borrower, BrokenConnection, ConnectError, Connections

_log = logging.getLogger(__name__)


def path_of(model: str) -> str:
    """What is asked for a generation of a model, by Triton's name."""
    return f"/v2/models/{model}/generate_stream"


def unreachable() -> InstanceFailure:
    """There is no connection to the instance."""
    problem = "the Triton server cannot be reached"
    return InstanceFailure("The inference server cannot be reached.", problem, unreachable=True)


class Counter(Protocol):
    tokens: int


class Lent(Protocol):
    """A connection that somebody else reads."""

    def fileno(self) -> int: ...

    def give_back(self, data: bytes) -> None:
        """`data`: what was read and not made anything of, from the beginning of a chunk on."""


class Generation:
    """`open()`, then `deltas()` until None or `each`, and `close()` always.

    `instance` is the instance's name for the log; `model` is Triton's name; `outputs` are the JSON outputs that `body`
    asks for; `places` maps the contract's names to the client's (`contract.error_from`); `counter` gets the tokens that
    come; `headers` are further lines of the request's head.
    """

    can_lend = True
    """Whether its connection carries the answer, as it comes."""

    def __init__(
        self,
        instance: str,
        connections: Connections,
        model: str,
        backend: Backend,
        body: bytes,
        outputs: Sequence[str],
        places: Mapping[str, str],
        counter: Counter,
        headers: bytes = b"",
    ) -> None:
        self._instance = instance
        self._model = model
        self._backend = backend
        self._outputs = outputs
        self._places = places
        self._counter = counter
        self._call = connections.call(path_of(model), body, headers)
        self._failure: Exception | None = None
        self._first: list[Delta] | None = None

    @property
    def waits(self) -> bool:
        """Whether something is to come from the engine; else what came has not been taken yet, or all has."""
        return self._call.waits

    @property
    def connect_seconds(self) -> float:
        return self._call.connect_seconds

    async def open(self) -> None:
        """Send the request and wait for the first response. Until then a refusal is a real status."""
        try:
            status = await self._call.head()
            refusal = await self._call.error_body() if status != 200 else b""
        except ConnectError:
            raise unreachable() from None
        except BrokenConnection:
            raise self._closed_early() from None
        if status != 200:
            raise self._refusal(status, refusal)
        self._first = await self.deltas()

    def begin(self, listener: Callable[[], None]) -> bool:
        """`open` without waiting, where that can be: `listener` is called whenever there may be something for `news`,
        once the request has been sent."""
        return self._call.begin(listener)

    async def connect(self, listener: Callable[[], None]) -> None:
        """`begin` on a new connection. Raises as `open` does."""
        try:
            await self._call.connect(listener)
        except ConnectError:
            raise unreachable() from None

    async def adopt(
        self, connected: socket.socket, came: bytes, listener: Callable[[], None], *, has_head: bool, seconds: float
    ) -> None:
        """`begin` of a request that was sent elsewhere; as in `Call`."""
        await self._call.adopt(connected, came, listener, has_head=has_head, seconds=seconds)

    def news(self) -> list[Delta] | None:
        """What came since the last call, if anything; None at the end. Raises as `open` and `deltas` do, and
        `BrokenConnection` where it is to be asked anew: a kept connection ended before a byte of an answer came."""
        try:
            status = self._call.status
            if status not in (0, 200):
                refusal = self._call.error_body_now()
                if refusal is not None:
                    raise self._refusal(status, refusal)
                return []
        except BrokenConnection as error:
            if error.answered:
                raise self._died() from None
            if self.connect_seconds:
                raise self._closed_early() from None
            raise
        return self._take() if status else []

    async def deltas(self) -> list[Delta] | None:
        """What came since the last call, at least one; None at the end."""
        while (deltas := self._take()) is not None and not deltas:
            await self._change()
        return deltas

    async def each(self, take: Callable[[list[Delta] | None], Awaitable[None] | None]) -> None:
        """Have `take` called with what came, as `deltas` gives it, until it got None. It is called as soon as the bytes
        have come, ahead of any task; what it returns is waited for before it gets more."""
        loop = asyncio.get_running_loop()
        is_over = False
        while not is_over:
            turn: asyncio.Future[Awaitable[None] | None] = loop.create_future()

            def listener(turn: asyncio.Future[Awaitable[None] | None] = turn) -> None:
                nonlocal is_over
                try:
                    while not turn.done() and (deltas := self._take()) != []:
                        is_over = deltas is None
                        wait = take(deltas)
                        if is_over or wait is not None:
                            turn.set_result(wait)
                except Exception as error:
                    turn.set_exception(error)

            self._listen(listener)
            try:
                listener()
                wait = await turn
            finally:
                self._listen(None)
            if wait is not None:
                await wait

    async def _change(self) -> None:
        """Until there may be something to take."""
        await self._call.change()

    def _listen(self, listener: Callable[[], None] | None) -> None:
        """Have it called whenever there may be something to take, in place of who waits; None: no more."""
        self._call.listen(listener)

    def _take(self) -> list[Delta] | None:
        """What came since the last call, if anything; None at the end.

        An error event is raised on the call after the deltas that came before it, so that a client
        sees the same for every cut of the upstream's bytes.
        """
        if self._first is not None:
            first, self._first = self._first, None
            return first
        if self._failure is not None:
            raise self._failure
        try:
            payloads = self._call.take()
        except BrokenConnection:
            raise self._died() from None
        if payloads is None:
            return None
        deltas: list[Delta] = []
        for payload in payloads:
            try:
                delta = parse_response(payload, self._outputs)
                self._counter.tokens += delta.new_tokens
                deltas.append(delta)
            except UpstreamError as error:
                self._failure = self._understood("failed a request", str(error))
                break
            except (ValueError, TypeError, AttributeError):
                self._failure = no_response()
                break
        if not deltas and self._failure is not None:
            raise self._failure
        return deltas

    def lend(self, borrower: Borrower) -> Lent | None:
        """The connection, for who reads it in place of `each`; None where that cannot be now."""
        return None if self._first is not None or self._failure is not None else self._call.lend(borrower)

    def cancel(self, reason: Exception) -> None:
        """Stop the engine's work; whoever waits in `open` or `deltas` gets `reason`."""
        self._call.cancel(reason)

    def close(self) -> None:
        """Let go of the instance; a generation that is not at its end is cancelled."""
        self._call.cancel(RuntimeError("the generation was closed"))

    @staticmethod
    def _closed_early() -> InstanceFailure:
        message = "The inference server closed the connection before it answered."
        return InstanceFailure(message, "it closes connections before it answers")

    @staticmethod
    def _died() -> InstanceFailure:
        message = "The inference server died in the middle of the answer."
        return InstanceFailure(message, "it closes connections in the middle of answers")

    def _refusal(self, status: int, body: bytes) -> ApiError:
        text = refusal_text(body)
        if status in (404, 503):
            _log.warning("%s answered %d for model %s: %s", self._instance, status, self._model, text)
            return InstanceFailure("The model is not ready.", f"Triton answers {status}")
        return self._understood(f"answered {status}", text)

    def _understood(self, what: str, text: str) -> ApiError:
        error = error_from(text, self._backend, self._places)
        # A client's mistake is its own business; the operator is told of the rest.
        level = logging.INFO if error.status < 500 else logging.WARNING
        _log.log(level, "%s %s for model %s: %s", self._instance, what, self._model, text)
        return InstanceFailure(error.message, "the engine is not available") if error.status == 503 else error
