"""The sweep, against a response sender that, like Triton's, must not be asked after its final flag."""

import threading
import time
from functools import partial
from typing import Any

import pytest

from vllm_backend.cancel import SWEEP_INTERVAL, SWEEP_SHARE, Channel, Sweeper

FINAL = 1


class Sender:
    """Counts what reaches it; a question after the final flag, which would end tritonserver, is recorded."""

    def __init__(self) -> None:
        self.sent: list[tuple[Any, int]] = []
        self.cancelled = False
        self.asked = 0
        self.asked_after_final = False

    def send(self, response: Any = None, flags: int = 0) -> None:
        # Long enough for a sweep to come in between.
        time.sleep(0.001)
        self.sent.append((response, flags))

    def is_cancelled(self) -> bool:
        self.asked += 1
        self.asked_after_final |= any(flags == FINAL for _, flags in self.sent)
        return self.cancelled


def test_a_channel_is_finished_once() -> None:
    sender = Sender()
    channel = Channel(sender, FINAL)
    channel.send("a")
    channel.finish("b")
    channel.finish("c")
    assert sender.sent == [("a", 0), ("b", FINAL)]
    assert not channel.is_cancelled()
    assert sender.asked == 0


def test_a_channel_can_end_without_a_response() -> None:
    sender = Sender()
    Channel(sender, FINAL).finish()
    assert sender.sent == [(None, FINAL)]


@pytest.fixture
def sweeper() -> Any:
    sweeper = Sweeper()
    sweeper.start()
    yield sweeper
    sweeper.stop()


def test_a_cancellation_is_reported_once_and_soon(sweeper: Sweeper) -> None:
    senders = [Sender() for _ in range(50)]
    seen: dict[int, float] = {}
    done = threading.Event()

    def on_cancel(number: int) -> None:
        assert number not in seen
        seen[number] = time.monotonic()
        if len(seen) == 2:
            done.set()

    for number, sender in enumerate(senders):
        sweeper.watch(Channel(sender, FINAL), partial(on_cancel, number))
    senders[7].cancelled = senders[49].cancelled = True
    assert done.wait(30)
    assert set(seen) == {7, 49}
    time.sleep(3 * SWEEP_INTERVAL)
    assert set(seen) == {7, 49}


def test_a_forgotten_channel_is_not_asked(sweeper: Sweeper) -> None:
    sender = Sender()
    channel = Channel(sender, FINAL)
    sweeper.watch(channel, lambda: None)
    sweeper.forget(channel)
    time.sleep(3 * SWEEP_INTERVAL)
    assert sender.asked <= 1


def test_the_sweep_leaves_the_processor_to_others(sweeper: Sweeper) -> None:
    class Costly(Sender):
        def is_cancelled(self) -> bool:
            began = time.thread_time()
            while time.thread_time() - began < COST:
                pass
            if super().is_cancelled() or self.asked == 4:
                done.set()
            return False

    done = threading.Event()
    began = time.monotonic()
    sweeper.watch(Channel(Costly(), FINAL), lambda: None)
    assert done.wait(60)
    assert time.monotonic() - began > 3 * COST / SWEEP_SHARE


def test_a_sweep_that_is_to_come_soon() -> None:
    """However much it takes."""
    slow = Sweeper(share=1e-9)
    slow.start()
    sender, done = Sender(), threading.Event()
    slow.watch(Channel(sender, FINAL), done.set)
    while not sender.asked:
        time.sleep(0.01)
    sender.cancelled = True
    slow.hurry()
    assert done.wait(60)
    slow.stop()


COST = 0.003
"""Seconds of a processor that one question takes."""


def test_a_finished_channel_is_never_asked() -> None:
    """Sweeps and final sends at the same time, many times over, from two threads."""
    senders = [Sender() for _ in range(300)]
    channels = [Channel(sender, FINAL) for sender in senders]
    stop = threading.Event()

    def sweep() -> None:
        while not stop.is_set():
            for channel in channels:
                channel.is_cancelled()

    thread = threading.Thread(target=sweep)
    thread.start()
    for channel in channels:
        channel.finish("last")
    stop.set()
    thread.join()
    assert sum(sender.asked for sender in senders) > 0
    assert not any(sender.asked_after_final for sender in senders)
