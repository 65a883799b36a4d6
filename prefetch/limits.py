"""What all jobs of a process share: how many requests are in flight and how many bytes per second are read."""

import threading
import time

from prefetch.errors import Cancelled


class Limits:
    """Safe for threads."""

    def __init__(self, concurrency: int, bytes_per_second: int | None = None) -> None:
        self.concurrency = concurrency
        self._slots = threading.BoundedSemaphore(concurrency)
        self._rate = bytes_per_second
        self._lock = threading.Lock()
        self._next = 0.0  # when the bytes granted so far will have been read at that rate

    def take(self, stop: threading.Event) -> None:
        """Wait for a slot. Raises Cancelled when `stop` is set."""
        while not self._slots.acquire(timeout=0.5):
            if stop.is_set():
                raise Cancelled

    def give_back(self) -> None:
        self._slots.release()

    def pace(self, amount: int, stop: threading.Event) -> None:
        """Before reading `amount` bytes: wait for their turn. Returns at once when `stop` is set."""
        if self._rate is None:
            return
        with self._lock:
            begin = max(self._next, time.monotonic())
            self._next = begin + amount / self._rate
        stop.wait(begin - time.monotonic())
