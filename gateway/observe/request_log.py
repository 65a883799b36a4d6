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
    error, body_at, trace = record.error, record.body_at, record.trace
    said: dict[str, Any] = {
        "request_id": record.request_id,
        "method": record.method,
        "path": record.path[:_PATH_CHARACTERS],
        "status": record.status,
        "key": record.key.name,
        "model": record.model,
        "instance": record.instance,
        "reason": record.reason,
        "error": error and (error.code or f"status_{error.status}"),
        "constraint": record.constraint,
        "retries": record.retries,
        "trace_id": trace and trace.trace_id,
        "total": round(record.ended_at - (body_at or record.started_at), 6),
    }
    if record.choices:
        said |= {
            "stream": record.stream,
            "choices": record.choices,
            "prompt_tokens": record.prompt_tokens,
            "completion_tokens": record.completion_tokens,
            "parser_failures": record.parser_failures or None,
            "queue": round(record.queue_seconds, 6),
            "sent": _after(record, record.sent_at),
            "connect": round(record.connect_seconds, 6),
            "head": _after(record, record.head_at),
            "first_token": _after(record, record.first_token_at),
            "mean_itl": _rounded(record.mean_itl()),
            "slo_met": record.is_met,
        }
    return {name: value for name, value in said.items() if value is not None and value != ""}


def _after(record: Record, mark: float) -> float | None:
    return round(mark - record.body_at, 6) if mark else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
