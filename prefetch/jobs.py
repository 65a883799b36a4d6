"""The jobs of this machine and the queue that survives a kill: SQLite with a write-ahead log, on a local folder.

A job is `queued` → `running` → `published`, `failed` or `cancelled`. What was running when the process ended is queued
again at the next start. One content is one job, however often it is announced; so is one delivery.
"""

import contextlib
import json
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefetch.announcement import Announcement

# Kept as long as the sender may deliver again; Amazon SNS does for up to 23 days.
_DELIVERY_SECONDS = 30 * 24 * 3600
_SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (
    id TEXT PRIMARY KEY,
    content TEXT NOT NULL UNIQUE,
    state TEXT NOT NULL,
    priority INTEGER NOT NULL,
    announcement TEXT NOT NULL,
    announced REAL NOT NULL,
    started REAL,
    finished REAL,
    attempts INTEGER NOT NULL DEFAULT 0,
    error TEXT,
    report TEXT
);
CREATE INDEX IF NOT EXISTS jobs_queue ON jobs (state, priority DESC, announced);
CREATE TABLE IF NOT EXISTS deliveries (id TEXT PRIMARY KEY, job TEXT NOT NULL, received REAL NOT NULL);
"""
ENDED = ("published", "failed", "cancelled")


@dataclass(frozen=True)
class Job:
    id: str
    state: str
    announcement: Announcement
    announced: float  # Unix time, as all of these
    started: float | None
    finished: float | None
    attempts: int
    error: str | None
    report: dict[str, Any] | None  # the last snapshot of the progress

    def as_dict(self) -> dict[str, Any]:
        return self.announcement.model_dump(exclude={"manifest", "manifest_key"}) | {
            "id": self.id,
            "state": self.state,
            "announced": self.announced,
            "started": self.started,
            "finished": self.finished,
            "attempts": self.attempts,
            "error": self.error,
        }


class Jobs:
    """Safe for threads."""

    def __init__(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._db = sqlite3.connect(file, check_same_thread=False, isolation_level=None, timeout=30)
        self._db.row_factory = sqlite3.Row
        self._db.execute("PRAGMA journal_mode=WAL")
        # The queue must hold what was answered with 202 also after the machine failed.
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.executescript(_SCHEMA)

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def requeue_running(self) -> int:
        """At start: what was running when the last process ended; how many."""
        with self._transaction() as db:
            return db.execute("UPDATE jobs SET state = 'queued' WHERE state = 'running'").rowcount

    def add(self, announcement: Announcement, delivery: str | None, job_id: str | None = None) -> tuple[Job, bool]:
        """The job of this content, and whether it is to be done now: a new one, or one that has ended and is
        announced anew. The same delivery again changes nothing. `job_id` is for a job that comes with one."""
        content, now = announcement.content_id(), time.time()
        with self._transaction() as db:
            db.execute("DELETE FROM deliveries WHERE received < ?", (now - _DELIVERY_SECONDS,))
            if delivery:
                seen = db.execute("SELECT job FROM deliveries WHERE id = ?", (delivery,)).fetchone()
                if seen:
                    return self._one(db, seen["job"]), False
            row = db.execute("SELECT id, state FROM jobs WHERE content = ?", (content,)).fetchone()
            if row is None:
                found = job_id or uuid.uuid4().hex
                db.execute(
                    "INSERT INTO jobs (id, content, state, priority, announcement, announced) "
                    "VALUES (?, ?, ?, ?, ?, ?)",
                    (found, content, "queued", announcement.priority, announcement.model_dump_json(), now),
                )
            else:
                found = row["id"]
                if row["state"] in ENDED:
                    db.execute(
                        "UPDATE jobs SET state = 'queued', priority = ?, announcement = ?, announced = ?, "
                        "started = NULL, finished = NULL, error = NULL, report = NULL WHERE id = ?",
                        (announcement.priority, announcement.model_dump_json(), now, found),
                    )
            if delivery:
                db.execute("INSERT INTO deliveries VALUES (?, ?, ?)", (delivery, found, now))
            return self._one(db, found), row is None or row["state"] in ENDED

    def take(self, job_id: str | None = None) -> Job | None:
        """The next queued job, or this one, now running."""
        with self._transaction() as db:
            if job_id is None:
                row = db.execute(
                    "SELECT id FROM jobs WHERE state = 'queued' ORDER BY priority DESC, announced LIMIT 1"
                ).fetchone()
            else:
                row = db.execute("SELECT id FROM jobs WHERE id = ? AND state = 'queued'", (job_id,)).fetchone()
            if row is None:
                return None
            db.execute(
                "UPDATE jobs SET state = 'running', started = ?, attempts = attempts + 1, error = NULL WHERE id = ?",
                (time.time(), row["id"]),
            )
            return self._one(db, row["id"])

    def end(self, job_id: str, state: str, error: str | None, report: dict[str, Any]) -> None:
        with self._transaction() as db:
            db.execute(
                "UPDATE jobs SET state = ?, finished = ?, error = ?, report = ? WHERE id = ?",
                (state, time.time(), error, json.dumps(report), job_id),
            )

    def forget(self, job_id: str) -> None:
        """As if it had never been announced."""
        with self._transaction() as db:
            db.execute("DELETE FROM jobs WHERE id = ?", (job_id,))
            db.execute("DELETE FROM deliveries WHERE job = ?", (job_id,))

    def change(self, job_id: str, before: tuple[str, ...], state: str) -> bool:
        """Whether the job was in one of the states `before`, and now is in `state`."""
        finished = time.time() if state in ENDED else None
        marks = ", ".join("?" * len(before))
        with self._transaction() as db:
            changed = db.execute(
                f"UPDATE jobs SET state = ?, finished = ? WHERE id = ? AND state IN ({marks})",
                (state, finished, job_id, *before),
            )
            return changed.rowcount > 0

    def get(self, job_id: str) -> Job | None:
        with self._transaction() as db:
            row = db.execute("SELECT * FROM jobs WHERE id = ?", (job_id,)).fetchone()
            return _job(row) if row else None

    def list(self, limit: int = 200) -> list[Job]:
        """The newest first."""
        with self._transaction() as db:
            rows = db.execute("SELECT * FROM jobs ORDER BY announced DESC LIMIT ?", (limit,)).fetchall()
            return [_job(row) for row in rows]

    def counts(self) -> dict[str, int]:
        with self._transaction() as db:
            rows = db.execute("SELECT state, count(*) AS number FROM jobs GROUP BY state").fetchall()
            return {row["state"]: row["number"] for row in rows}

    def late(self, deadline: float) -> int:
        """Jobs that are neither published nor cancelled so many seconds after their announcement."""
        with self._transaction() as db:
            row = db.execute(
                "SELECT count(*) AS number FROM jobs WHERE state NOT IN ('published', 'cancelled') AND announced < ?",
                (time.time() - deadline,),
            ).fetchone()
            return int(row["number"])

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    def _one(self, db: sqlite3.Connection, job_id: str) -> Job:
        return _job(db.execute("SELECT * FROM jobs WHERE id = ?", (job_id,)).fetchone())


def _job(row: sqlite3.Row) -> Job:
    return Job(
        id=row["id"],
        state=row["state"],
        announcement=Announcement.model_validate_json(row["announcement"]),
        announced=row["announced"],
        started=row["started"],
        finished=row["finished"],
        attempts=row["attempts"],
        error=row["error"],
        report=json.loads(row["report"]) if row["report"] else None,
    )
