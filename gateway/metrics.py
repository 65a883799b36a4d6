"""The gateway's own metrics. Observed once per request or per event of its life, never per token."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

REGISTRY = CollectorRegistry()

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)

requests_total = Counter(
    "gateway_requests",
    "Finished requests by HTTP status as the client saw it; 499: the client went away.",
    ["model", "status"],
    registry=REGISTRY,
)
in_flight = Gauge("gateway_requests_in_flight", "Open requests.", ["model"], registry=REGISTRY)
time_to_first_token = Histogram(
    "gateway_time_to_first_token_seconds",
    "From the request's last byte to the first text of the answer.",
    ["model"],
    buckets=_SECONDS,
    registry=REGISTRY,
)
request_seconds = Histogram(
    "gateway_request_seconds",
    "From the request's last byte to the end of the answer.",
    ["model"],
    buckets=_SECONDS,
    registry=REGISTRY,
)
prompt_tokens_total = Counter("gateway_prompt_tokens", "Tokens of prompts.", ["model"], registry=REGISTRY)
completion_tokens_total = Counter(
    "gateway_completion_tokens",
    "Tokens of answers, those of cancelled requests included.",
    ["model"],
    registry=REGISTRY,
)
cancelled_total = Counter(
    "gateway_cancelled_requests", "Requests whose client went away before the end.", ["model"], registry=REGISTRY
)
structured_total = Counter(
    "gateway_structured_outputs", "Requests with a constraint, by its kind.", ["model", "kind"], registry=REGISTRY
)
structured_not_validated_total = Counter(
    "gateway_structured_outputs_not_validated",
    "Finished answers that could not be checked against their constraint in time.",
    ["model", "kind"],
    registry=REGISTRY,
)
structured_violations_total = Counter(
    "gateway_structured_output_violations",
    "Finished answers that did not obey their constraint: the engine's grammar backend failed.",
    ["model", "kind"],
    registry=REGISTRY,
)
call_violations_total = Counter(
    "gateway_tool_call_violations",
    "Finished calls whose arguments do not obey the schema of their function.",
    ["model"],
    registry=REGISTRY,
)
