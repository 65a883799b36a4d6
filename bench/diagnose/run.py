"""The diagnosis itself: warms the engine's prefix cache, then climbs the steps of each regime while everything is
watched."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from bench.diagnose import procfs
from bench.diagnose.frontend import Frontend
from bench.diagnose.measured import Latency, Process, Regime, Step
from bench.diagnose.watch import Seen, Watcher, processes
from bench.load.check import Outcome
from bench.load.report import Distribution, Objectives, distribution, report
from bench.load.run import ClosedLoop, Limit, Progress, Run, Target, run_in_processes
from bench.load.workloads import Shape, Workload, workload
from bench.served import Unreachable
from bench.status_line import StatusLine

# The part of a step, at its beginning, in which streams begin together as they never do later.
_SETTLING = 0.2
# Prompts of a regime: few enough for the prefix cache of a small engine.
_PROMPTS = 8
_WARMING = 4
# Bytes of a short prompt, and those below which none is long.
_SHORT_PROMPT, _SHORTEST = 200, 500
_NAMES = {Regime.PREPROCESS: "preprocess", Regime.DECODE: "decode"}


@dataclass(frozen=True)
class Settings:
    """`seconds` are those of each step; `prompt_bytes` of a long prompt, `answer_tokens` of a long answer; `processes`
    send the load."""

    target: Target
    model: str
    concurrency: Sequence[int]
    seconds: float
    prompt_bytes: int
    answer_tokens: int
    processes: int
    metrics_url: str | None = None


@dataclass(frozen=True)
class Warm:
    """What the warm-up showed. `prompt_bytes` is what the server took; `cold` and `warm` are the medians of the time to
    the first token of a prompt's first and second time, in seconds."""

    regime: Regime
    prompt_bytes: int
    cold: float
    warm: float


_QUICKER = "--concurrency 1,8 --seconds 4 --prompt-bytes 500 --answer-tokens 16"


def measure(settings: Settings, frontend: Frontend, line: StatusLine) -> Iterator[Warm | Step | Sequence[Process]]:
    """First the warm-up of each regime and the frontend at rest, then each step. Raises Unreachable where the server
    answers nothing, KeyboardInterrupt after Ctrl-C. A step whose requests fail is the regime's last."""
    loads = {}
    for regime in Regime:
        loads[regime], warm = _warmed(settings, regime, line)
        yield warm
    yield at_rest(frontend)
    with Watcher(frontend, settings.metrics_url, settings.model) as watcher:
        for regime, load in loads.items():
            for concurrency in settings.concurrency:
                step = _step(settings, regime, load, concurrency, watcher, line, frontend)
                yield step
                if not step.is_clean:
                    break


def at_rest(frontend: Frontend) -> list[Process]:
    """The frontend's processes and their memory, without a load."""
    shot = procfs.snapshot(frontend.pids())
    return processes(replace(shot, at=shot.at - 1), shot, set(shot.processes))


class _WarmingShown:
    """How far a regime's warm-up is, and once that it will take long."""

    def __init__(self, settings: Settings, regime: Regime, line: StatusLine) -> None:
        self._seconds = settings.seconds
        self._title = f"{regime}: warming the prefix cache"
        self._line = line
        self._began = time.monotonic()
        self._is_told = False
        line.say(self._title)

    def of(self, before: int) -> Callable[[Progress], None]:
        """Of a pass over the prompts that has so many requests ahead of it."""

        asked = time.monotonic()

        def show(progress: Progress) -> None:
            nonlocal asked
            now = time.monotonic()
            if not progress.begun:
                asked = now
            if progress.ended == 0 and now - asked > self._seconds and not self._is_told:
                self._is_told = True
                self._line.note(
                    f"One answer takes longer than a step of {self._seconds:g} s, so that this will take long; "
                    f"quicker: {_QUICKER}"
                )
            done = f"{before + progress.ended} of {2 * _PROMPTS} requests, {now - self._began:.0f} s"
            self._line.say(f"{self._title}, {done}")

        return show


def _warmed(settings: Settings, regime: Regime, line: StatusLine) -> tuple[Workload, Warm]:
    """Every prompt twice, in the first of the regime's shapes that the server takes."""
    error = ""
    shown = _WarmingShown(settings, regime, line)
    for shape in _shapes(settings, regime):
        load = workload(_NAMES[regime], settings.model, shapes={_NAMES[regime]: shape}, prompts=_PROMPTS)
        every = Limit(requests=len(load.requests))
        first = _run(settings, load, _WARMING, every, shown.of(0))
        if any(outcome.is_right for outcome in first.outcomes):
            again = _run(settings, load, _WARMING, every, shown.of(_PROMPTS))
            return load, Warm(regime, shape.prompt_bytes, _median(first.outcomes), _median(again.outcomes))
        error = first.outcomes[0].error if first.outcomes else "no answer"
        if not any(outcome.status in (200, 400, 413, 422) for outcome in first.outcomes):
            break
    raise Unreachable(f"{settings.target.url} answers no {regime} request: {error}")


