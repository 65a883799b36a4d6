"""An OpenTelemetry collector for a test: takes OTLP over HTTP and keeps the spans."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass
class Span:
    """Ids are hexadecimal, times nanoseconds."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start: int
    end: int
    is_error: bool
    attributes: dict[str, Any]


@dataclass
class Collector:
    url: str
    spans: list[Span] = field(default_factory=list)

    def take(self, body: bytes) -> None:
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            for scope in resource.scope_spans:
                for span in scope.spans:
                    values = ((each.key, each.value) for each in span.attributes)
                    attributes = {key: getattr(value, value.WhichOneof("value")) for key, value in values}
                    ids = (span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex())
                    times = (span.start_time_unix_nano, span.end_time_unix_nano)
                    self.spans.append(Span(span.name, *ids, *times, span.status.code == 2, attributes))


@contextmanager
def running_collector() -> Iterator[Collector]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            collector.take(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing is printed."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector = Collector(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
