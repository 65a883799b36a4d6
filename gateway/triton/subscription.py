"""A subscription to the rows of one model on one Triton instance: opened when it is needed and when it breaks,
acknowledged, repaired.

Rows go straight from a message to the streams that they are for, and each stream is told once per read: no task has a
turn for it. What the rows mean for an answer is the stream's business (`gateway.triton.batched`).
"""

import asyncio
import contextlib
import logging
import math
import random
import re
import uuid
from collections.abc import Iterator
from typing import Protocol

from gateway.observe import metrics
from gateway.openai.errors import unavailable
from gateway.triton import egress
from gateway.triton.contract import ModelContract, UpstreamError, refusal_text
from gateway.triton.egress import Hello, Message, Point, Row
from gateway.triton.failure import InstanceFailure
from gateway.triton.generate import BrokenConnection, Call, ConnectError, Connections

_log = logging.getLogger(__name__)

ACKNOWLEDGE_S = 0.1
"""How long a message waits for its acknowledgement where the backend keeps something for it: the end of an answer, or
outputs beside its text."""
_ACKNOWLEDGE_LATER_S = 0.5  # Where it is nothing but text. An acknowledgement costs the backend as much as a message.
_ACKNOWLEDGE_BYTES = 1 << 20  # Of these the backend sends four times as much without an acknowledgement.
_SIGN_OF_LIFE_S = 5.0  # A backend that hears nothing for 15 s takes the gateway for dead.
_ANSWER_S = 5.0  # For the hello, and for the answer of an acknowledgement.
_ASK_AGAIN_S = 0.5  # What was asked for again may be lost too.
_PAUSES_S = (0.1, 0.2, 0.4, 0.8, 1.6, 2.0)  # Before it is opened again, by how often that has failed.
_WORKED_S = 1.0  # A subscription that lasted as long has not failed to begin.
_REFUSED_S = 60.0  # An instance may have been upgraded without another contract.
# In the backend's words, and in Triton's own for an input that a model does not have.
_MISFIT = re.compile("INVALID_ARG|unexpected inference input")


class Stream(Protocol):
    """Who gets rows."""

    number: int

    @property
    def point(self) -> Point | None:
        """Up to where it has come; None: it is not admitted yet, and the backend may not know it."""

    def put(self, row: Row) -> bool:
        """Whether it is to be woken, once no more rows come now. Raises `ValueError` or `TypeError` for what is no
        row."""

    def wake(self) -> None: ...


class Lingering(Protocol):
    def let_go(self) -> None: ...


class _Broken(Exception):
    """The subscription cannot go on; says why, without a full stop."""


class _Refused(_Broken):
    """The backend does not have what the gateway needs."""


