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
import time
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from prometheus_client import Counter, Gauge

from gateway.access.authentication import OPEN_PATHS
from gateway.access.keys import ANONYMOUS, Key
from gateway.api.http import Event, Header, Scope, Send
from gateway.new_id import new_id
from gateway.observe import metrics
from gateway.observe.metrics import TalliedHistogram
from gateway.observe.trace_context import TraceContext, trace_context
from gateway.openai.errors import ApiError

REQUEST_ID_HEADER = b"x-request-id"
_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")
_SCOPE_KEY = "gateway.record"

CLIENT_GONE = 499
"""The status of a request whose client went away before its answer was complete, as nginx counts it."""
_TOO_MANY = 429


@dataclass(frozen=True, slots=True)
class ServiceLevel:
    """What counts as good: seconds to the first token, and seconds between tokens in the mean of an answer. `None`: any
    will do."""

    ttft: float | None = None
    itl: float | None = None


class Record:
    """Of one request. Made from the request's head."""

    # What most requests never set costs nothing where it stands here.
    key: Key = ANONYMOUS
    model = ""
    instance = ""
    stream = False
    constraint = ""
    status = 0
    error: ApiError | None = None
    reason = ""
    retries = 0
    choices = 0
    body_bytes = 0
    prompt_tokens = 0
    completion_tokens = 0
    queue_seconds = connect_seconds = 0.0
    parser_failures = 0
    body_at = queued_at = sent_at = head_at = first_token_at = ended_at = 0.0
    is_met: bool | None = None
    """Whether it was within the service level, once finished; None for those that it is not asked of."""
    span: Any = None
    """Of `gateway.observe.tracing`, where that is on."""
    _last: list[float]
    """When tokens last came, of each choice, once it has `entered`."""
    _tally: list[int] | None = None
    """Of the times between tokens; None before any."""
    _gaps = 0
    _gap_sum = 0.0
    _in_flight: Gauge | None = None
    _meter: "Meter | None" = None

    def __init__(self, scope: Scope) -> None:
        self.started_at = time.monotonic()
        self.started_ns = time.time_ns()
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        self.request_id = request_id(headers)
        self.trace: TraceContext | None = trace_context(headers)
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.is_probe = self.path in OPEN_PATHS

    @property
    def header(self) -> Header:
        """That names the request in its answer."""
        return REQUEST_ID_HEADER, self.request_id.encode()

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
        self._meter = meter(self.model, instance, self.key.name)
        self._meter.queue_wait.observe(queue_seconds)
        self._count_in_flight()

    def went_directly(self) -> None:
        """Its form was known, and it was sent without a task."""
        assert self._meter is not None
        self._meter.direct.inc()

    def moved(self, instance: str) -> None:
        """It is tried again, at another instance."""
        metrics.retries_total.labels(self.model, self.instance).inc()
        self.retries += 1
        self.sent_at = time.monotonic()
        # What came of a lost answer is no beginning of the next one.
        self._last = [0.0] * self.choices
        self._leave()
        self.instance = instance
        self._meter = meter(self.model, instance, self.key.name)
        self._count_in_flight()

    def sent(self) -> None:
        """Rendered, and on its way to Triton. Only the first time counts."""
        if self.sent_at:
            return
        self.sent_at = time.monotonic()
        assert self._meter is not None
        self._meter.render.observe(self.sent_at - self.body_at - self.queue_seconds)

    def admitted(self, connect_seconds: float, at: float = 0.0) -> None:
        """The engine's first response has come, now or `at`. `connect_seconds`: 0.0 for a connection that was there
        already."""
        self.head_at = at or time.monotonic()
        self.connect_seconds = connect_seconds
        if connect_seconds:
            metrics.upstream_connect_seconds.labels(self.instance).observe(connect_seconds)
        assert self._meter is not None
        self._meter.head.observe(self.head_at - self.sent_at)

    def tokens(self, choice: int, count: int, now: float) -> None:
        """So many tokens of a choice, in one read."""
        last = self._last[choice]
        self._last[choice] = now
        if last:
            gap = now - last
            if self._tally is None:
                self._tally = [0] * (len(metrics.GAPS) + 1)
            self._tally[bisect_left(metrics.GAPS, gap / count)] += count
            self._gaps += count
            self._gap_sum += gap
        elif not self.first_token_at:
            self.first_token_at = now
            assert self._meter is not None
            self._meter.first_token.observe(now - self.body_at)

    def last_tokens_at(self, choice: int) -> float:
        """0.0 before the first."""
        return self._last[choice]

    def relayed(self, count: int) -> None:
        """So many tokens came by another way."""
        assert self._meter is not None
        self._meter.relayed.inc(count)

    def gaps(self, choice: int, tally: Sequence[int], gap_sum: float, last: float) -> None:
        """Times between tokens of a choice that came after its first by another way, counted there as `tokens` does
        it."""
        before = self._tally
        self._tally = list(tally) if before is None else [a + b for a, b in zip(before, tally, strict=True)]
        self._gap_sum += gap_sum
        self._gaps += sum(tally)
        self._last[choice] = last

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
        of = self._meter or meter(self.model, self.instance, self.key.name)
        of.ends(self.status, self.reason).requests.inc()
        if self.error is not None:
            kind = self.error.code or f"status_{self.error.status}"
            if self.error.status < 500:
                metrics.refused_total.labels(self.model, kind).inc()
            else:
                metrics.errors_total.labels(*of.where, kind).inc()
        if self.choices:
            self._finish_answer(of)
        self.is_met = self.met(level)
        if self.is_met is not None:
            of.slo_requests.inc()
            if self.is_met:
                of.slo_met.inc()
        self._leave()

    def mean_itl(self) -> float | None:
        """Seconds between tokens, in the mean over all choices; `None` before any choice has two."""
        return self._gap_sum / self._gaps if self._gaps else None

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

    def _finish_answer(self, of: "Meter") -> None:
        ends = of.ends(self.status, self.reason)
        ends.seconds.observe(self.ended_at - self.body_at)
        ends.prompt_tokens.inc(self.prompt_tokens)
        ends.completion_tokens.inc(self.completion_tokens)
        gaps = of.gaps
        if self._tally is not None:
            gaps.add(self._tally, self._gap_sum)
        if self.parser_failures:
            metrics.parser_failures_total.labels(self.model).inc(self.parser_failures)
        if self.reason == "cancelled":
            metrics.cancelled_total.labels(*of.where).inc()
            metrics.cancelled_tokens_total.labels(*of.where).inc(self.completion_tokens)

    def _count_in_flight(self) -> None:
        assert self._meter is not None
        self._in_flight = self._meter.in_flight
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


