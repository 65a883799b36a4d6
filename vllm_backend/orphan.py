"""No engine outlives its server. No vLLM here, and no Triton.

tritonserver can end without calling `finalize()`: killed, crashed, or at its exit timeout while a stream is open. The
Python backend's stub process then lives on, and its engine with it, holding the accelerator's memory and computing
answers for nobody."""

import multiprocessing
import os
import threading
import time

_INTERVAL = 1.0
"""Seconds between two looks at the parent."""

_GRACE = 5.0
"""Seconds for the engine's processes to end before they are killed."""


def end_with_parent() -> None:
    """Ends this process and its children soon after its parent has gone.

    A thread that asks, and not the kernel's parent-death signal: that one comes when the parent's *thread* ends that
    started this process, and tritonserver starts it from a thread that ends with the loading of the model."""
    parent = os.getppid()
    threading.Thread(target=_watch, args=(parent,), name="parent-watch", daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_INTERVAL)
    children = multiprocessing.active_children()
    for child in children:
        child.terminate()
    deadline = time.monotonic() + _GRACE
    for child in children:
        child.join(max(0.0, deadline - time.monotonic()))
        child.kill()
    # Other threads may wait for an answer of the server for ever.
    os._exit(1)
