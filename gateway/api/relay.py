"""The native relay: what comes of a plain stream goes from Triton's socket to the client's without Python.

`gateway_relay`, a distribution of its own, does it in a thread in C++, where it is installed; the bytes are the same
without it. A `Passage` is one answer's way into it and back: the head, the first events, the last ones and whatever the
relay does not understand go the usual way, through `gateway.triton.generate` and the sink. Requests of known forms have
it ask Triton, too (`gateway.api.direct`): then it tells all of the answer.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from gateway.desk.front import Lease
from gateway.observe import metrics
from gateway.observe.record import Record
from gateway.openai import sse
from gateway.output.answer import Answer
from gateway.triton.contract import BodyParts
from gateway.triton.generate import Borrower
from gateway.triton.generation import Lent
from gateway.triton.upstreams import Upstreams

if TYPE_CHECKING:
    from gateway_relay import Outcome, Stream
    from gateway_relay import Question as NativeQuestion
    from gateway_relay import Relay as NativeRelay
    from gateway_relay import Telling as NativeTelling

_log = logging.getLogger(__name__)

# Of the package, as it is used here.
_INTERFACE = 2
# To hand a stream over costs about as much as one token the usual way; a shorter answer is not worth it.
_AFTER_TOKENS = 4
# It can be done between two of Triton's chunks. Where no read ends there, asking is given up.
_MOST_TRIES = 16


class Relayed(Protocol):
    """Whoever a stream of the relay belongs to."""

    def go_on(self) -> None:
        """It has ended by itself."""


class Relay:
    """Of one process. `open` in its event loop; until then, and without `gateway_relay`, nothing is relayed."""

    def __init__(self) -> None:
        self.native: NativeRelay | None = None
        self.streams: dict[int, Relayed] = {}
        """By their numbers."""
        self._is_flushed = True

    def open(self) -> None:
        try:
            import gateway_relay
            from gateway_relay import Relay as Native
        except ImportError:
            _log.info("plain streams go through Python: the package gateway_relay is not installed")
            return
        if getattr(gateway_relay, "INTERFACE", 1) != _INTERFACE:
            _log.warning(
                "plain streams go through Python: the package gateway_relay is not of this version of the gateway; "
                "install the one that comes with it (pip install ./gateway_relay)"
            )
            return
        try:
            self.native = Native(metrics.GAPS)
        except OSError as error:
            _log.warning("plain streams go through Python: the native relay does not start: %s", error.strerror)
            return
        loop = asyncio.get_running_loop()
        loop.add_reader(self.native.fileno(), self._on_ended)
        loop.add_reader(self.native.poll_fileno(), self._on_ready)
        _log.info("plain streams go through the native relay")

    def close(self) -> None:
        """Once no stream is open any more."""
        native, self.native = self.native, None
        if native is not None:
            loop = asyncio.get_running_loop()
            loop.remove_reader(native.fileno())
            loop.remove_reader(native.poll_fileno())
            native.close()

    def _on_ready(self) -> None:
        assert self.native is not None
        self._go_on(self.native.poll())

    def _on_ended(self) -> None:
        assert self.native is not None
        self._go_on(self.native.ended())

    def _go_on(self, ended: list[int]) -> None:
        for number in ended:
            if (relayed := self.streams.get(number)) is not None:
                relayed.go_on()

    def asked(self) -> None:
        """Its thread hears of what it is to ask at the end of the loop's turn, since to wake it costs something; of
        many before."""
        assert self.native is not None
        if self._is_flushed and self.native.is_due:
            self._is_flushed = False
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flushed = True
        if self.native is not None:
            self.native.flush()

    def stop(self, stream: "Stream") -> "Outcome":
        """From here on it touches neither the client nor the upstream."""
        assert self.native is not None
        self.streams.pop(stream.number, None)
        return self.native.stop(stream)


def native_telling(telling: sse.Telling | None) -> "NativeTelling | None":
    """None where the relay cannot tell an answer from its beginning."""
    try:
        from gateway_relay import Telling as NativeTelling
    except ImportError:
        return None
    return None if telling is None else NativeTelling(*telling)


def native_question(parts: BodyParts) -> "NativeQuestion | None":
    """Of requests with such bodies; None without the relay."""
    try:
        from gateway_relay import Question as NativeQuestion
    except ImportError:
        return None
    return NativeQuestion(*parts)


def write_rest(client: asyncio.Transport, unsent: bytes) -> None:
    """The end of a chunk of the relay's, ahead of all else."""
    if unsent and not client.is_closing():
        # The client does not read: the next write has to wait for it, as it would with much that the server has not got
        # rid of.
        client.set_write_buffer_limits(0)
        client.write(unsent)
        client.set_write_buffer_limits()


