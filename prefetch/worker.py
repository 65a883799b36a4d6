"""Takes jobs from the queue and runs them, a few at a time; keeps the target tidy. All of it in threads."""

import contextlib
import functools
import logging
import sqlite3
import threading
import time
from collections.abc import Callable
from typing import Any

from prefetch import disk, metrics
from prefetch.errors import Cancelled, JobError
from prefetch.jobs import Job, Jobs
from prefetch.progress import Progress
from prefetch.pull import Engine
from prefetch.sqs import Message, Queue

_log = logging.getLogger(__name__)

_TIDY_SECONDS = 30
# After a failure of the queue itself.
_PAUSE_SECONDS = 5


class Running:
    """A job that runs here: `stop` ends it; `cancelled` says that it is not to be taken up again."""

    def __init__(self) -> None:
        self.progress = Progress()
        self.stop = threading.Event()
        self.cancelled = False


class Worker:
    """`start`, then `close`, which interrupts the running jobs; they are taken up again at the next start."""

    def __init__(
        self, engine: Engine, jobs: Jobs, queue: Queue | None, number: int, deadline: float, staging_seconds: float
    ) -> None:
        """`queue` is the one of several machines; without one the jobs that are queued in `jobs` are run."""
        self._engine = engine
        self._jobs = jobs
        self._queue = queue
        self._number = number
        self._deadline = deadline
        self._staging_seconds = staging_seconds
        self.running: dict[str, Running] = {}
        self._closing = threading.Event()
        self._wake = threading.Semaphore(0)
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        if again := self._jobs.requeue_running():
            _log.info("%d jobs are taken up again", again)
        step = self._next_message if self._queue else self._next_job
        targets: list[Callable[[], None]] = [functools.partial(self._work, step)] * self._number + [self._tidy]
        self._threads = [threading.Thread(target=target, daemon=True) for target in targets]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._closing.set()
        for running in list(self.running.values()):
            running.stop.set()
        self.wake(self._number)
        for thread in self._threads:
            thread.join()

    def wake(self, number: int = 1) -> None:
        """A job was queued."""
        self._wake.release(number)

    def cancel(self, job_id: str) -> bool:
        """Whether the job runs here; it then ends soon."""
        running = self.running.get(job_id)
        if running is None:
            return False
        running.cancelled = True
        running.stop.set()
        return True

    def _work(self, step: Callable[[], None]) -> None:
        """Runs `step` until the end. A queue that cannot be read now, or a full disk below it, may be well later."""
        while not self._closing.is_set():
            try:
                step()
            except (JobError, sqlite3.Error) as error:
                _log.error("the queue cannot be read: %s", error)
                self._closing.wait(_PAUSE_SECONDS)

    def _next_job(self) -> None:
        job = self._jobs.take()
        if job is None:
            self._wake.acquire(timeout=5)
            return
        self._run(job)

    def _next_message(self) -> None:
        assert self._queue
        message = self._queue.receive()
        if message:
            self._run_message(self._queue, message)

    def _run_message(self, queue: Queue, message: Message) -> None:
        known = self._jobs.get(message.job_id)
        if known and known.state == "cancelled" and known.announced >= message.announced:
            queue.done(message)
            return
        job, _ = self._jobs.add(message.announcement, None, message.job_id)
        taken = self._jobs.take(job.id)
        if taken is None:
            # It runs here, from an earlier delivery of the message.
            return
        done = threading.Event()
        keeper = threading.Thread(target=queue.keep, args=(message, done), daemon=True)
        keeper.start()
        try:
            state = self._run(taken, message.announced)
        finally:
            done.set()
            keeper.join()
        if state in ("published", "cancelled"):
            queue.done(message)
        elif state == "queued":
            queue.give_back(message)

    def _run(self, job: Job, announced: float | None = None) -> str:
        """The state in which the job is afterwards."""
        announced = announced or job.announced
        running = self.running[job.id] = Running()
        if self._closing.is_set():
            running.stop.set()
        progress, extra = running.progress, {"job": job.id, "source": job.announcement.source}
        metrics.queue_wait.observe(max(0.0, time.time() - announced))
        _log.info("job begins", extra=extra)
        state, error = "failed", None
        try:
            self._engine.run(job.announcement, announced, progress, running.stop)
            state = "published"
        except JobError as problem:
            error = str(problem)
        except Cancelled:
            state = "cancelled" if running.cancelled else "queued"
        except Exception:
            _log.exception("a job failed for a reason that has no sentence", extra=extra)
            error = "prefetch itself failed; its log says where. Retry the job."
        finally:
            del self.running[job.id]
        if state == "queued":
            self._jobs.change(job.id, ("running",), "queued")
            return state
        self._jobs.end(job.id, state, error, progress.snapshot())
        metrics.jobs_total.labels(state).inc()
        if state == "published":
            metrics.announced_to_ready.observe(max(0.0, time.time() - announced))
        _log.log(
            logging.ERROR if error else logging.INFO, "job %s%s", state, f": {error}" if error else "", extra=extra
        )
        return state

    def _tidy(self) -> None:
        while not self._closing.wait(_TIDY_SECONDS):
            with contextlib.suppress(OSError, JobError):
                self._engine.make_room()
                for folder in self._engine.remove_stale_staging(self._staging_seconds):
                    _log.info("removed staging that failed or was left", extra={"folder": str(folder)})

    def observe(self) -> None:
        """Sets the metrics that are states, for a scrape."""
        counts: dict[str, Any] = self._jobs.counts()
        for state in ("queued", "running", "published", "failed", "cancelled"):
            metrics.jobs.labels(state).set(counts.get(state, 0))
        metrics.past_deadline.set(self._jobs.late(self._deadline))
        metrics.rate.set(sum(running.progress.rate() for running in list(self.running.values())))
        with contextlib.suppress(OSError):
            metrics.free_bytes.set(disk.free_bytes(self._engine.config.target))
            metrics.size_bytes.set(disk.total_bytes(self._engine.config.target))
