"""The log line of a request: all that is known of it when it is over, in one object. `docs/operations.md` explains each
field. A field that says nothing is left out.
"""

import logging
from typing import Any

from gateway.observe.record import Record
from service_base.logs import event

_log = logging.getLogger("gateway.request")

_PATH_CHARACTERS = 200


def write(record: Record) -> None:
    """Probes and scrapes come every few seconds and are told at level debug."""
    severity = logging.DEBUG if record.is_probe else logging.INFO
    if _log.isEnabledFor(severity):
        event(_log, severity, "request", fields(record))


def fields(record: Record) -> dict[str, Any]:
    """Times are in seconds, from the request's last byte on, unless they say otherwise."""
    error, body_at = record.error, record.body_at
    said: dict[str, Any] = {
        "request_id": record.request_id,
        "method": record.method,
        "path": record.path[:_PATH_CHARACTERS],
        "status": record.status,
    }
    if record.key.name:
        said["key"] = record.key.name
    if record.model:
        said["model"] = record.model
    if record.instance:
        said["instance"] = record.instance
    if record.reason:
        said["reason"] = record.reason
    if error is not None:
        said["error"] = error.code or f"status_{error.status}"
    if record.constraint:
        said["constraint"] = record.constraint
    said["retries"] = record.retries
    if record.trace is not None:
        said["trace_id"] = record.trace.trace_id
    said["total"] = _rounded(record.ended_at - (body_at or record.started_at))
    if not record.choices:
        return said
    said["stream"] = record.stream
    said["choices"] = record.choices
    said["prompt_tokens"] = record.prompt_tokens
    said["completion_tokens"] = record.completion_tokens
    if record.parser_failures:
        said["parser_failures"] = record.parser_failures
    said["queue"] = _rounded(record.queue_seconds)
    if record.sent_at:
        said["sent"] = _rounded(record.sent_at - body_at)
    said["connect"] = _rounded(record.connect_seconds)
    if record.head_at:
        said["head"] = _rounded(record.head_at - body_at)
    if record.first_token_at:
        said["first_token"] = _rounded(record.first_token_at - body_at)
    if (mean_itl := record.mean_itl()) is not None:
        said["mean_itl"] = _rounded(mean_itl)
    if record.is_met is not None:
        said["slo_met"] = record.is_met
    return said


def _rounded(seconds: float) -> float:
    """To microseconds. `round` reads its result back from decimal text, which costs ten times as much."""
    return int(seconds * 1e6 + 0.5) / 1e6