class Errand:
    """A request that the relay asks, and whose answer it tells. `over` is called when it has ended by itself, or when
    no connection was made in time; then, or before, `stop` it. Raises `OSError`.

    `request` goes to one of `upstreams`, which know one; `head` and events that begin with `identity`, as `telling`
    says, to `client`.
    """

    __slots__ = ("_client", "_connects", "_counted", "_lease", "_relay", "_stream", "_upstreams", "go_on")

    def __init__(
        self,
        relay: Relay,
        upstreams: Upstreams,
        request: bytes,
        client: asyncio.Transport,
        head: bytes,
        identity: bytes,
        telling: "NativeTelling",
        lease: Lease,
        over: Callable[[], None],
    ) -> None:
        assert relay.native is not None
        assert upstreams.native is not None
        descriptor: int = client.get_extra_info("socket").fileno()
        try:
            self._stream = relay.native.ask(upstreams.native, request, descriptor, head, identity, telling)
        except OSError:
            upstreams.lost()
            raise
        self._relay = relay
        self._upstreams = upstreams
        self._client = client
        self._lease = lease
        self._counted = 0
        self.go_on = over
        relay.streams[self._stream.number] = self
        relay.asked()
        self._connects = self._stream.is_connecting
        if self._connects:
            upstreams.watch(self)

    @property
    def is_held(self) -> bool:
        """Whether the client keeps it from reading on."""
        return self._stream.is_held

    @property
    def is_connecting(self) -> bool:
        return self._stream.is_connecting

    @property
    def is_finished(self) -> bool:
        """Whether the client may have all of the answer."""
        return self._stream.is_finished

    def count(self) -> int:
        """The tokens so far, which the lease knows now."""
        self._count(self._stream.tokens)
        return self._counted

    def stop(self) -> "Outcome":
        """From here on the relay touches neither the client nor the upstream. Once only."""
        outcome = self._relay.stop(self._stream)
        if self._connects:
            self._upstreams.let_go(self)
            if self._stream.is_connecting:
                self._upstreams.lost()
        if outcome.is_finished:
            self._upstreams.used()
        self._count(outcome.tokens)
        write_rest(self._client, outcome.unsent)
        return outcome

    def _count(self, tokens: int) -> None:
        """`tokens`: all so far."""
        self._lease.tokens += tokens - self._counted
        self._counted = tokens


class Lender(Protocol):
    """A generation, or several of which only one is."""

    def lend(self, borrower: Borrower) -> Lent | None: ...


class Passage:
    """`offer` whenever something was written to the client, and `stop` before anything but the answer is.

    `around` is what stands before and after a text. `answer` is plain, and the only one of `generations`.
    """

    def __init__(
        self,
        relay: Relay,
        client: asyncio.Transport,
        generations: Lender,
        around: tuple[bytes, bytes],
        answer: Answer,
        record: Record,
        lease: Lease,
    ) -> None:
        self._relay = relay
        self._client = client
        self._generations = generations
        self._around = around
        self._answer = answer
        self._record = record
        self._lease = lease
        self._is_over = relay.native is None
        self._is_due = False
        self._tries = 0
        self._stream: Stream | None = None
        self._lent: Lent | None = None
        self._counted = 0

    @property
    def is_held(self) -> bool:
        """Whether the client keeps the relay from reading on."""
        return self._stream is not None and self._stream.is_held

    def offer(self) -> None:
        """The answer may go on in the relay, once what was written is with the client."""
        if not (self._is_over or self._is_due) and self._answer.completion_tokens >= _AFTER_TOKENS:
            self._is_due = True
            # Servers write at the end of the loop's turn, and nothing may overtake that.
            asyncio.get_running_loop().call_soon(self._begin)

    def stop(self) -> bytes:
        """From here on the relay touches neither the client nor the upstream. What it has read of the upstream and not
        passed on. Idempotent."""
        self._is_over = True
        stream = self._stream
        if stream is None or self._relay.native is None:
            return b""
        outcome = self._relay.stop(stream)
        self._stream = self._lease.meter = None
        self._count(outcome.tokens)
        self._answer.relayed(outcome.prompt_tokens, outcome.tokens)
        self._record.relayed(outcome.tokens)
        self._record.gaps(self._answer.index, outcome.tally, outcome.gap_sum, outcome.last)
        write_rest(self._client, outcome.unsent)
        return outcome.rest

    def go_on(self) -> None:
        """The relay has come to something that is not its own: the usual way from there on."""
        lent, rest = self._lent, self.stop()
        assert lent is not None
        lent.give_back(rest)

    def _begin(self) -> None:
        self._is_due = False
        native = self._relay.native
        # Where it cannot be, it is tried again when more has been written.
        if self._is_over or native is None or self._client.is_closing() or self._client.get_write_buffer_size():
            return
        self._tries += 1
        self._is_over = self._tries == _MOST_TRIES
        lent = self._generations.lend(self)
        if lent is None:
            return
        # Once only: a stream that the relay does not understand would cost more with it than without.
        self._is_over = True
        client: int = self._client.get_extra_info("socket").fileno()
        last = self._record.last_tokens_at(self._answer.index)
        try:
            self._stream = native.start(lent.fileno(), client, *self._around, last)
        except OSError as error:
            _log.warning("a stream could not be relayed: %s", error.strerror)
            lent.give_back(b"")
            return
        self._lent = lent
        self._relay.streams[self._stream.number] = self
        self._lease.meter = self._meter

    def _meter(self) -> None:
        if self._stream is not None:
            self._count(self._stream.tokens)

    def _count(self, tokens: int) -> None:
        """`tokens`: all that were relayed so far."""
        self._lease.tokens += tokens - self._counted
        self._counted = tokens
