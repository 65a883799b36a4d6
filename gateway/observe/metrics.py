"""The gateway's own metrics, declared here and nowhere else; `docs/operations.md` explains each.

Observed once per request or per event of its life, never per token. `instance` is a Triton server, `key` the name of
the client's key, `reason` why the answer ended (`gateway.observe.record`).
"""

from bisect import bisect_left
from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from gateway.observe import multiprocess

multiprocess.settle()
REGISTRY = CollectorRegistry()

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
GAPS = (0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5, 10)
"""Upper bounds of the buckets of inter-token latency, in seconds."""
_DELAYS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)

_WHERE = ("model", "instance", "key")
_TARGET = ("model", "instance")


class _QuickCounter(Counter):
    """Counts with labels only, and never down; what `Counter` asks at each call costs more than the counting."""

    def inc(self, amount: float = 1, exemplar: dict[str, str] | None = None) -> None:
        self._value.inc(amount)


class TalliedHistogram(Histogram):
    """A histogram that finds its bucket by bisection, and takes many observations at once that are counted into its
    buckets already."""

    def observe(self, amount: float, exemplar: dict[str, str] | None = None) -> None:
        self._sum.inc(amount)
        self._buckets[bisect_left(self._upper_bounds, amount)].inc(1)

    def add(self, tally: Sequence[int], total: float) -> None:
        """`tally`: how many fell into each bucket, the last one without an upper bound; `total`: their sum."""
        self._sum.inc(total)
        for bucket, count in zip(self._buckets, tally, strict=True):
            if count:
                bucket.inc(count)


def _counter(name: str, help: str, *labels: str) -> Counter:
    return _QuickCounter(name, help, labels, registry=REGISTRY)


def _histogram(name: str, help: str, *labels: str, buckets: Sequence[float] = _SECONDS) -> TalliedHistogram:
    return TalliedHistogram(name, help, labels, buckets=buckets, registry=REGISTRY)


requests_total = _counter(
    "gateway_requests",
    "Finished requests, probes apart, by HTTP status as the client saw it; 499: the client went away.",
    *_WHERE,
    "status",
    "reason",
)
in_flight = Gauge(
    "gateway_requests_in_flight",
    "Open generations, one for each choice of a request.",
    _WHERE,
    registry=REGISTRY,
    multiprocess_mode="livesum",
)
queue_wait_seconds = _histogram(
    "gateway_queue_wait_seconds", "From a request's turn to enter to its place at an instance.", *_WHERE
)
render_seconds = _histogram(
    "gateway_render_seconds", "From the request's last byte to the first byte to Triton, but for the queue.", "model"
)
upstream_connect_seconds = _histogram("gateway_upstream_connect_seconds", "To make a connection to Triton.", "instance")
upstream_head_seconds = _histogram(
    "gateway_upstream_head_seconds",
    "From the first byte to Triton to the engine's first response: its admission, or with the stock backend a token.",
    "model",
    "instance",
)
time_to_first_token_seconds = _histogram(
    "gateway_time_to_first_token_seconds", "From the request's last byte to the first token of the answer.", *_WHERE
)
inter_token_latency_seconds = TalliedHistogram(
    "gateway_inter_token_latency_seconds",
    "Between the tokens of a choice; tokens that came together share the time before them.",
    _WHERE,
    buckets=GAPS,
    registry=REGISTRY,
)
request_seconds = _histogram(
    "gateway_request_seconds", "From the request's last byte to the end of the answer.", *_WHERE, "reason"
)
prompt_tokens_total = _counter("gateway_prompt_tokens", "Tokens of prompts.", *_WHERE, "reason")
completion_tokens_total = _counter(
    "gateway_completion_tokens", "Tokens of answers, those of cancelled requests included.", *_WHERE, "reason"
)
slo_requests_total = _counter(
    "gateway_slo_requests", "Requests that the service levels were asked of: all but clients' mistakes.", *_WHERE
)
slo_met_total = _counter(
    "gateway_slo_met", "Of these, the ones within the settings slo_ttft and slo_itl: the goodput.", *_WHERE
)
relayed_tokens_total = _counter(
    "gateway_relayed_tokens",
    "Tokens of streams that went to the client by the native relay; counted when a stream leaves it.",
    "model",
)
direct_requests_total = _counter(
    "gateway_direct_requests",
    "Requests that differed from earlier ones in nothing but their messages and took the short way to Triton.",
    "model",
)
cancelled_total = _counter("gateway_cancelled_requests", "Requests whose client went away before the end.", *_WHERE)
cancelled_tokens_total = _counter(
    "gateway_cancelled_completion_tokens", "Tokens of answers that their clients did not wait for.", *_WHERE
)
refused_total = _counter(
    "gateway_refused", "Requests that were answered with a status of 400 to 499, by the error's code.", "model", "kind"
)
errors_total = _counter(
    "gateway_errors",
    "Requests that failed here or in the engine, streams included, by the error's code.",
    *_WHERE,
    "kind",
)
retries_total = _counter(
    "gateway_retries", "Requests that were moved to another instance before a byte of an answer.", "model", "instance"
)
generations_total = _counter(
    "gateway_generations",
    "Generations sent to an instance, by how their tokens come back: batched or per_request.",
    *_TARGET,
    "path",
)
egress_subscriptions = Gauge(
    "gateway_egress_subscriptions",
    "Open subscriptions, by which the tokens of batched generations come; none where nothing is asked.",
    _TARGET,
    registry=REGISTRY,
    multiprocess_mode="livesum",
)
egress_reconnects_total = _counter(
    "gateway_egress_reconnects",
    "Times that a subscription broke and was asked for again, while generations needed it.",
    *_TARGET,
)
egress_repairs_total = _counter(
    "gateway_egress_repairs",
    "Times that something was asked for again: a message was missing, a row of a stream, or the end of one.",
    *_TARGET,
    "kind",
)
egress_cut_streams_total = _counter(
    "gateway_egress_cut_streams",
    "Batched generations that were ended with an error: the client was too slow, or a row was lost for good.",
    *_TARGET,
    "reason",
)
structured_total = _counter("gateway_structured_outputs", "Requests with a constraint, by its kind.", "model", "kind")
structured_not_validated_total = _counter(
    "gateway_structured_outputs_not_validated",
    "Finished answers that could not be checked against their constraint in time.",
    "model",
    "kind",
)
structured_violations_total = _counter(
    "gateway_structured_output_violations",
    "Finished answers that did not obey their constraint: the engine's grammar backend failed.",
    "model",
    "kind",
)
call_violations_total = _counter(
    "gateway_tool_call_violations",
    "Finished calls whose arguments do not obey the schema of their function.",
    "model",
)
parser_failures_total = _counter(
    "gateway_parser_failures",
    "Choices with calls that were not written as the model's family writes them; what could not be read is content.",
    "model",
)
event_loop_delay_seconds = _histogram(
    "gateway_event_loop_delay_seconds",
    "How much later than asked a timer of the worker's event loop ran.",
    "worker",
    buckets=_DELAYS,
)
worker_cpu_seconds_total = _counter("gateway_worker_cpu_seconds", "CPU time of the worker, all threads.", "worker")
