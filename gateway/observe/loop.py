"""How a worker itself is: how late its event loop is, and what CPU time it takes."""

import asyncio
import time

from gateway.observe import metrics

_INTERVAL_S = 0.25


async def watch(worker: int) -> None:
    """Until cancelled. A loop that is late is late for every token of every stream."""
    loop = asyncio.get_running_loop()
    delays = metrics.event_loop_delay_seconds.labels(str(worker))
    cpu = metrics.worker_cpu_seconds_total.labels(str(worker))
    spent = 0.0
    while True:
        due = loop.time() + _INTERVAL_S
        await asyncio.sleep(_INTERVAL_S)
        delays.observe(max(0.0, loop.time() - due))
        now = time.process_time()
        cpu.inc(now - spent)
        spent = now