class Subscription:
    """`want` with each request, `is_usable` says whether its tokens can come this way. Streams have a `next_number` and
    are in it from `add` to `remove`.

    `lingering` are streams whose answer has come and whose own stream is not at its end yet.
    """

    def __init__(self, instance: str, connections: Connections, model: str) -> None:
        self.subscriber = str(uuid.uuid4())
        self.is_usable = False
        """A hello has come that is understood; also while the subscription is being opened again."""
        self.lingering: set[Lingering] = set()
        self._instance = instance
        self._connections = connections
        self._model = model
        self._where = (model, instance)
        self._contract: ModelContract | None = None
        self._numbers = 0
        self._streams: dict[int, Stream] = {}
        self._broken: dict[int, float] = {}
        """Streams that miss something → when it was last asked for, in the loop's time."""
        self._refused_until = 0.0
        self._try_at = 0.0
        self._problem = ""
        """Why it is not open, for the operator; empty where that has not been told or is over."""
        self._task: asyncio.Task[None] | None = None
        self._session: _Session | None = None
        self._waiting: list[asyncio.Future[None]] = []
        self._is_closed = False

    @property
    def is_open(self) -> bool:
        """Whether rows can come by it now."""
        return self._session is not None and self._session.is_open

    def want(self, contract: ModelContract) -> None:
        """Have it opened, unless the backend has just refused it for this contract, or could not be asked."""
        if self._task is not None or self._is_closed:
            return
        now = asyncio.get_running_loop().time()
        if contract == self._contract and now < (self._refused_until or (0.0 if self.is_usable else self._try_at)):
            return
        self._contract = contract
        self._refused_until = 0.0
        self._task = asyncio.create_task(self._keep())

    async def known(self, contract: ModelContract) -> None:
        """Until it can be used. Raises a 503 where it cannot."""
        self.want(contract)
        if self._task is not None and not self.is_usable:
            waiting = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._connections.connect_timeout):
                    await waiting
        if self.is_usable:
            return
        if self._refused_until:
            raise unavailable(f"The model can only be asked by batched egress (its setting), and {self._problem}.")
        raise InstanceFailure("The inference server cannot be reached.", self._problem or "it sent no hello")

    def next_number(self) -> int:
        """Of a stream."""
        self._numbers += 1
        return self._numbers

    def add(self, stream: Stream) -> None:
        self._streams[stream.number] = stream
        if self._session is not None:
            self._session.look()

    def remove(self, stream: Stream) -> None:
        self._streams.pop(stream.number, None)
        self._broken.pop(stream.number, None)

    def cancelled(self, stream: Stream) -> None:
        """The backend is told at once: that a connection was closed, it notices late where there are many."""
        if self._session is not None:
            self._session.cancel(stream.number)

    def repair(self, stream: Stream, kind: str) -> None:
        """Ask for the stream's rows again, from its point, until `whole`. `kind` is what showed that some are missing:
        `row` or `end`."""
        self._broken[stream.number] = -math.inf
        self._count_repair(kind)
        if self._session is not None:
            self._session.hold()

    def whole(self, stream: Stream) -> None:
        self._broken.pop(stream.number, None)

    async def close(self) -> None:
        """For good."""
        self._is_closed = True
        for stream in list(self.lingering):
            stream.let_go()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _keep(self) -> None:
        """Keep it open for as long as there are streams and the backend wants it to be."""
        loop = asyncio.get_running_loop()
        tries = 0
        try:
            while True:
                began = loop.time()
                self._session = session = _Session(self, self._connections, self._model)
                problem = ""
                try:
                    await session.run()
                except _Refused as refusal:
                    self._refuse(str(refusal))
                    return
                except _Broken as failure:
                    problem = str(failure)
                except Exception:
                    _log.exception("a subscription met an unexpected failure")
                    problem = "the gateway failed"
                finally:
                    self._session = None
                if problem and not self._problem:
                    _log.warning("%s: the subscription to model %s broke: %s", self._instance, self._model, problem)
                    self._problem = problem
                has_worked = session.is_open and (session.has_carried or loop.time() - began > _WORKED_S)
                tries = 0 if has_worked else tries + 1
                pause = _PAUSES_S[min(tries, len(_PAUSES_S) - 1)] if problem or tries else 0.0
                self._try_at = loop.time() + pause
                if not self._streams and not self._waiting:
                    return
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))
                if problem:
                    metrics.egress_reconnects_total.labels(*self._where).inc()
        finally:
            self._task = None
            self._tell_waiting()

    def _refuse(self, why: str) -> None:
        self.is_usable = False
        self._refused_until = asyncio.get_running_loop().time() + _REFUSED_S
        if why != self._problem:
            _log.warning("%s: no batched egress for model %s: %s", self._instance, self._model, why)
        self._problem = why

    def _tell_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def _count_repair(self, kind: str) -> None:
        metrics.egress_repairs_total.labels(*self._where, kind).inc()

    # For the session

    @property
    def has_streams(self) -> bool:
        return bool(self._streams)

    @property
    def is_repairing(self) -> bool:
        return bool(self._broken)

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """While it is open."""
        if not self.is_usable:
            _log.info("%s: the tokens of model %s come by batched egress", self._instance, self._model)
        elif self._problem:
            _log.info("%s: the subscription to model %s is open again", self._instance, self._model)
        self.is_usable = True
        self._problem = ""
        self._tell_waiting()
        gauge = metrics.egress_subscriptions.labels(*self._where)
        gauge.inc()
        try:
            yield
        finally:
            gauge.dec()

    def all_points(self) -> list[Point]:
        """Of every stream that the backend must know."""
        return [point for stream in self._streams.values() if (point := stream.point) is not None]

    def broken_points(self, now: float) -> list[Point]:
        """Of the streams that miss something that was not asked for just now."""
        points: list[Point] = []
        for number, asked in self._broken.items():
            stream = self._streams[number]
            if now - asked >= _ASK_AGAIN_S and (point := stream.point) is not None:
                self._broken[number] = now
                points.append(point)
        return points

    def apply(self, rows: list[Row], touched: list[Stream]) -> bool:
        """One pass; rows of streams that are gone are nobody's. Whether any is more than text."""
        streams = self._streams
        is_more = False
        for row in rows:
            if len(row) > 5:
                is_more = True
            stream = streams.get(row[0])
            if stream is not None and stream.put(row):
                touched.append(stream)
        return is_more

    def missed(self) -> None:
        """A message is missing; its rows may have been anybody's."""
        self._count_repair("message")


