"""How many frontend processes are worth running, and their memory: from what a request and a token cost. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from bench.diagnose.measured import Process, Regime, Step

# Of a core per process, on average, so that a burst finds room.
_BUSY = 0.7


@dataclass(frozen=True)
class Plan:
    """`processes` are worth running, where `running` worked in the measurement; `needed` may be more than the machine's
    `cores` allow. `rss` is that of one of them, in bytes, and `per_stream` what an open stream adds; `per_request` and
    `per_token` are seconds of processor time, None where they were not measured. `for_what`: the load they are for."""

    running: int
    needed: int
    cores: int
    rss: int
    per_stream: float
    per_request: float | None
    per_token: float | None
    for_what: str

    @property
    def processes(self) -> int:
        return min(self.needed, self.cores)

    @property
    def memory(self) -> int:
        return self.processes * self.rss


def plan(steps: Sequence[Step], idle: Sequence[Process], cores: int) -> Plan | None:
    """From the steps of all regimes and the frontend before the load; None where its processes were not seen.

    The load to plan for is that of the most streams measured, each as fast as a single stream was, or, where the engine
    says its own time between tokens, as that allows: what an ideal frontend would let through.
    """
    needs = []
    costs: dict[Regime, float] = {}
    for regime in Regime:
        own = [step for step in steps if step.regime is regime and step.is_clean and step.serving]
        if own:
            last = own[-1]
            used = sum(process.on_cpu for process in last.serving)
            costs[regime] = used / last.rate if last.rate > 0 else 0.0
            needs.append((costs[regime] * _ideal_rate(own), last))
    if not needs:
        return None
    cpu, largest = max(needs, key=lambda need: need[0])
    before = {process.pid: process.rss for process in idle}
    working = [process for process in largest.serving if process.wanted > 0.02] or list(largest.serving)
    grown = sum(max(0, one.rss - before[one.pid]) for one in largest.serving if one.pid in before)
    return Plan(
        running=len(working),
        needed=max(1, math.ceil(cpu / _BUSY)),
        cores=cores,
        rss=max(process.rss for process in working),
        per_stream=grown / largest.concurrency,
        per_request=costs.get(Regime.PREPROCESS),
        per_token=costs.get(Regime.DECODE),
        for_what=f"{largest.concurrency} {largest.regime} streams, each as fast as one alone",
    )


def _ideal_rate(steps: Sequence[Step]) -> float:
    first, last = steps[0], steps[-1]
    alone = first.rate / first.concurrency
    engine = last.engine
    if last.regime is Regime.DECODE and engine is not None and engine.itl:
        alone = min(alone, 1 / engine.itl)
    return max(last.rate, alone * last.concurrency)


def sentences(found: Plan) -> list[str]:
    """As the terminal and the report show it."""
    costs = []
    if found.per_request is not None:
        costs.append(f"{found.per_request * 1e6:,.0f} µs per long request")
    if found.per_token is not None:
        costs.append(f"{found.per_token * 1e6:,.0f} µs per token")
    count = f"{found.processes} frontend process{'es' if found.processes > 1 else ''}"
    worth = f"{count} for {found.for_what}"
    if found.needed > found.cores:
        worth = f"{count}, as many as this machine has cores; {found.needed} would be for {found.for_what}"
    return [
        f"Worth running: {worth}. {found.running} worked in the measurement.",
        f"The frontend's processor time: {', '.join(costs)}.",
        f"Memory: {found.processes} x {found.rss / 2**20:,.0f} MiB = {found.memory / 2**20:,.0f} MiB; an open stream "
        f"added {found.per_stream / 1024:,.0f} KiB.",
    ]
