"""What is done at the beginning and at the end of every request, whichever way it goes."""

from gateway.observe import request_log
from gateway.observe.record import Record, ServiceLevel
from gateway.observe.tracing import Tracing


class Requests:
    """`tracing` may be None."""

    def __init__(self, level: ServiceLevel, tracing: Tracing | None) -> None:
        self._level = level
        self._tracing = tracing

    def begin(self, record: Record) -> None:
        if self._tracing is not None and not record.is_probe:
            record.span = self._tracing.begin(record)

    def end(self, record: Record) -> None:
        """Whatever came of it: the metrics, the log line, the spans."""
        record.finish(self._level)
        request_log.write(record)
        if self._tracing is not None and record.span is not None:
            self._tracing.finish(record, record.span)