def _shapes(settings: Settings, regime: Regime) -> Iterator[Shape]:
    """Long prompts, each half as long as the one before; long answers, which vLLM can be told not to end early."""
    if regime is Regime.DECODE:
        yield Shape(_SHORT_PROMPT, settings.answer_tokens, ignore_eos=True)
        yield Shape(_SHORT_PROMPT, settings.answer_tokens)
        return
    size = settings.prompt_bytes
    while size >= min(settings.prompt_bytes, _SHORTEST):
        yield Shape(size, 1)
        size //= 2


def _median(outcomes: Sequence[Outcome]) -> float:
    found = distribution(outcome.ttft for outcome in outcomes if outcome.is_right and outcome.ttft is not None)
    return found.p50 if found else 0.0


def _run(
    settings: Settings,
    load: Workload,
    concurrency: int,
    limit: Limit,
    show: Callable[[Progress], None],
) -> Run:
    """Raises KeyboardInterrupt after Ctrl-C: half a step shows nothing."""
    sending = min(settings.processes, concurrency)
    done = run_in_processes(settings.target, load, ClosedLoop(concurrency), limit, sending, show)
    if done.is_interrupted:
        raise KeyboardInterrupt
    return done


def _step(
    settings: Settings,
    regime: Regime,
    load: Workload,
    concurrency: int,
    watcher: Watcher,
    line: StatusLine,
    frontend: Frontend,
) -> Step:
    def show(progress: Progress) -> None:
        wrong = f", {progress.wrong} failed" if progress.wrong else ""
        line.say(f"{regime}, {concurrency} streams: {progress.ended} answers{wrong}, {progress.tokens} tokens")

    line.say(f"{regime}, {concurrency} streams: starting")
    done = _run(settings, load, concurrency, Limit(seconds=settings.seconds), show)
    began = min((outcome.began for outcome in done.outcomes), default=time.monotonic())
    # The load's clock and the watcher's are the same one, CLOCK_MONOTONIC.
    window = (began + _SETTLING * settings.seconds, began + settings.seconds)
    return made_step(regime, concurrency, done, window, watcher.seen(*window), bool(frontend.roots))


def made_step(
    regime: Regime, concurrency: int, done: Run, window: tuple[float, float], seen: Seen | None, frontend_is_seen: bool
) -> Step:
    """From the load's outcomes and what was seen in `window`, in monotonic seconds. Rates are those inside the window,
    so that neither the beginning, in which all streams begin at once, nor the end, in which they run out, counts."""
    begin, end = window
    right = [outcome for outcome in done.outcomes if outcome.is_right]
    settled = [outcome for outcome in right if outcome.began >= begin] or right
    wrong = [outcome for outcome in done.outcomes if not outcome.is_right]
    notes = report(done, Objectives()).notes
    return Step(
        regime=regime,
        concurrency=concurrency,
        seconds=end - begin,
        completed=len(right),
        failed=len(wrong),
        first_error=wrong[0].error if wrong else "",
        requests_per_second=sum(begin <= outcome.ended < end for outcome in right) / (end - begin),
        tokens_per_second=sum(_tokens_inside(outcome, begin, end) for outcome in right) / (end - begin),
        ttft=_latency(distribution(outcome.ttft for outcome in settled if outcome.ttft is not None)),
        itl=_latency(distribution(gap for outcome in settled for gap in outcome.gaps)),
        client=done.cpu_share if seen is None else seen.client,
        frontend=seen.frontend if seen is not None and frontend_is_seen else None,
        cores=() if seen is None else seen.cores,
        others=() if seen is None else seen.others,
        engine=None if seen is None else seen.engine,
        gpu=None if seen is None else seen.gpu,
        notes=notes,
    )


def _tokens_inside(outcome: Outcome, begin: float, end: float) -> float:
    """An event of a stream counts as its part of the answer's tokens."""
    if outcome.ttft is None or not outcome.chunks:
        return 0.0
    at = outcome.began + outcome.ttft
    events = int(begin <= at < end)
    for gap in outcome.gaps:
        at += gap
        events += begin <= at < end
    return events * outcome.tokens / outcome.chunks


def _latency(found: Distribution | None) -> Latency:
    return Latency(0.0, 0.0, 0.0) if found is None else Latency(found.mean, found.p50, found.p99)


def default_processes() -> int:
    """Of the load tool: a quarter of the machine at most, and no more than any frontend needs."""
    return max(1, min(4, (os.cpu_count() or 1) // 4))
