"""What is noted of one request on its way, and what becomes of it in the end: metrics, a log line, spans.

One `Record` is made for each request, ahead of everything else (`gateway.app`), and found by the routes with
`record_of`. A mark is an attribute that is set, or a short method; per read of the upstream it is one bisection into a
list. Times are `time.monotonic()`; 0.0: not come to.

`reason` is why the answer ended: the engine's finish reason (`stop`, `length`, …; `mixed` where choices differ),
`refused` (a status of 400 to 499), `error`, `cancelled` (the client went away), or nothing for a request that asks for
no answer of a model.
"""

import functools
import re
import secrets
import time
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from prometheus_client.metrics import MetricWrapperBase

from gateway.access.authentication import OPEN_PATHS
from gateway.access.keys import ANONYMOUS, Key
from gateway.api.http import Event, Scope, Send
from gateway.observe import metrics
from gateway.observe.trace_context import TraceContext, trace_context
from gateway.openai.errors import ApiError

REQUEST_ID_HEADER = b"x-request-id"
_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")
_SCOPE_KEY = "gateway.record"

CLIENT_GONE = 499
"""The status of a request whose client went away before its answer was complete, as nginx counts it."""
_TOO_MANY = 429

_Metric = TypeVar("_Metric", bound=MetricWrapperBase)


@dataclass(frozen=True, slots=True)
class ServiceLevel:
    """What counts as good: seconds to the first token, and seconds between tokens in the mean of an answer. `None`: any
    will do."""

    ttft: float | None = None
    itl: float | None = None


