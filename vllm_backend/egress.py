"""Batched egress: a subscriber's streams, what of them has been sent and acknowledged, and what is to be sent next.
EGRESS.md beside this file has the wire format.

No vLLM here, and no Triton but the ways back that are handed in. Everything runs on the event loop but `next_send` and
what it sends, which is the sending thread's, one for each subscriber; they meet under the subscriber's lock. It is the
thread that pulls: what comes while it sends, or while the window is full, is merged into the stream's next row, so that
nothing queues up however slow the other end is."""

import io
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

from vllm_backend.contract import (
    ACKNOWLEDGED,
    EGRESS_VERSION,
    STREAM_ID,
    InvalidArgument,
    RequestError,
    Unavailable,
)
from vllm_backend.request import Acknowledgement, Position, StreamName, SubscriptionRequest
from vllm_backend.response import Completion, RowOutputs

WINDOW = 4 << 20
"""Bytes of messages that may be on their way: no message is begun while so many are not acknowledged."""

MESSAGE = 1 << 20
"""Bytes after which a message takes no further row."""

GRACE = 0.25
"""Seconds that rows wait for a subscription before they go by the requests' own streams."""

IDLE = 2.0
"""Seconds without an open request after which a subscription ends: while one is open, tritonserver cannot shut down."""

LEASE = 15.0
"""Seconds without a word of a subscriber that has a subscription and open streams, after which these are aborted."""

FINAL_WAIT = 1.0
"""Seconds that a request's final response waits for the acknowledgement of its last row, so that until then the rows
could still go by the request's own stream."""

TOMBSTONE = 15.0
"""Seconds that a stream's rows can still be asked for after its final response, unless they were acknowledged."""

TICK = 0.1
"""Seconds between two calls of `Registry.tick`."""

UNKNOWN_SUBSCRIBER = "the subscriber is not known; subscribe again."
_SILENT = f"nothing has been heard of the subscriber for {LEASE:.0f} s."

LOST = "lost"
"""The finish reason of a row that stands for rows that cannot be sent again."""


class Way(Protocol):
    """A Triton request's way back to its client, for texts."""

    def send(self, text: bytes) -> None: ...

    def finish(self, text: bytes | None) -> None:
        """Sends the final flag, with a last text if there is one."""


@dataclass(frozen=True, slots=True)
class Send:
    """One thing for the sending thread to send."""

    way: Way
    text: bytes | None
    is_last: bool = False
    then: Callable[[], object] | None = None
    """Called when it has been sent, on the sending thread."""

    def __call__(self) -> None:
        if self.is_last:
            self.way.finish(self.text)
        elif self.text is not None:
            self.way.send(self.text)
        if self.then is not None:
            self.then()