def begin(scope: Scope, record: Record) -> None:
    """`record` is that of the request of `scope`."""
    scope[_SCOPE_KEY] = record


def naming(record: Record, send: Send) -> Send:
    """What is sent with it names the request, and `record` notes its status."""

    def send_named(event: Event) -> Any:
        if event["type"] == "http.response.start":
            record.status = event["status"]
            event["headers"] = [*event.get("headers", ()), record.header]
        return send(event)

    return send_named


def request_id(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The client's, where there is one and it can stand in a header and a log line; otherwise a new one."""
    for name, value in headers:
        if name == REQUEST_ID_HEADER:
            return value.decode() if _REQUEST_ID.fullmatch(value) else new_id()
    return new_id()


class Meter:
    """The metrics of one model at one instance for one key: to find them by their labels costs more than to count. Each
    is there once something is counted."""

    def __init__(self, *where: str) -> None:
        self.where = where
        self._ends: dict[tuple[int, str], Ends] = {}

    @cached_property
    def queue_wait(self) -> TalliedHistogram:
        return metrics.queue_wait_seconds.labels(*self.where)

    @cached_property
    def in_flight(self) -> Gauge:
        return metrics.in_flight.labels(*self.where)

    @cached_property
    def render(self) -> TalliedHistogram:
        return metrics.render_seconds.labels(self.where[0])

    @cached_property
    def direct(self) -> Counter:
        return metrics.direct_requests_total.labels(self.where[0])

    @cached_property
    def relayed(self) -> Counter:
        return metrics.relayed_tokens_total.labels(self.where[0])

    @cached_property
    def head(self) -> TalliedHistogram:
        return metrics.upstream_head_seconds.labels(*self.where[:2])

    @cached_property
    def first_token(self) -> TalliedHistogram:
        return metrics.time_to_first_token_seconds.labels(*self.where)

    @cached_property
    def gaps(self) -> TalliedHistogram:
        return metrics.inter_token_latency_seconds.labels(*self.where)

    @cached_property
    def slo_requests(self) -> Counter:
        return metrics.slo_requests_total.labels(*self.where)

    @cached_property
    def slo_met(self) -> Counter:
        return metrics.slo_met_total.labels(*self.where)

    def ends(self, status: int, reason: str) -> "Ends":
        found = self._ends.get((status, reason))
        if found is None:
            found = self._ends[status, reason] = Ends(self.where, str(status), reason)
        return found


class Ends:
    """Of a `Meter`: what is counted by the way that requests end."""

    def __init__(self, where: tuple[str, ...], status: str, reason: str) -> None:
        self._of_answers = (*where, reason)
        self.requests = metrics.requests_total.labels(*where, status, reason)

    @cached_property
    def seconds(self) -> TalliedHistogram:
        return metrics.request_seconds.labels(*self._of_answers)

    @cached_property
    def prompt_tokens(self) -> Counter:
        return metrics.prompt_tokens_total.labels(*self._of_answers)

    @cached_property
    def completion_tokens(self) -> Counter:
        return metrics.completion_tokens_total.labels(*self._of_answers)


meter = functools.cache(Meter)