class _Session:
    """One subscription request, from its sending to its end, and its acknowledgements."""

    def __init__(self, subscription: Subscription, connections: Connections, model: str) -> None:
        self.is_open = False
        self.has_carried = False
        """Whether a message has come."""
        self._subscription = subscription
        self._connections = connections
        self._path = f"/v2/models/{model}"
        self._call: Call | None = None
        self._changed = asyncio.Event()
        self._problem: _Broken | None = None
        self._is_over = False
        self._next = 0
        self._acknowledged = 0
        self._unacknowledged_bytes = 0
        self._is_waited_for = False
        """Whether the backend keeps something until the next acknowledgement."""
        self._held: int | None = None
        """The number to be acknowledged as long as something is missing."""
        self._has_missed = False
        self._held_until = 0.0
        self._said_at = 0.0
        self._cancelled: list[int] = []

    def cancel(self, number: int) -> None:
        """A stream. The backend ignores one that it does not know."""
        self._cancelled.append(number)
        self.look()

    def hold(self) -> None:
        """What comes from now on is not acknowledged, until nothing is missing any more."""
        if self._held is None:
            self._held = self._next - 1

    def look(self) -> None:
        """Something has changed."""
        self._changed.set()

    async def run(self) -> None:
        """Until the backend ends it. Raises `_Broken`."""
        subscription = self._subscription
        loop = asyncio.get_running_loop()
        body = egress.subscription_body(subscription.subscriber, subscription.all_points())
        self._call = call = self._connections.call(f"{self._path}/generate_stream", body, is_lasting=True)
        try:
            await self._open(call)
            self._said_at = loop.time()
            with subscription.opened():
                while not self._is_over:
                    await self._pause()
                    if self._problem is None and not self._is_over:
                        await self._acknowledge(loop.time())
                    if self._problem is not None:
                        raise self._problem
        finally:
            self._is_over = True
            call.listen(None)
            call.cancel(RuntimeError("the subscription was closed"))

    async def _open(self, call: Call) -> None:
        try:
            async with asyncio.timeout(_ANSWER_S):
                status = await call.head()
                if status != 200:
                    self._refuse(status, refusal_text(await call.error_body()))
                call.listen(self._take)
                self._take()
                while not (self.is_open or self._is_over or self._problem):
                    await self._changed.wait()
                    self._changed.clear()
        except TimeoutError:
            raise _Broken(f"nothing came for {_ANSWER_S:g} s") from None
        except (ConnectError, BrokenConnection) as error:
            raise _Broken(str(error)) from None
        if self._problem is not None:
            raise self._problem
        if not self.is_open:
            raise _Broken("it ended before it began")

    @staticmethod
    def _refuse(status: int, text: str) -> None:
        if _MISFIT.search(text):
            raise _Refused(f"the backend refuses it ({text})")
        raise _Broken(f"Triton answers {status} ({text})")

    async def _pause(self) -> None:
        """Until an acknowledgement may be due."""
        if self._is_over or self._problem is not None:
            return
        is_idle = not self._subscription.has_streams and self._acknowledged == self._next - 1
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if is_idle else ACKNOWLEDGE_S):
                await self._changed.wait()
        self._changed.clear()

    async def _acknowledge(self, now: float) -> None:
        subscription = self._subscription
        resume_all, self._has_missed = self._has_missed, False
        points = subscription.all_points() if resume_all else subscription.broken_points(now)
        if resume_all:
            # What is asked for again comes after the answer: until then, what was missed must not count as taken.
            self._held_until = now + _ASK_AGAIN_S
        elif self._held is not None and now >= self._held_until and not subscription.is_repairing:
            self._held = None
        number = self._next - 1 if self._held is None else self._held
        is_silent = now - self._said_at >= _SIGN_OF_LIFE_S and subscription.has_streams
        cancelled, self._cancelled = self._cancelled, []
        if not (points or cancelled or is_silent or (number != self._acknowledged and self._is_due(now))):
            return
        body = egress.acknowledgement_body(subscription.subscriber, number, points, cancelled)
        self._said_at = now
        self._unacknowledged_bytes = 0
        self._is_waited_for = False
        try:
            async with asyncio.timeout(_ANSWER_S):
                await self._say(body)
        except TimeoutError:
            raise _Broken(f"an acknowledgement was not answered within {_ANSWER_S:g} s") from None
        except (ConnectError, BrokenConnection) as error:
            raise _Broken(f"an acknowledgement did not get through ({error})") from None
        self._acknowledged = number

    def _is_due(self, now: float) -> bool:
        is_much = self._unacknowledged_bytes >= _ACKNOWLEDGE_BYTES
        return self._is_waited_for or is_much or now - self._said_at >= _ACKNOWLEDGE_LATER_S

    async def _say(self, body: bytes) -> None:
        call = self._connections.call(f"{self._path}/generate", body)
        try:
            status = await call.head()
            if status != 200:
                text = refusal_text(await call.error_body())
                raise _Broken(f"an acknowledgement was answered {status} ({text})")
            while call.take() is not None:
                await call.change()
        finally:
            call.cancel(RuntimeError("the acknowledgement was given up"))

    def _take(self) -> None:
        """What has come: every row to its stream, then each stream's turn."""
        call = self._call
        if call is None or self._is_over:
            return
        touched: list[Stream] = []
        try:
            while payloads := call.take():
                for payload in payloads:
                    self._event(payload, touched)
            if payloads is None:
                self._end()
        except _Broken as problem:
            self._fail(problem)
        except BrokenConnection as error:
            self._fail(_Broken(str(error)))
        except UpstreamError as error:
            self._fail(_Broken(f"it failed ({error})"))
        except (ValueError, TypeError, KeyError, IndexError, AttributeError):
            self._fail(_Broken("it holds something that is no message"))
        for stream in touched:
            stream.wake()

    def _event(self, payload: bytes, touched: list[Stream]) -> None:
        event = egress.parse_event(payload)
        if isinstance(event, Message):
            if event.number > self._next:
                self.hold()
                self._has_missed = True
                self._subscription.missed()
                self._next = event.number
            self._unacknowledged_bytes += len(payload)
            self._is_waited_for |= self._subscription.apply(event.rows, touched)
            if event.number == self._next:
                self._next += 1
                self.has_carried = True
        elif isinstance(event, Hello):
            if event.version != egress.VERSION:
                raise _Refused(f"the backend speaks version {event.version}, the gateway {egress.VERSION}")
            self._next = event.next
            self._acknowledged = event.next - 1
            self._held = None
            self.is_open = True
            self.look()
        else:
            self._end()

    def _end(self) -> None:
        self._is_over = True
        self.look()

    def _fail(self, problem: _Broken) -> None:
        self._problem = self._problem or problem
        self.look()

