"""Noticing that a client has gone away: the requests that are open, and the sweep that asks Triton about each.

Triton's `is_cancelled()` on a response sender whose final flag was sent ends the whole server with signal 11. So a
sender is reached only through `Channel`, whose lock lies around both. No vLLM here, and no Triton but the sender that
is handed in."""

import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

SWEEP_INTERVAL = 0.05
"""Seconds from the start of one sweep to the start of the next, unless there are too many requests: a cancellation is
seen in about half of it, at most in all of it."""

SWEEP_SHARE = 0.02
"""Of a processor that a sweep's own thread may take; what else it costs is about as much again. A question is three
switches between threads, 60 µs of processor in all here: asked every 50 ms, a thousand open requests would take more
than a processor."""

BATCHED_SWEEP_SHARE = 0.002
"""The same for the requests of batched egress, whose tokens cost little, and whose clients can say what they cancel."""

_SHORTEST_PAUSE = 0.01
"""Seconds between two sweeps when one takes longer than the interval."""


class ResponseSender(Protocol):
    """The response sender of Triton's Python backend."""

    def send(self, response: Any = None, flags: int = 0) -> None: ...

    def is_cancelled(self) -> bool: ...


class Channel:
    """The way back to the client of one request, for any thread."""

    def __init__(self, sender: ResponseSender, final_flag: int) -> None:
        self._sender = sender
        self._final_flag = final_flag
        self._lock = threading.Lock()
        self._finished = False

    def send(self, response: Any) -> None:
        """Sends a response that is not the last one; nothing once the channel is finished."""
        with self._lock:
            if not self._finished:
                self._sender.send(response)

    def finish(self, response: Any = None) -> None:
        """Sends the final flag, with the last response if there is one. A second call does nothing."""
        with self._lock:
            if self._finished:
                return
            self._finished = True
            if response is None:
                self._sender.send(flags=self._final_flag)
            else:
                self._sender.send(response, flags=self._final_flag)

    def is_cancelled(self) -> bool:
        """Whether the client has gone away; False once the channel is finished."""
        with self._lock:
            return not self._finished and self._sender.is_cancelled()


class Sweeper:
    """One thread that asks for every open channel, `SWEEP_INTERVAL` apart, whether its client is still there; further
    apart where there are so many that it would take more than its share of a processor."""

    def __init__(self, share: float = SWEEP_SHARE) -> None:
        self._share = share
        self._open: dict[Channel, Callable[[], object]] = {}
        self._lock = threading.Lock()
        self._next = threading.Event()
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name="cancellation-sweep", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_stopped = True
        self._next.set()
        self._thread.join()

    def hurry(self) -> None:
        """The next sweep is now: a client seems to have left with all its requests."""
        self._next.set()

    def watch(self, channel: Channel, on_cancel: Callable[[], object]) -> None:
        """Calls `on_cancel` once, from the sweep's thread, when the channel's client has gone away."""
        with self._lock:
            self._open[channel] = on_cancel

    def forget(self, channel: Channel) -> None:
        with self._lock:
            self._open.pop(channel, None)

    def _run(self) -> None:
        pause = SWEEP_INTERVAL
        while True:
            self._next.wait(pause)
            self._next.clear()
            if self._is_stopped:
                return
            began, cpu = time.monotonic(), time.thread_time()
            with self._lock:
                channels = list(self._open.items())
            for channel, on_cancel in channels:
                if channel.is_cancelled():
                    self.forget(channel)
                    on_cancel()
            cost = time.thread_time() - cpu
            pause = max(SWEEP_INTERVAL - (time.monotonic() - began), cost / self._share, _SHORTEST_PAUSE)
