"""The native relay: what comes of a plain stream goes from Triton's socket to the client's without Python.

`gateway_relay`, a distribution of its own, does it in a thread in C++, where it is installed; the bytes are the same
without it. A `Passage` is one answer's way into it and back: the head, the first events, the last ones and whatever the
relay does not understand go the usual way, through `gateway.triton.generate` and the sink.
"""

import asyncio
import logging
from typing import TYPE_CHECKING, Protocol

from gateway.desk.front import Lease
from gateway.observe import metrics
from gateway.observe.record import Record
from gateway.output.answer import Answer
from gateway.triton.generate import Borrower
from gateway.triton.generation import Lent

if TYPE_CHECKING:
    from gateway_relay import Relay as NativeRelay
    from gateway_relay import Stream

_log = logging.getLogger(__name__)

# To hand a stream over costs about as much as one token the usual way; a shorter answer is not worth it.
_AFTER_TOKENS = 4
# It can be done between two of Triton's chunks. Where no read ends there, asking is given up.
_MOST_TRIES = 16


class Relay:
    """Of one process. `open` in its event loop; until then, and without `gateway_relay`, nothing is relayed."""

    def __init__(self) -> None:
        self.native: NativeRelay | None = None
        self.passages: dict[int, Passage] = {}
        """By the numbers of their streams."""

    def open(self) -> None:
        try:
            from gateway_relay import Relay as NativeRelay
        except ImportError:
            _log.info("plain streams go through Python: the package gateway_relay is not installed")
            return
        try:
            self.native = NativeRelay(metrics.GAPS)
        except OSError as error:
            _log.warning("plain streams go through Python: the native relay does not start: %s", error.strerror)
            return
        asyncio.get_running_loop().add_reader(self.native.fileno(), self._on_ended)
        _log.info("plain streams go through the native relay")

    def close(self) -> None:
        """Once no stream is open any more."""
        native, self.native = self.native, None
        if native is not None:
            asyncio.get_running_loop().remove_reader(native.fileno())
            native.close()

    def _on_ended(self) -> None:
        assert self.native is not None
        for number in self.native.ended():
            if (passage := self.passages.get(number)) is not None:
                passage.go_on()


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
        stream, native = self._stream, self._relay.native
        if stream is None or native is None:
            return b""
        outcome = native.stop(stream)
        self._stream = self._lease.meter = None
        del self._relay.passages[stream.number]
        self._count(outcome.tokens)
        self._answer.relayed(outcome.prompt_tokens, outcome.tokens)
        self._record.relayed(self._answer.index, outcome.tally, outcome.gap_sum, outcome.last)
        if outcome.unsent and not self._client.is_closing():
            # The end of a chunk, ahead of all else. The client does not read: the next write has to wait for it, as it
            # would with much that the server has not got rid of.
            self._client.set_write_buffer_limits(0)
            self._client.write(outcome.unsent)
            self._client.set_write_buffer_limits()
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
        self._relay.passages[self._stream.number] = self
        self._lease.meter = self._meter

    def _meter(self) -> None:
        if self._stream is not None:
            self._count(self._stream.tokens)

    def _count(self, tokens: int) -> None:
        """`tokens`: all that were relayed so far."""
        self._lease.tokens += tokens - self._counted
        self._counted = tokens
