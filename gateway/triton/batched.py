"""A generation whose tokens come by a subscription, with those of all others.

Its own stream says that it was admitted, how it failed, and at the end what the answer comes to in all; rows come by it
only where there is no subscription. What has come of the text is decided by the rows' offsets alone, whichever way and
in whichever order they come: the answer is whole, or it ends with an error.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

import orjson

from gateway.observe import metrics
from gateway.openai.errors import ApiError, internal_error, unavailable
from gateway.triton import egress
from gateway.triton.contract import Delta, ModelContract, UpstreamError, parse_response
from gateway.triton.egress import Final, Gap, Lost, Point, Position, Row
from gateway.triton.failure import InstanceFailure
from gateway.triton.generate import BrokenConnection, Connections
from gateway.triton.generation import Counter, Generation
from gateway.triton.subscription import Subscription

_log = logging.getLogger(__name__)

REPAIR_S = 5.0
"""How long a stream waits for what it misses."""
_OTHER_WAY_S = 0.5  # What the own stream says may be ahead of rows that come by the subscription.
_LAST_RESPONSE_S = 5.0  # For the own stream to end after the last row.
_ERROR = "error"


class BatchedGeneration(Generation):
    """See `Generation`. `number` is the stream's among those of `subscription`, which is waited for
    where it is not usable yet; `buffer_bytes` is how much may wait for whoever takes the deltas."""

    can_lend = False

    def __init__(
        self,
        instance: str,
        connections: Connections,
        model: str,
        contract: ModelContract,
        body: bytes,
        outputs: Sequence[str],
        places: Mapping[str, str],
        counter: Counter,
        headers: bytes,
        subscription: Subscription,
        number: int,
        buffer_bytes: int,
    ) -> None:
        super().__init__(instance, connections, model, contract.backend, body, outputs, places, counter, headers)
        self.number = number
        self._contract = contract
        self._subscription = subscription
        self._buffer_bytes = buffer_bytes
        self._buffered = 0
        self._position = Position()
        self._pending: list[Delta] = []
        self._early: list[Row] = []
        self._listener: Callable[[], None] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._is_open = False
        self._is_admitted = False
        self._repair_ends: asyncio.TimerHandle | None = None
        """While it misses something."""
        self._own_waits: asyncio.TimerHandle | None = None
        """While what the own stream has said is not acted upon yet."""
        self._has_final = False
        self._is_complete = False
        """All of the answer has come."""
        self._own_is_over = False

    @property
    def waits(self) -> bool:
        """As in `Generation`."""
        if not self._is_open:
            return self._call.waits
        return not self._is_complete and (self._listener is not None or self._waiter is not None)

    @property
    def point(self) -> Point | None:
        """Up to where it has come; None before its admission."""
        return (self.number, self._position.tokens, self._position.characters) if self._is_admitted else None

    async def open(self) -> None:
        """As in `Generation`."""
        await self._subscription.known(self._contract)
        if self._failure is not None:
            raise self._failure
        self._subscription.add(self)
        await super().open()
        self._is_open = True
        self._call.listen(self._own_stream)
        self._own_stream()

    def put(self, row: Row) -> bool:
        """A row, whichever way it came. Whether `wake` is to follow."""
        if not self._is_admitted:
            self._early.append(row)
            return False
        if self._is_complete or self._failure is not None:
            return False
        try:
            delta = self._position.take(row)
        except Gap:
            self._miss("row")
            return False
        except Lost:
            self._cut("lost")
            return False
        except (ValueError, TypeError, AttributeError):
            self._fail(internal_error("its stream holds a row that is none"))
            return False
        if delta is None:
            return False
        self._counter.tokens += delta.new_tokens
        is_first = not self._pending
        if delta.finish_reason is not None:
            self._finish(delta)
            return True
        self._pending.append(delta)
        if self._repair_ends is not None and self._position.is_whole and not self._has_final:
            self._subscription.whole(self)
            self._repair_ends.cancel()
            self._repair_ends = None
        if self._listener is None and self._waiter is None:
            self._count(delta)
        return is_first

    def wake(self) -> None:
        """Whoever takes the deltas has a turn."""
        if self._listener is not None:
            self._listener()
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def cancel(self, reason: Exception) -> None:
        """As in `Generation`."""
        self._pending.clear()
        self._fail(reason)
        # Of an answer that has come, what was not taken yet.
        self._failure = self._failure or reason

    def close(self) -> None:
        """As in `Generation`. The own stream of an answer that has come goes on to its end, so that its connection can
        be kept."""
        self._fail(RuntimeError("the generation was closed"))
        self._pending.clear()
        if self._is_complete and not self._own_is_over:
            self._subscription.lingering.add(self)
            self._own_waits = _later(_LAST_RESPONSE_S, self.let_go)

    def let_go(self) -> None:
        """Of an own stream that is at its end but for its last response."""
        self._own_ended(None)
        self._call.cancel(RuntimeError("the generation was closed"))

    async def _change(self) -> None:
        if not self._is_open:
            await self._call.change()
            return
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _listen(self, listener: Callable[[], None] | None) -> None:
        self._listener = listener

    def _take(self) -> list[Delta] | None:
        if self._first is not None:
            first, self._first = self._first, None
            return first
        if not self._is_open:
            self._own_stream()
        if self._pending:
            deltas, self._pending = self._pending, []
            self._buffered = 0
            return deltas
        if self._failure is not None:
            raise self._failure
        return None if self._is_complete else []

    # The request's own stream

    def _own_stream(self) -> None:
        """What has come by it."""
        if self._own_is_over or (self._failure is not None and not self._is_complete):
            return
        before = len(self._pending), self._failure, self._is_complete
        try:
            while payloads := self._call.take():
                for payload in payloads:
                    self._own_event(payload)
            if payloads is None:
                self._own_ended(unavailable("The engine ended the answer without saying why."))
        except BrokenConnection:
            self._own_ended(self._died())
        if (len(self._pending), self._failure, self._is_complete) != before:
            self.wake()

    def _own_event(self, payload: bytes) -> None:
        try:
            if not self._is_admitted:
                self._pending.append(parse_response(payload, self._outputs))
                self._is_admitted = True
                early, self._early = self._early, []
                for row in early:
                    self.put(row)
                return
            event = egress.parse_own(payload)
            if isinstance(event, Final):
                self._own_final(event)
            else:
                for row in event:
                    self.put(row)
        except UpstreamError as error:
            self._own_ended(self._understood("failed a request", str(error)))
        except (ValueError, TypeError, KeyError, AttributeError):
            self._fail(internal_error("its stream holds an event that is no response"))

    def _own_final(self, final: Final) -> None:
        position = self._position
        if self._is_complete:
            if (position.tokens, position.characters) != final:
                what = "%s: an answer of model %s had %d tokens and %d characters, but %d and %d came"
                came = position.tokens, position.characters
                _log.error(what, self._instance, self._model, *final, *came)
            return
        self._has_final = True
        position.need(*final)
        self._own_waits = _later(_OTHER_WAY_S, lambda: self._miss("end"))

    def _own_ended(self, error: ApiError | None) -> None:
        """Nothing more comes by it. Where the answer has not come and will not, that is its failure, behind the rows
        that are on their way."""
        if self._own_is_over:
            return
        self._own_is_over = True
        if self._is_complete:
            self._subscription.lingering.discard(self)
            if self._own_waits is not None:
                self._own_waits.cancel()
        elif error is not None and not self._has_final:
            if self._subscription.is_open and self._is_admitted:
                self._own_waits = _later(_OTHER_WAY_S, lambda: self._fail(error))
            else:
                self._fail(error)

    # What becomes of the answer

    def _finish(self, delta: Delta) -> None:
        if delta.finish_reason == _ERROR and _ERROR in delta.outputs:
            if delta.text or delta.new_tokens:
                self._pending.append(delta._replace(finish_reason=None))
            self._fail(self._understood("failed a request", str(delta.outputs[_ERROR])))
            return
        self._pending.append(delta)
        self._is_complete = True
        self._leave()

    def _fail(self, error: Exception) -> None:
        if self._failure is None and not self._is_complete:
            self._failure = error
            self._leave()
            if not self._own_is_over:
                self._subscription.cancelled(self)
            self._call.cancel(error)
            self.wake()

    def _cut(self, reason: str) -> None:
        metrics.egress_cut_streams_total.labels(self._model, self._instance, reason).inc()
        if reason == "slow_client":
            self._pending.clear()
            self._fail(
                ApiError(
                    408,
                    f"The client read too slowly: {self._buffer_bytes} bytes of its answer waited for it (setting "
                    "stream_buffer_bytes).",
                    code="client_too_slow",
                )
            )
            return
        what = "%s: an answer of model %s was cut, since a part of it was lost"
        _log.warning(what, self._instance, self._model)
        message = "A part of the answer was lost on its way from the inference server."
        self._fail(InstanceFailure(message, "a part of an answer was lost"))

    def _miss(self, kind: str) -> None:
        if self._repair_ends is None and not self._is_complete and self._failure is None:
            self._subscription.repair(self, kind)
            self._repair_ends = _later(REPAIR_S, lambda: self._cut("lost"))

    def _count(self, delta: Delta) -> None:
        """What waits for whoever takes the deltas."""
        text = delta.text
        self._buffered += len(text) if text.isascii() else len(text.encode())
        if delta.outputs:
            self._buffered += len(orjson.dumps(delta.outputs))
        if self._buffered > self._buffer_bytes:
            self._cut("slow_client")

    def _leave(self) -> None:
        self._subscription.remove(self)
        for timer in (self._repair_ends, self._own_waits):
            if timer is not None:
                timer.cancel()


def _later(seconds: float, what: Callable[[], None]) -> asyncio.TimerHandle:
    return asyncio.get_running_loop().call_later(seconds, what)
