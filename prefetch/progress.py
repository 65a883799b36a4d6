"""How far a job is: counted by the copying threads, read by the API, the page and the progress bar."""

import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from prefetch import metrics

# Over which time the rate is taken.
_WINDOW_SECONDS = 5.0


@dataclass
class FileProgress:
    size: int
    bytes: int = 0  # in the file, those of an earlier run included
    state: str = "waiting"  # waiting, copying, verifying, done
    retries: int = 0
    restarts: int = 0


class Progress:
    """Safe for threads."""

    def __init__(self) -> None:
        self.phase: metrics.Phase | Literal["ready"] = "planning"
        self.downloaded = 0  # bytes read from S3 in this run
        self.files: dict[str, FileProgress] = {}
        self._lock = threading.Lock()
        self._samples: deque[tuple[float, int]] = deque()
        self._phase_began = time.monotonic()

    def plan(self, files: Iterable[tuple[str, int]]) -> None:
        with self._lock:
            self.files = {path: FileProgress(size) for path, size in files}

    def enter(self, phase: metrics.Phase | Literal["ready"]) -> None:
        """The next phase; what the last one took is observed."""
        now = time.monotonic()
        with self._lock:
            metrics.phase_seconds.labels(self.phase).observe(now - self._phase_began)
            self.phase, self._phase_began = phase, now

    def read(self, amount: int, path: str | None) -> None:
        """Bytes that came from S3, whatever becomes of them; those of `path` are in the file."""
        metrics.bytes_total.inc(amount)
        now = time.monotonic()
        with self._lock:
            self.downloaded += amount
            if path is not None:
                self.files[path].bytes += amount
            if not self._samples or now - self._samples[-1][0] > 0.2:
                self._samples.append((now, self.downloaded))
                self._forget(now)

    def has(self, path: str, amount: int) -> None:
        """Bytes that are there already, or (negative) that do not count after all."""
        with self._lock:
            self.files[path].bytes += amount

    def state(self, path: str, state: str) -> None:
        with self._lock:
            self.files[path].state = state
            if state == "done":
                self.files[path].bytes = self.files[path].size

    def retried(self, path: str) -> None:
        with self._lock:
            if path in self.files:
                self.files[path].retries += 1

    def restarted(self, path: str) -> None:
        with self._lock:
            self.files[path].restarts += 1
            self.files[path].bytes = 0

    def resized(self, path: str, size: int) -> None:
        with self._lock:
            self.files[path].size = size

    def rate(self) -> float:
        """Bytes per second read from S3 lately."""
        now = time.monotonic()
        with self._lock:
            self._forget(now)
            if not self._samples:
                return 0.0
            began, before = self._samples[0]
            return (self.downloaded - before) / (now - began) if now - began > 0.2 else 0.0

    def totals(self) -> tuple[int, int]:
        """(bytes in place, bytes in all)."""
        with self._lock:
            files = self.files.values()
            return sum(min(file.bytes, file.size) for file in files), sum(file.size for file in files)

    def snapshot(self) -> dict[str, Any]:
        rate = self.rate()
        done, total = self.totals()
        with self._lock:
            files = {path: dict(file.__dict__) for path, file in self.files.items()}
        return {
            "phase": self.phase,
            "bytes": done,
            "total_bytes": total,
            "downloaded_bytes": self.downloaded,
            "bytes_per_second": round(rate),
            "eta_seconds": round((total - done) / rate, 1) if rate else None,
            "retries": sum(file["retries"] for file in files.values()),
            "files": files,
        }

    def _forget(self, now: float) -> None:
        while self._samples and now - self._samples[0][0] > _WINDOW_SECONDS:
            self._samples.popleft()
