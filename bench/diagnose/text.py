"""The diagnosis for the terminal. Pure."""

from bench.diagnose.diagnosis import Diagnosis
from bench.diagnose.measured import Process, Regime, Step, Thread
from bench.diagnose.plan import sentences
from bench.diagnose.run import Warm
from bench.diagnose.verdict import milliseconds

_THREADS = 3
_LEAST = 0.02

HEADER = (
    f"{'streams':>9}{'answers':>9}{'failed':>8}{'req/s':>9}{'tok/s':>9}{'TTFT p50':>11}{'p99':>10}"
    f"{'ITL mean':>10}{'p99':>10}{'frontend':>10}{'load':>7}"
)


def row(step: Step) -> str:
    """Under HEADER. `frontend` is its busiest thread, `load` the load tool's busiest process, of a core."""
    thread = max((process.busiest.wanted for process in step.serving), default=None)
    return (
        f"{step.concurrency:>9}{step.completed:>9}{step.failed:>8}{step.requests_per_second:>9,.1f}"
        f"{step.tokens_per_second:>9,.0f}{milliseconds(step.ttft.p50):>11}{milliseconds(step.ttft.p99):>10}"
        f"{milliseconds(step.itl.mean):>10}{milliseconds(step.itl.p99):>10}"
        f"{'unseen' if thread is None else f'{thread:.0%}':>10}{step.client:>7.0%}"
    )


def warmed(warm: Warm) -> str:
    size = f"prompts of {warm.prompt_bytes:,} bytes" if warm.regime is Regime.PREPROCESS else "short prompts"
    return (
        f"{warm.regime}: {size}; time to the first token {milliseconds(warm.cold)} the first time, "
        f"{milliseconds(warm.warm)} the second."
    )


def processes(step: Step) -> list[str]:
    """What each process, its busiest threads and each core did."""
    lines = []
    for process in step.frontend or ():
        if process.wanted < _LEAST and len(step.frontend or ()) > 4:
            continue
        role = ", engine" if process.is_engine else ""
        lines.append(
            f"  {process.pid:>8}  {process.name}{role}: {process.on_cpu:.0%} of a core used, "
            f"{process.rss / 2**20:,.0f} MiB, {len(process.threads)} threads"
        )
        lines += [
            f"            {thread.name}: {thread.on_cpu:.0%} used, {thread.wanted:.0%} wanted"
            for thread in _busy(process)
        ]
    if step.others:
        others = ", ".join(f"{one.name} ({one.pid}) {one.on_cpu:.0%}" for one in step.others)
        lines.append(f"  others on this machine: {others}")
    if step.cores:
        lines.append(f"  cores: {' '.join(f'{share:.0%}' for share in step.cores)}")
    if step.gpu is not None:
        lines.append(f"  GPU: {step.gpu:.0%}")
    return lines


def _busy(process: Process) -> list[Thread]:
    busy = sorted(process.threads, key=lambda thread: -thread.wanted)
    return [thread for thread in busy[:_THREADS] if thread.wanted >= _LEAST]


def conclusion(found: Diagnosis) -> list[str]:
    """What the terminal shows last: the watched processes, the plan, and the verdict."""
    lines = []
    for regime, judged in found.regimes.items():
        if judged.step is not None:
            lines += [f"{regime}, {judged.step.concurrency} streams:", *processes(judged.step), ""]
    if found.unseen:
        lines += [f"The frontend's CPU is not seen: {found.unseen}.", ""]
    if found.plan is not None:
        lines += ["Capacity plan", *(f"  {sentence}" for sentence in sentences(found.plan)), ""]
    lines += ["Evidence", *(f"  {sentence}" for sentence in found.verdict.evidence), ""]
    if found.verdict.missing:
        lines += [f"What would make it sure: {'; '.join(found.verdict.missing)}.", ""]
    return [*lines, found.verdict.sentence]
