"""The service's metrics, declared once. The command line counts too and shows nobody."""

from typing import Literal, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

REGISTRY = CollectorRegistry()

Phase = Literal["planning", "hydrating", "copying", "verifying", "publishing", "loading"]
"""Of a job, those that take time."""

_SECONDS = (0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400)

bytes_total = Counter("prefetch_bytes", "Bytes read from S3, those read again included.", registry=REGISTRY)
rate = Gauge("prefetch_bytes_per_second", "Bytes read from S3 per second now, all jobs together.", registry=REGISTRY)
queue_wait = Histogram(
    "prefetch_queue_wait_seconds", "From the announcement to the job's start.", buckets=_SECONDS, registry=REGISTRY
)
phase_seconds = Histogram(
    "prefetch_phase_seconds", "Duration of a job's phases.", ["phase"], buckets=_SECONDS, registry=REGISTRY
)
# From nothing on: of a series that begins with the first job, that job is no increase.
for _phase in get_args(Phase):
    phase_seconds.labels(_phase)
jobs_total = Counter("prefetch_jobs", "Ended jobs by their last state.", ["state"], registry=REGISTRY)
jobs = Gauge("prefetch_jobs_now", "Jobs by state now.", ["state"], registry=REGISTRY)
retries_total = Counter(
    "prefetch_retries", "Requests to S3 that were repeated, by cause.", ["reason"], registry=REGISTRY
)
restarts_total = Counter(
    "prefetch_file_restarts", "Files begun again, by cause: replaced or damaged.", ["reason"], registry=REGISTRY
)
verify_failures_total = Counter(
    "prefetch_verify_failures", "Files whose bytes were not what they had to be.", registry=REGISTRY
)
announcements_total = Counter(
    "prefetch_announcements",
    "Requests to the webhook by sender and HTTP status.",
    ["sender", "status"],
    registry=REGISTRY,
)
free_bytes = Gauge("prefetch_target_free_bytes", "Free bytes on the target's file system.", registry=REGISTRY)
size_bytes = Gauge("prefetch_target_size_bytes", "Size of the target's file system.", registry=REGISTRY)
removed_total = Counter("prefetch_removed_models", "Published versions removed to make room.", registry=REGISTRY)
announced_to_ready = Histogram(
    "prefetch_announced_to_ready_seconds",
    "From the announcement to the model being published, and loaded where that is set.",
    buckets=_SECONDS,
    registry=REGISTRY,
)
past_deadline = Gauge(
    "prefetch_jobs_past_deadline", "Jobs that are neither published nor cancelled and past their deadline.",
    registry=REGISTRY,
)  # fmt: skip
