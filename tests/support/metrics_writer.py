"""Processes that write a Prometheus multiprocess directory, with prometheus_client's own code.

`Writer` is one in the test's process, under any pid. Run as a program, this file is one of its own, that holds the lock
of this project's backend if it is told to: `python -m tests.support.metrics_writer DIR [--alive]`. It writes, says
"ready" and then does what comes in on its standard input: a number is added to its counter, "end" ends it.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import prometheus_client.values
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.values import MultiProcessValue

from devtools.paths import ROOT

LABELS = {"model_name": "m", "engine": "0"}
BUCKETS = (0.1, 1.0, 10.0)


class Writer:
    """Metrics like vLLM's, of a process with this pid: a counter, a gauge that keeps the latest value, a histogram."""

    def __init__(
        self,
        directory: Path,
        pid: int,
        *,
        labels: dict[str, str] = LABELS,
        buckets: Sequence[float] = BUCKETS,
        gauge_mode: Any = "mostrecent",
    ) -> None:
        self._registry = CollectorRegistry()
        names = list(labels)
        values = list(labels.values())
        with _writing(directory, pid):
            self.tokens = Counter("vllm:generation_tokens", "Tokens.", names, registry=self._registry).labels(*values)
            self.waiting = Gauge(
                "vllm:num_requests_waiting", "Waiting.", names, registry=self._registry, multiprocess_mode=gauge_mode
            ).labels(*values)
            self.usage = Gauge(
                "vllm:kv_cache_usage_perc", "Usage.", names, registry=self._registry, multiprocess_mode=gauge_mode
            ).labels(*values)
            self.ttft = Histogram(
                "vllm:time_to_first_token_seconds", "TTFT.", names, registry=self._registry, buckets=buckets
            ).labels(*values)


@contextmanager
def _writing(directory: Path, pid: int) -> Iterator[None]:
    """New metrics belong to this pid. prometheus_client looks both up when a metric is made."""
    before = prometheus_client.values.ValueClass, os.environ.get("PROMETHEUS_MULTIPROC_DIR")
    prometheus_client.values.ValueClass = MultiProcessValue(lambda: pid)  # type: ignore[no-untyped-call]
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(directory)
    try:
        yield
    finally:
        prometheus_client.values.ValueClass = before[0]
        if before[1] is None:
            del os.environ["PROMETHEUS_MULTIPROC_DIR"]
        else:
            os.environ["PROMETHEUS_MULTIPROC_DIR"] = before[1]


class Process:
    """A writer that is a process."""

    def __init__(self, directory: Path, *flags: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.metrics_writer", str(directory), *flags],
            cwd=ROOT,
            env=os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(directory)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid
        assert self._says() == "ready"

    def _says(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def add(self, number: float) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{number}\n")
        self._process.stdin.flush()
        assert self._says() == "done"

    def kill(self) -> None:
        self._process.kill()
        self._close()

    def end(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write("end\n")
        self._close()

    def _close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


@contextmanager
def process(directory: Path, *flags: str) -> Iterator[Process]:
    started = Process(directory, *flags)
    try:
        yield started
    finally:
        started.kill()


def main(directory: Path, *flags: str) -> None:
    from vllm_backend import alive

    if "--alive" in flags:
        alive.claim(directory)
    writer = Writer(directory, os.getpid())
    writer.tokens.inc(1)
    writer.waiting.set(1)
    if "--alive" in flags:
        alive.hold(directory)
    print("ready", flush=True)
    for line in sys.stdin:
        if line.strip() == "end":
            return
        writer.tokens.inc(float(line))
        print("done", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