class Stream:
    """The output of one request: all of its text, and how much of it was sent and acknowledged."""

    def __init__(
        self,
        subscriber: "Subscriber",
        stream_id: int,
        own: Way,
        delivered: Callable[[], None],
        aborted: Callable[[RequestError | None], None],
    ) -> None:
        self.stream_id = stream_id
        self.subscriber = subscriber
        self.own = own
        """The request's own stream."""
        self.delivered = delivered
        """Called when the final response may be sent."""
        self.aborted = aborted
        """Called when the request is to be ended with an error instead; None: its client has cancelled it."""
        self.outputs: RowOutputs | None = None
        self.tokens = 0
        self.characters = 0
        self.finish_reason: str | None = None
        self.error: RequestError | None = None
        self.is_delivered = False
        """Whether `delivered` was called, and so the own stream is no way any more."""
        self.is_acknowledged = False
        """To its end."""
        self.is_closed = False
        """Whether the request is over: nothing is taken any more."""
        self._text = io.StringIO()
        self._unsent: list[str] = []
        self._sent_tokens = 0
        self._sent_characters = 0
        self._sent_end = False
        self._acknowledged_tokens = 0
        self._acknowledged_characters = 0
        self._round = 0
        """How often it was set back. An acknowledgement of what was sent before does not count: what was sent once more
        may still be on its way."""

    def put(self, output: Completion | RequestError) -> None:
        """Takes what the engine has produced, or why it will not produce more. What follows the end is ignored. On the
        event loop."""
        subscriber = self.subscriber
        with subscriber.lock:
            if self.finish_reason is not None or self.is_closed:
                return
            if isinstance(output, RequestError):
                self.error = output
                self.finish_reason = "error"
            else:
                if text := output.text:
                    self._unsent.append(text)
                    self._text.write(text)
                    self.characters += len(text)
                self.tokens += len(output.token_ids)
                if self.outputs is not None:
                    self.outputs.add(output)
                self.finish_reason = output.finish_reason
            subscriber.mark(self)

    def close(self) -> None:
        """The request's own stream has ended: with the final response, or before everything was delivered."""
        self.subscriber.close(self)

    # The rest is the subscriber's, under its lock.

    def next_row(self) -> list[Any] | None:
        """Everything that was not sent yet, which counts as sent from now on. None if that is nothing."""
        new_tokens, is_end = self.tokens - self._sent_tokens, self.finish_reason is not None
        if not (new_tokens or self._unsent or (is_end and not self._sent_end)):
            return None
        text = "".join(self._unsent)
        self._unsent.clear()
        row: list[Any] = [self.stream_id, self._sent_tokens, self._sent_characters, new_tokens, text]
        if is_end or self.outputs is not None:
            outputs = {} if self.outputs is None else self.outputs.since(self._sent_tokens)
            if self.error is not None:
                outputs["error"] = self.error.text
            if is_end or outputs:
                row.append(self.finish_reason)
            if outputs:
                row.append(outputs)
        self._sent_tokens, self._sent_characters, self._sent_end = self.tokens, self.characters, is_end
        return row

    @property
    def sent(self) -> "_Sent":
        """How far it has been sent."""
        return self._round, self._sent_tokens, self._sent_characters, self._sent_end

    def acknowledge(self, sent: "_Sent") -> bool:
        """So far it has arrived; whether that is to its end."""
        in_round, tokens, characters, to_end = sent
        if in_round != self._round:
            return False
        self._has_arrived(tokens, characters)
        self.is_acknowledged |= to_end
        return to_end

    def rewind(self) -> None:
        """Nothing counts as sent but what was acknowledged."""
        self._send_from(self._acknowledged_tokens, self._acknowledged_characters)

    def resume(self, position: Position) -> bool:
        """The rows from a position on are to be sent again; False if there are none any more."""
        tokens, characters = position.tokens, position.characters
        if tokens > self.tokens or characters > self.characters:
            return False
        if self.outputs is not None and not self.outputs.has(tokens):
            return False
        # What stands in front of it has arrived.
        self._has_arrived(tokens, characters)
        self._send_from(tokens, characters)
        return True

    def _has_arrived(self, tokens: int, characters: int) -> None:
        self._acknowledged_tokens = max(self._acknowledged_tokens, tokens)
        self._acknowledged_characters = max(self._acknowledged_characters, characters)
        if self.outputs is not None:
            self.outputs.let_go(self._acknowledged_tokens)

    def _send_from(self, tokens: int, characters: int) -> None:
        self._round += 1
        if (self._sent_tokens, self._sent_characters) != (tokens, characters):
            rest = self._text.getvalue()[characters:]
            self._unsent = [rest] if rest else []
            self._sent_tokens, self._sent_characters = tokens, characters
        self._sent_end = False


_Sent = tuple[int, int, int, bool]
"""How far a stream has been sent: in which round, tokens, characters, whether to its end."""


class _Message(NamedTuple):
    """One that is on its way."""

    number: int
    size: int
    brings: dict[Stream, _Sent]