class Record:
    """Of one request. Made from the request's head."""

    def __init__(self, scope: Scope) -> None:
        self.started_at = time.monotonic()
        self.started_ns = time.time_ns()
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        self.request_id = request_id(headers)
        self.trace: TraceContext | None = trace_context(headers)
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.is_probe = self.path in OPEN_PATHS
        self.key: Key = ANONYMOUS
        self.model = ""
        self.instance = ""
        self.stream = False
        self.constraint = ""
        self.status = 0
        self.error: ApiError | None = None
        self.reason = ""
        self.retries = 0
        self.choices = 0
        self.body_bytes = 0
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.queue_seconds = self.connect_seconds = 0.0
        self.parser_failures = 0
        self.body_at = self.queued_at = self.sent_at = self.head_at = self.first_token_at = self.ended_at = 0.0
        self._last: list[float] = []
        self._tally: list[int] = []
        self._gap_sum = 0.0
        self._in_flight: Any = None

    # Marks, in the order in which they come.

    def asks(self, model: str, *, stream: bool) -> None:
        """The body is read and says what is wanted."""
        self.body_at = self.body_at or time.monotonic()
        self.model, self.stream = model, stream

    def entered(self, instance: str, generations: int, queue_seconds: float) -> None:
        """It has a place at an instance."""
        self.queued_at = time.monotonic()
        self.queue_seconds = queue_seconds
        self.instance = instance
        self.choices = generations
        self._last = [0.0] * generations
        self._tally = [0] * (len(metrics.GAPS) + 1)
        _child(metrics.queue_wait_seconds, self.model, instance, self.key.name).observe(queue_seconds)
        self._count_in_flight()

    def moved(self, instance: str) -> None:
        """It is tried again, at another instance."""
        _child(metrics.retries_total, self.model, self.instance).inc()
        self.retries += 1
        self.sent_at = time.monotonic()
        # What came of a lost answer is no beginning of the next one.
        self._last = [0.0] * self.choices
        self._leave()
        self.instance = instance
        self._count_in_flight()

    def sent(self) -> None:
        """Rendered, and on its way to Triton."""
        self.sent_at = time.monotonic()
        _child(metrics.render_seconds, self.model).observe(self.sent_at - self.body_at - self.queue_seconds)

    def admitted(self, connect_seconds: float) -> None:
        """The engine's first response has come. `connect_seconds`: 0.0 for a connection that was there already."""
        self.head_at = time.monotonic()
        self.connect_seconds = connect_seconds
        if connect_seconds:
            _child(metrics.upstream_connect_seconds, self.instance).observe(connect_seconds)
        _child(metrics.upstream_head_seconds, self.model, self.instance).observe(self.head_at - self.sent_at)

    def tokens(self, choice: int, count: int, now: float) -> None:
        """So many tokens of a choice, in one read."""
        last = self._last[choice]
        self._last[choice] = now
        if last:
            gap = now - last
            self._tally[bisect_left(metrics.GAPS, gap / count)] += count
            self._gap_sum += gap
        elif not self.first_token_at:
            self.first_token_at = now
            _child(metrics.time_to_first_token_seconds, self.model, self.instance, self.key.name).observe(
                now - self.body_at
            )

    def last_tokens_at(self, choice: int) -> float:
        """0.0 before the first."""
        return self._last[choice]

    def relayed(self, choice: int, tally: Sequence[int], gap_sum: float, last: float) -> None:
        """Tokens of a choice that came after its first by another way, counted there as `tokens` does it."""
        self._tally = [mine + theirs for mine, theirs in zip(self._tally, tally, strict=True)]
        self._gap_sum += gap_sum
        self._last[choice] = last
        _child(metrics.relayed_tokens_total, self.model).inc(sum(tally))

    def ended(self, reason: str) -> None:
        """A choice came to a proper end, for this reason of the engine."""
        self.reason = reason if self.reason in ("", reason) else "mixed"

    # The end.

    def finish(self, level: ServiceLevel) -> None:
        """The request is over, whatever came of it. Counts everything, and lets go of the place in flight last, so that
        who sees nothing in flight sees all counted."""
        self.ended_at = time.monotonic()
        if self.is_probe:
            return
        if not self.reason or self.error is not None or self.status == CLIENT_GONE:
            self.reason = self._improper_end()
        where = (self.model, self.instance, self.key.name)
        _child(metrics.requests_total, *where, str(self.status), self.reason).inc()
        if self.error is not None:
            kind = self.error.code or f"status_{self.error.status}"
            if self.error.status < 500:
                _child(metrics.refused_total, self.model, kind).inc()
            else:
                _child(metrics.errors_total, *where, kind).inc()
        if self.choices:
            self._finish_answer(where)
        if (met := self.met(level)) is not None:
            _child(metrics.slo_requests_total, *where).inc()
            if met:
                _child(metrics.slo_met_total, *where).inc()
        self._leave()

    def mean_itl(self) -> float | None:
        """Seconds between tokens, in the mean over all choices; `None` before any choice has two."""
        count = sum(self._tally)
        return self._gap_sum / count if count else None

    def ttft(self) -> float | None:
        """Seconds from the request's last byte to the first token."""
        return self.first_token_at - self.body_at if self.first_token_at else None

    def met(self, level: ServiceLevel) -> bool | None:
        """Whether the request was within the service level; `None` for those that it is not asked of: clients'
        mistakes, and requests that want no answer of a model. Of a client that went away, what it had seen."""
        error = self.error.status if self.error else 0
        if not self.model or not self.body_at or (400 <= error < 500 and error != _TOO_MANY):
            return None
        if error:
            return False
        ttft, itl = self.ttft(), self.mean_itl()
        # Of an answer without a token, all of it.
        waited = self.ended_at - self.body_at if ttft is None else ttft
        return (level.ttft is None or waited <= level.ttft) and (level.itl is None or itl is None or itl <= level.itl)

    def _improper_end(self) -> str:
        if self.status == CLIENT_GONE:
            return "cancelled"
        if self.error is None:
            return ""
        return "refused" if self.error.status < 500 else "error"

    def _finish_answer(self, where: tuple[str, str, str]) -> None:
        _child(metrics.request_seconds, *where, self.reason).observe(self.ended_at - self.body_at)
        _child(metrics.prompt_tokens_total, *where, self.reason).inc(self.prompt_tokens)
        _child(metrics.completion_tokens_total, *where, self.reason).inc(self.completion_tokens)
        _child(metrics.inter_token_latency_seconds, *where).add(self._tally, self._gap_sum)
        if self.parser_failures:
            _child(metrics.parser_failures_total, self.model).inc(self.parser_failures)
        if self.reason == "cancelled":
            _child(metrics.cancelled_total, *where).inc()
            _child(metrics.cancelled_tokens_total, *where).inc(self.completion_tokens)

    def _count_in_flight(self) -> None:
        self._in_flight = _child(metrics.in_flight, self.model, self.instance, self.key.name)
        self._in_flight.inc(self.choices)

    def _leave(self) -> None:
        if self._in_flight is not None:
            self._in_flight.dec(self.choices)
            self._in_flight = None


def record_of(scope: Scope) -> Record:
    """The record of a request, which came through `gateway.app`."""
    record = scope[_SCOPE_KEY]
    assert isinstance(record, Record)
    return record


def begin(scope: Scope, send: Send) -> tuple[Record, Send]:
    """A request arrives. Its answer is sent with what is returned: it names the request."""
    record = scope[_SCOPE_KEY] = Record(scope)
    header = (REQUEST_ID_HEADER, record.request_id.encode())

    def named(event: Event) -> Any:
        if event["type"] == "http.response.start":
            record.status = event["status"]
            event["headers"] = [*event.get("headers", ()), header]
        return send(event)

    return record, named


def request_id(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The client's, where there is one and it can stand in a header and a log line; otherwise a new one."""
    for name, value in headers:
        if name == REQUEST_ID_HEADER:
            return value.decode() if _REQUEST_ID.fullmatch(value) else secrets.token_hex(16)
    return secrets.token_hex(16)


# One look into a dict in place of a lock, a tuple of strings and a look into a dict: about a microsecond each.
@functools.cache
def _children(metric: MetricWrapperBase, *labels: str) -> MetricWrapperBase:
    return metric.labels(*labels)


def _child(metric: _Metric, *labels: str) -> _Metric:
    return _children(metric, *labels)  # type: ignore[return-value]
