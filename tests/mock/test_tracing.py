"""Request ids and trace context on their way, and the spans that a collector gets."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.mock_engine.running import MockEngine
from tests.support.chat import MODEL, ask, chat
from tests.support.collector import Collector, Span, running_collector
from tests.support.gateway import Gateway, running_gateway
from tests.support.waiting import wait_for

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/tokenize", "/v1/models", "/nowhere"])
def test_the_client_s_request_id_comes_back(path: str, client: httpx.Client) -> None:
    for sent in ("a", "order-66", "x" * 128):
        assert client.post(path, json=chat(), headers={"x-request-id": sent}).headers["x-request-id"] == sent


@pytest.mark.parametrize("sent", [None, "", "x" * 129, "a b", "ä".encode("latin-1")])
def test_one_that_is_missing_or_cannot_be_logged_is_made(sent: Any, client: httpx.Client) -> None:
    headers = {} if sent is None else {"x-request-id": sent}
    ids = {client.get("/v1/models", headers=headers).headers["x-request-id"] for _ in range(2)}
    assert len(ids) == 2
    assert all(re.fullmatch("[0-9a-f]{32}", one) for one in ids)


def test_a_stream_has_one_and_the_engine_another(client: httpx.Client, engine: MockEngine) -> None:
    sent = {"x-request-id": "mine", "authorization": "Bearer x"}
    answer = client.post("/v1/chat/completions", json=chat(stream=True, max_tokens=2), headers=sent)
    assert answer.headers["x-request-id"] == "mine"
    (request,) = engine.wait_for_requests(1)
    assert "mine" not in str(request)
    assert "authorization" not in request["headers"]


def test_the_log_line_names_it(gateway: Gateway, client: httpx.Client) -> None:
    client.post("/v1/chat/completions", json=chat(max_tokens=3), headers={"x-request-id": "for-the-log"})
    line = wait_for(lambda: next((one for one in gateway.logs if one.get("request_id") == "for-the-log"), None))
    assert (line["level"], line["logger"], line["message"]) == ("info", "gateway.request", "request")
    assert (line["status"], line["model"], line["reason"], line["completion_tokens"]) == (200, MODEL, "length", 3)
    assert line["head"] <= line["first_token"] <= line["total"]


@pytest.mark.parametrize(
    ("sent", "passed_on"),
    [
        ({"traceparent": PARENT}, PARENT),
        ({"traceparent": PARENT, "tracestate": "vendor=1"}, PARENT),
        ({"traceparent": PARENT.replace("-01", "-ff")}, PARENT),
        ({"traceparent": f"01{PARENT[2:]}-more"}, PARENT),
        ({"traceparent": PARENT.upper()}, None),
        ({"traceparent": f"ff{PARENT[2:]}"}, None),
        ({"traceparent": f"{PARENT}-more"}, None),
        ({"traceparent": PARENT.replace(TRACE, "0" * 32)}, None),
        ({"traceparent": "x"}, None),
        ({"tracestate": "vendor=1"}, None),
        ({}, None),
    ],
)
def test_trace_context_reaches_triton(
    sent: dict[str, str], passed_on: str | None, client: httpx.Client, engine: MockEngine
) -> None:
    client.post("/v1/completions", json={"model": MODEL, "prompt": "a", "max_tokens": 1}, headers=sent)
    (request,) = engine.wait_for_requests(1)
    assert request["headers"].get("traceparent") == passed_on
    assert request["headers"].get("tracestate") == (sent.get("tracestate") if passed_on else None)


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with running_collector() as running:
        yield running


@pytest.fixture(scope="module")
def traced(engine_process: MockEngine, repository: Path, collector: Collector) -> Iterator[Gateway]:
    flags = ("--triton", engine_process.url, "--model-repository", str(repository), "--otlp-endpoint", collector.url)
    # How long the SDK collects spans before it sends them, in milliseconds.
    with running_gateway(*flags, OTEL_BSP_SCHEDULE_DELAY="100") as running:
        yield running.wait_until_ready()


def spans_of(collector: Collector, trace_id: str) -> dict[str, Span]:
    """Those of one request, once the last of them, the request's own, has come."""

    def found() -> dict[str, Span]:
        spans = {span.name: span for span in collector.spans if span.trace_id == trace_id}
        return spans if any(name.startswith(("POST", "GET")) for name in spans) else {}

    return wait_for(found)


def test_a_request_is_a_span_with_its_stages(traced: Gateway, collector: Collector, engine: MockEngine) -> None:
    with httpx.Client(base_url=traced.url, verify=False, headers={"traceparent": PARENT}) as client:
        assert ask(client, stream=True, max_tokens=3).status_code == 200
    spans = spans_of(collector, TRACE)
    request = spans.pop("POST /v1/chat/completions")
    assert request.parent_id == PARENT[36:52]
    assert set(spans) == {"render", "queue", "upstream_head", "first_token", "stream"}
    for span in spans.values():
        assert span.parent_id == request.span_id
        assert request.start <= span.start <= span.end <= request.end
    order = [spans[name].start for name in ("render", "queue", "upstream_head", "first_token", "stream")]
    assert order == sorted(order)
    assert request.attributes["gen_ai.request.model"] == MODEL
    assert request.attributes["gen_ai.usage.output_tokens"] == 3
    assert request.attributes["http.response.status_code"] == 200
    assert not request.is_error
    # What Triton gets is a child of the request's span.
    (received,) = engine.wait_for_requests(1)
    assert received["headers"]["traceparent"] == f"00-{TRACE}-{request.span_id}-01"


def test_an_engine_s_failure_is_an_error_and_a_client_s_mistake_is_none(
    traced: Gateway, collector: Collector, engine: MockEngine
) -> None:
    failing, wrong = "a" * 32, "b" * 32
    with httpx.Client(base_url=traced.url, verify=False) as client:
        engine.add_fault(error_after={"tokens": 1, "error": "Error generating stream: broken"})
        body = chat(stream=True, max_tokens=3)
        client.post("/v1/chat/completions", json=body, headers={"traceparent": PARENT.replace(TRACE, failing)})
        body = chat(temperature=-1)
        client.post("/v1/chat/completions", json=body, headers={"traceparent": PARENT.replace(TRACE, wrong)})
    failed, refused = (spans_of(collector, one) for one in (failing, wrong))
    assert failed["POST /v1/chat/completions"].is_error
    assert failed["POST /v1/chat/completions"].attributes["gateway.reason"] == "error"
    (only,) = refused.values()
    assert not only.is_error
    assert only.attributes["http.response.status_code"] == 400


def test_a_trace_that_the_client_does_not_sample_is_not_sent(traced: Gateway, collector: Collector) -> None:
    unsampled, sampled = "c" * 32, "d" * 32
    for one, flags in ((unsampled, "00"), (sampled, "01")):
        headers = {"traceparent": f"00-{one}-00f067aa0ba902b7-{flags}"}
        httpx.get(f"{traced.url}/v1/models", headers=headers, verify=False)
    assert spans_of(collector, sampled)
    assert not any(span.trace_id == unsampled for span in collector.spans)


def test_a_collector_that_is_gone_costs_requests_nothing(engine: MockEngine, repository: Path) -> None:
    flags = ("--triton", engine.url, "--model-repository", str(repository))
    with running_gateway(*flags, "--otlp-endpoint", "http://127.0.0.1:9") as gateway:
        gateway.wait_until_ready()
        with httpx.Client(base_url=gateway.url, verify=False) as client:
            assert ask(client).status_code == 200
        gateway.process.terminate()
        assert gateway.process.wait(60) == 0
