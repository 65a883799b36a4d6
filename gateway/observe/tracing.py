"""OpenTelemetry spans of a request, sent to a collector (setting `otlp_endpoint`); without one nothing is imported.

One span for the request and, once it is over, one for each stage from its record's marks: so tracing costs nothing on
the way of a token. Names of attributes are OpenTelemetry's for HTTP and for generative AI; the sampler is that of the
SDK's own variables (`OTEL_TRACES_SAMPLER`), and a client's decision in `traceparent` is kept.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from gateway.observe.record import Record
from gateway.observe.trace_context import TraceContext
from service_base.errors import SettingsError

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span

_SERVICE = "gateway"


def check_packages() -> None:
    """Raises `SettingsError` where the extra is not installed."""
    try:
        import opentelemetry.exporter.otlp.proto.http
        import opentelemetry.sdk  # noqa: F401
    except ImportError:
        raise SettingsError("The setting 'otlp_endpoint' needs OpenTelemetry: install '.[gateway,tracing]'.") from None


class Tracing:
    """`start`, then `begin` and `finish` for each request, and `close`. Raises `SettingsError` where packages miss."""

    def __init__(self, endpoint: str) -> None:
        check_packages()
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        self._trace = trace
        self._provider = TracerProvider(resource=Resource.create({"service.name": _SERVICE}), shutdown_on_exit=False)
        self._exporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces")
        self._processor = BatchSpanProcessor
        self._tracer = self._provider.get_tracer(_SERVICE)

    def start(self) -> None:
        """In the process that serves: what sends the spans is a thread."""
        self._provider.add_span_processor(self._processor(self._exporter))

    def begin(self, record: Record) -> Span:
        """A request arrives; from now on its trace goes through here."""
        span = self._tracer.start_span(
            record.method,
            context=self._parent(record.trace),
            kind=self._trace.SpanKind.SERVER,
            start_time=record.started_ns,
        )
        ours = span.get_span_context()
        state = record.trace.state if record.trace else ""
        record.trace = TraceContext(f"{ours.trace_id:032x}", f"{ours.span_id:016x}", int(ours.trace_flags), state)
        return span

    def finish(self, record: Record, span: Span) -> None:
        """The request is over."""
        if not span.is_recording():
            return
        at = _Clock(record)
        inside = self._trace.set_span_in_context(span)
        if record.choices:
            queued_from = record.queued_at - record.queue_seconds
            for name, begun, ended in (
                ("render", record.body_at, queued_from),
                ("queue", queued_from, record.queued_at),
                ("upstream_head", record.sent_at, record.head_at or record.ended_at),
                ("first_token", record.head_at, record.first_token_at or record.ended_at),
                ("stream", record.first_token_at, record.ended_at),
            ):
                if begun:
                    stage = self._tracer.start_span(name, context=inside, start_time=at.wall(begun))
                    stage.end(at.wall(ended))
        attributes: dict[str, str | int] = {
            "http.request.method": record.method,
            "url.path": record.path,
            "http.response.status_code": record.status,
            "gateway.request_id": record.request_id,
            "gateway.key": record.key.name,
            "gateway.instance": record.instance,
            "gateway.reason": record.reason,
            "gateway.retries": record.retries,
            "gen_ai.request.model": record.model,
            "gen_ai.usage.input_tokens": record.prompt_tokens,
            "gen_ai.usage.output_tokens": record.completion_tokens,
        }
        if record.model:
            # A path that a client made up is no name: there would be as many as clients like.
            span.update_name(f"{record.method} {record.path}")
        span.set_attributes({name: value for name, value in attributes.items() if value != ""})
        if record.error is not None:
            span.set_attribute("error.type", record.error.code or str(record.error.status))
            # A client's mistake is no error of the server's span.
            if record.error.status >= 500:
                span.set_status(self._trace.StatusCode.ERROR)
        span.end(at.wall(record.ended_at))

    def close(self) -> None:
        """Sends what waits, for some seconds at most."""
        self._provider.shutdown()

    def _parent(self, sent: TraceContext | None) -> Context | None:
        if sent is None:
            return None
        trace = self._trace
        remote = trace.SpanContext(
            int(sent.trace_id, 16), int(sent.span_id, 16), is_remote=True, trace_flags=trace.TraceFlags(sent.flags)
        )
        context: Context = trace.set_span_in_context(trace.NonRecordingSpan(remote))
        return context


@dataclasses.dataclass(frozen=True)
class _Clock:
    """The wall clock's nanoseconds of a mark."""

    record: Record

    def wall(self, mark: float) -> int:
        return self.record.started_ns + int((mark - self.record.started_at) * 1e9)