class Subscriber:
    """One client's streams and its subscription, if it has one."""

    def __init__(self, name: str, registry: "Registry") -> None:
        self.name = name
        self.log_name = f"{name[:8]}…"
        """Not all of it: who knows the name can have the streams."""
        self.lock = threading.Lock()
        self._is_over = False
        self._registry = registry
        self._streams: dict[int, Stream] = {}
        self._open = 0
        """How many of them have not had their final response."""
        self._dirty: dict[Stream, None] = {}
        """The streams that may have something to send, the longest waiting first."""
        self._flush_is_due = False
        self._lost: dict[int, Position] = {}
        """What cannot be sent again, by stream."""
        self._endings: deque[Send] = deque()
        self._subscription: Way | None = None
        self._hello_is_due = False
        self._next_message = 1
        self._on_their_way: deque[_Message] = deque()
        self._bytes_on_their_way = 0
        self._by_own_streams = False
        self._without_subscription_since: float | None = None
        """When there were rows and no subscription to carry them; None while there is one, or there are none."""
        now = registry.clock()
        self._heard = now
        self._idle_since = now
        self._sent_to_end: dict[Stream, float] = {}
        """The streams whose last row is on its way, and since when."""
        self._tombstones: dict[Stream, float] = {}
        """The streams that have had their final response and whose last row is not acknowledged, and since when."""
        self._sending = registry.start_sending(self)

    # On the event loop.

    def open(
        self, stream_id: int, own: Way, delivered: Callable[[], None], aborted: Callable[[RequestError | None], None]
    ) -> Stream:
        """Raises InvalidArgument."""
        self._heard = self._registry.clock()
        if stream_id in self._streams:
            raise InvalidArgument(STREAM_ID, f"must be a new one: {stream_id} was used before.")
        stream = self._streams[stream_id] = Stream(self, stream_id, own, delivered, aborted)
        self._open += 1
        return stream

    def close(self, stream: Stream) -> None:
        if stream.is_closed:
            return
        with self.lock:
            stream.is_closed = True
            self._open -= 1
            self._idle_since = self._registry.clock()
            self._sent_to_end.pop(stream, None)
            if stream.is_delivered and not stream.is_acknowledged:
                self._tombstones[stream] = self._idle_since
            else:
                self._dirty.pop(stream, None)
                del self._streams[stream.stream_id]

    def mark(self, stream: Stream) -> None:
        """The stream may have something to send. Under the lock, and on the event loop."""
        self._dirty[stream] = None
        if not self._flush_is_due:
            self._flush_is_due = True
            # When the engine's step is through, so that all of its tokens are in one message.
            self._registry.call_soon(self._flush)

    def subscribe(self, way: Way, resume: Iterable[Position]) -> None:
        self._heard = self._idle_since = self._registry.clock()
        with self.lock:
            if self._subscription is not None:
                self._end("replaced")
            self._subscription = way
            self._hello_is_due = True
            self._by_own_streams = False
            self._without_subscription_since = None
            self._lost.clear()
            self._rewind()
            self._resume(resume)
        self._sending.wake()

    def acknowledge(self, number: int, resume: Iterable[Position], cancelled: Iterable[int]) -> None:
        """Raises InvalidArgument."""
        self._heard = self._registry.clock()
        delivered: list[Stream] = []
        with self.lock:
            if number >= self._next_message:
                last = self._next_message - 1
                raise InvalidArgument(ACKNOWLEDGED, f"must be at most the last message's number, {last}, not {number}.")
            # First: what is sent again is not acknowledged with what was sent before.
            self._resume(resume)
            arrived: dict[Stream, _Sent] = {}
            while self._on_their_way and self._on_their_way[0].number <= number:
                message = self._on_their_way.popleft()
                self._bytes_on_their_way -= message.size
                # Of a stream's rows, the last one says it all.
                arrived.update(message.brings)
            for stream, sent in arrived.items():
                if not stream.acknowledge(sent):
                    continue
                if self._tombstones.pop(stream, None) is not None:
                    del self._streams[stream.stream_id]
                elif self._sent_to_end.pop(stream, None) is not None:
                    delivered.append(stream)
        self._deliver(delivered)
        for stream_id in cancelled:
            # One that is not known may be on its way: the end of its own connection will tell.
            unwanted = self._streams.get(stream_id)
            if unwanted is not None and not unwanted.is_delivered:
                unwanted.aborted(None)
        self._sending.wake()

    def lose(self, way: Way) -> None:
        """The client of a subscription has gone away."""
        with self.lock:
            if way is not self._subscription:
                return
            self._end(None)
            self._rewind()

    def tick(self) -> None:
        """Does what is due by the clock."""
        now = self._registry.clock()
        delivered: list[Stream] = []
        aborted: list[Stream] = []
        with self.lock:
            if self._subscription is not None:
                if not self._open and now - self._idle_since >= IDLE:
                    self._end("idle")
                    self._rewind()
                elif self._open and now - self._heard >= LEASE:
                    aborted = [stream for stream in self._streams.values() if stream not in self._tombstones]
                    self._end("silent")
            elif self._without_subscription_since is not None and now - self._without_subscription_since >= GRACE:
                self._by_own_streams = True
                self._sending.wake()
            for stream, since in self._sent_to_end.items():
                if now - since < FINAL_WAIT:
                    break
                delivered.append(stream)
            while self._tombstones:
                stream, since = next(iter(self._tombstones.items()))
                if now - since < TOMBSTONE:
                    break
                del self._tombstones[stream]
                self._dirty.pop(stream, None)
                del self._streams[stream.stream_id]
        self._deliver(delivered)
        for stream in aborted:
            stream.aborted(Unavailable(_SILENT))

    def end(self) -> None:
        """Nothing comes any more. Whoever has opened a stream closes it."""
        with self.lock:
            if self._subscription is not None:
                self._end("unloading")
            self._is_over = True
        self._sending.wake()

    def join(self) -> None:
        """Waits until everything has been sent, after `end`."""
        self._sending.join()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is known of it any more, so that it can be forgotten."""
        with self.lock:
            return not self._streams and self._subscription is None

    # On the sending thread.

    def next_send(self) -> Send | None:
        """What is to be sent next; None if there is nothing until the next `wake`."""
        with self.lock:
            if self._endings:
                return self._endings.popleft()
            if self._subscription is not None:
                if self._hello_is_due:
                    self._hello_is_due = False
                    hello = {"version": EGRESS_VERSION, "next": self._next_message}
                    return Send(self._subscription, self._registry.encode({"hello": hello}))
                if self._bytes_on_their_way < WINDOW:
                    return self._next_message_on(self._subscription)
            elif self._by_own_streams:
                return self._next_own_row()
            return None

    @property
    def is_done(self) -> bool:
        """Whether there will never be anything to send again."""
        with self.lock:
            return self._is_over and not self._endings

    def report(self, way: Way, error: Exception) -> None:
        """Something could not be sent."""
        self._registry.log(f"batched egress of {self.log_name}: a message could not be sent: {error}")
        self._registry.call_soon_threadsafe(self.lose, way)

    # Under the lock.

    def _next_message_on(self, way: Way) -> Send | None:
        encode = self._registry.encode
        rows = [encode([*_numbers(lost), 0, "", LOST]) for lost in self._lost.values()]
        self._lost.clear()
        brings: dict[Stream, _Sent] = {}
        size = 0
        waiting, self._dirty = self._dirty, {}
        for stream in waiting:
            if size >= MESSAGE:
                self._dirty[stream] = None
                continue
            row = stream.next_row()
            if row is None:
                continue
            rows.append(encode(row))
            size += len(rows[-1])
            brings[stream] = stream.sent
            if stream.finish_reason is not None and not stream.is_delivered:
                self._sent_to_end[stream] = self._registry.clock()
        if not rows:
            return None
        text = b'{"message":%d,"rows":[%b]}' % (self._next_message, b",".join(rows))
        self._on_their_way.append(_Message(self._next_message, len(text), brings))
        self._bytes_on_their_way += len(text)
        self._next_message += 1
        return Send(way, text)

    def _next_own_row(self) -> Send | None:
        while self._dirty:
            stream = next(iter(self._dirty))
            del self._dirty[stream]
            row = None if stream.is_delivered else stream.next_row()
            if row is not None:
                text = b'{"rows":[%b]}' % self._registry.encode(row)
                if stream.finish_reason is None:
                    return Send(stream.own, text)
                then = partial(self._registry.call_soon_threadsafe, self._deliver, [stream])
                return Send(stream.own, text, then=then)
        return None

    def _end(self, reason: str | None) -> None:
        """Ends the subscription, with a word to its client if it is still there."""
        assert self._subscription is not None
        text = None if reason is None else self._registry.encode({"end": reason})
        self._endings.append(Send(self._subscription, text, is_last=True))
        self._registry.log(f"subscription of {self.log_name} ended: {reason or 'its client has gone away'}")
        self._subscription = None
        self._hello_is_due = False
        self._sending.wake()

    def _rewind(self) -> None:
        """What was on its way when a subscription ended may not have arrived."""
        self._on_their_way.clear()
        self._bytes_on_their_way = 0
        self._sent_to_end.clear()
        for stream in self._streams.values():
            stream.rewind()
            if not stream.is_delivered or self._subscription is not None:
                self.mark(stream)

    def _resume(self, positions: Iterable[Position]) -> None:
        for position in positions:
            stream = self._streams.get(position.stream_id)
            if stream is not None and stream.resume(position):
                self._sent_to_end.pop(stream, None)
                self.mark(stream)
            elif stream is not None or position.tokens or position.characters:
                # A stream that is not known and of which nothing has come may only be on its way here.
                self._lost[position.stream_id] = position

    def _flush(self) -> None:
        self._flush_is_due = False
        if self._subscription is None and not self._by_own_streams and self._without_subscription_since is None:
            self._without_subscription_since = self._registry.clock()
        else:
            self._sending.wake()

    def _deliver(self, streams: Iterable[Stream]) -> None:
        for stream in streams:
            if not stream.is_delivered:
                stream.is_delivered = True
                stream.delivered()


def _numbers(position: Position) -> tuple[int, int, int]:
    return position.stream_id, position.tokens, position.characters


class Sending(Protocol):
    """Who sends what a subscriber has to send."""

    def wake(self) -> None:
        """Has it look for something to send. From any thread."""

    def join(self) -> None:
        """Waits until the subscriber is done."""


class SendingThread:
    """Sends whatever there is, one thing after the other, until the subscriber is done. Sending waits for tritonserver
    each time."""

    def __init__(self, subscriber: Subscriber) -> None:
        self._subscriber = subscriber
        self._calls: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="batched-egress", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        if self._calls.empty():
            self._calls.put(None)

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        subscriber = self._subscriber
        while not subscriber.is_done:
            self._calls.get()
            while (send := subscriber.next_send()) is not None:
                try:
                    send()
                except Exception as error:
                    subscriber.report(send.way, error)


class Registry:
    """All subscribers of a model's instance. On the event loop."""

    def __init__(
        self,
        *,
        encode: Callable[[Any], bytes],
        call_soon: Callable[..., object],
        call_soon_threadsafe: Callable[..., object],
        log: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        start_sending: Callable[[Subscriber], Sending] = SendingThread,
    ) -> None:
        """`encode` writes JSON; `call_soon` and `call_soon_threadsafe` are the event loop's; `clock` counts seconds."""
        self.encode = encode
        self.call_soon = call_soon
        self.call_soon_threadsafe = call_soon_threadsafe
        self.log = log
        self.clock = clock
        self.start_sending = start_sending
        self._subscribers: dict[str, Subscriber] = {}

    def __len__(self) -> int:
        return len(self._subscribers)

    def open(
        self, name: StreamName, own: Way, delivered: Callable[[], None], aborted: Callable[[RequestError | None], None]
    ) -> Stream:
        """The stream of a new request. `delivered` is called when its final response may be sent, `aborted` when the
        request is to be ended with an error instead, or with None because its client has cancelled it. Raises
        InvalidArgument."""
        return self._known(name.subscriber).open(name.stream_id, own, delivered, aborted)

    def subscribe(self, request: SubscriptionRequest, way: Way) -> None:
        subscriber = self._known(request.subscriber)
        self.log(f"subscription of {subscriber.log_name} begins")
        subscriber.subscribe(way, request.resume)

    def acknowledge(self, request: Acknowledgement) -> None:
        """Raises RequestError."""
        subscriber = self._subscribers.get(request.subscriber)
        if subscriber is None:
            raise Unavailable(UNKNOWN_SUBSCRIBER)
        subscriber.acknowledge(request.acknowledged, request.resume, request.cancelled)

    def lose(self, name: str, way: Way) -> None:
        """The client of a subscription has gone away."""
        if (subscriber := self._subscribers.get(name)) is not None:
            subscriber.lose(way)

    def tick(self) -> None:
        """Does what is due by the clock, and forgets the subscribers of which nothing is left. To be called every
        `TICK`."""
        for subscriber in list(self._subscribers.values()):
            subscriber.tick()
            if subscriber.is_idle:
                del self._subscribers[subscriber.name]
                subscriber.end()

    def unload(self) -> None:
        """Ends every subscription. The streams must be closed by who opened them."""
        for subscriber in self._subscribers.values():
            subscriber.end()
        for subscriber in self._subscribers.values():
            subscriber.join()
        self._subscribers.clear()

    def _known(self, name: str) -> Subscriber:
        subscriber = self._subscribers.get(name)
        if subscriber is None:
            subscriber = self._subscribers[name] = Subscriber(name, self)
        return subscriber
