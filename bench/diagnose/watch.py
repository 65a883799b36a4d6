"""Samples everything that is watched while a load runs, and makes of two moments what happened between them."""

import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from bench.diagnose import engine_metrics, gpu, procfs
from bench.diagnose.frontend import Frontend, is_engine, short_name
from bench.diagnose.measured import Engine, Process, Thread
from devtools.errors import DevError

# Seconds between samples: some for the shortest step, at a cost that the load tool does not feel.
_INTERVAL = 0.5
# A page of metrics and a run of nvidia-smi cost others more: they are for every second sample.
_SLOW = 2
# How many of the machine's other processes are shown, and from which share of a core on.
_OTHERS, _LEAST_SHARE = 5, 0.05


@dataclass(frozen=True)
class Sample:
    """Of one moment."""

    snapshot: procfs.Snapshot
    reading: engine_metrics.Reading | None
    gpu: float | None


@dataclass(frozen=True)
class Seen:
    """What happened between two moments. `client`: the share of a core that the load tool's busiest process used."""

    frontend: Sequence[Process]
    client: float
    cores: Sequence[float]
    others: Sequence[Process]
    engine: Engine | None
    gpu: float | None


class Watcher:
    """`with Watcher(…) as watcher:` samples in a thread of its own; `seen` says what happened."""

    def __init__(self, frontend: Frontend, metrics_url: str | None, model: str) -> None:
        self._frontend = frontend
        self._metrics_url = metrics_url
        self._model = model
        self._samples: list[Sample] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="watch")

    def __enter__(self) -> "Watcher":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            self._samples.append(self._sample())
            if self._stop.wait(_INTERVAL):
                return

    def _sample(self) -> Sample:
        own = procfs.descendants([os.getpid()])
        shot = procfs.snapshot(self._frontend.pids() | own)
        if len(self._samples) % _SLOW:
            return Sample(shot, None, None)
        return Sample(shot, self._reading(), gpu.utilization())

    def _reading(self) -> engine_metrics.Reading | None:
        if self._metrics_url is None:
            return None
        try:
            page = engine_metrics.fetch(self._metrics_url)
        except DevError:
            # It answered when the diagnosis began; a page that is late once is not missed.
            return None
        return engine_metrics.read(page, self._model, time.monotonic())

    def seen(self, begin: float, end: float) -> Seen | None:
        """Between two moments, in monotonic seconds; None if fewer than two samples are from then."""
        samples = [sample for sample in list(self._samples) if begin <= sample.snapshot.at <= end]
        if len(samples) < 2:
            return None
        first, last = samples[0].snapshot, samples[-1].snapshot
        frontend, own = self._frontend.pids(), procfs.descendants([os.getpid()])
        # One may have started the other.
        serving = processes(first, last, frontend - own if os.getpid() in frontend else frontend)
        client = processes(first, last, own if os.getpid() in frontend else own - frontend)
        gpus = [sample.gpu for sample in samples if sample.gpu is not None]
        return Seen(
            frontend=serving,
            client=max((process.on_cpu for process in client), default=0.0),
            cores=core_shares(first, last),
            others=_others(first, last, frontend | own),
            engine=engine_metrics.between([sample.reading for sample in samples if sample.reading is not None]),
            gpu=sum(gpus) / len(gpus) if gpus else None,
        )


def processes(first: procfs.Snapshot, last: procfs.Snapshot, pids: set[int]) -> list[Process]:
    """The shares of those that are in the later snapshot; a thread that is new since the first began from nothing."""
    span = last.at - first.at
    found = []
    for pid in sorted(pids & last.processes.keys()):
        now, before = last.processes[pid], first.processes.get(pid)
        threads = []
        for tid, counter in now.threads.items():
            earlier = before.threads.get(tid) if before is not None else None
            on_cpu = counter.on_cpu - (earlier.on_cpu if earlier else 0.0)
            waited = counter.waited - (earlier.waited if earlier else 0.0)
            threads.append(Thread(counter.name, on_cpu / span, (on_cpu + waited) / span))
        # Which program another user's process runs is not told.
        is_python = "python" in (now.program or now.command.partition(" ")[0]).rpartition("/")[2]
        name = short_name(now.command, now.program)
        found.append(Process(pid, name, threads, now.rss, is_python, is_engine(now.command)))
    return found


def core_shares(first: procfs.Snapshot, last: procfs.Snapshot) -> list[float]:
    shares = []
    for (busy_before, before), (busy, total) in zip(first.cores, last.cores, strict=False):
        shares.append((busy - busy_before) / (total - before) if total > before else 0.0)
    return shares


def _others(first: procfs.Snapshot, last: procfs.Snapshot, known: set[int]) -> list[Process]:
    """The machine's busiest processes that are neither the frontend's nor the load tool's; of a process that has ended
    since nothing is known."""
    span = last.at - first.at
    shares = {
        pid: (total - first.totals[pid]) / span
        for pid, total in last.totals.items()
        if pid in first.totals and pid not in known
    }
    found = []
    for pid, share in sorted(shares.items(), key=lambda item: -item[1])[:_OTHERS]:
        if share < _LEAST_SHARE:
            break
        try:
            counter = procfs.process(pid)
        except (OSError, ValueError, IndexError):
            continue
        name = short_name(counter.command, counter.program)
        whole = Thread("all threads", share, share)
        found.append(Process(pid, name, [whole], counter.rss, is_engine=is_engine(counter.command)))
    return found
