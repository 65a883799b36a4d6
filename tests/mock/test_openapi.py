"""The gateway's OpenAPI document: it is true, and requests made of it meet nothing unforeseen."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from bench.mock_engine.running import MockEngine, running_mock_engine
from gateway.access.authentication import OPEN_PATHS
from gateway.openai.fields import CHAT, COMPLETION, DETOKENIZE, TOKENIZE, Fate
from tests.support.chat import MODEL, ask, complete
from tests.support.gateway import Gateway, running_gateway
from tests.support.waiting import wait_for

EXAMPLES = 60
SHOWN = {"role", "content"}
POSTS = ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"]
TAKE_MESSAGES = {"/v1/chat/completions", "/tokenize"}
GETS = ["/v1/models", "/v1/models/{name}", "/health/live", "/health/ready", "/metrics"]


@pytest.fixture(scope="module")
def served(repository: Path) -> Iterator[tuple[Gateway, MockEngine]]:
    options: dict[str, Any] = {"scheduling_policy": "priority", "token_interval_ms": 0}
    with (
        running_mock_engine(model_repository=repository, **options) as engine,
        running_gateway("--triton", engine.url, "--model-repository", str(repository)) as gateway,
    ):
        yield gateway.wait_until_ready(), engine


@pytest.fixture(scope="module")
def document(served: tuple[Gateway, MockEngine]) -> Any:
    return schemathesis.openapi.from_url(f"{served[0].url}/openapi.json")


def with_few(body: dict[str, Any], most: int, path: str) -> dict[str, Any]:
    """The body with so many of its optional fields; likewise its messages."""
    # Elsewhere they are as unknown as any name, and may be anything.
    has_messages = path in TAKE_MESSAGES and bool(body.get("messages"))
    needed = {"model", "tokens", "messages" if has_messages else "prompt"}
    optional = [name for name in body if name not in needed | {"prompt", "messages"}]
    few = {name: value for name, value in body.items() if name in needed or name in optional[:most]}
    if has_messages:
        few["messages"] = [
            {name: value for number, (name, value) in enumerate(message.items()) if number < most or name in SHOWN}
            # Rules between two members, which the document cannot say.
            | ({"tool_call_id": "call_1"} if message["role"] == "tool" else {})
            | ({} if message.get("content") else {"content": "Hi"})
            for message in body["messages"]
        ]
    return few


def play(document: Any, path: str, method: str, mode: GenerationMode, gateway: Gateway) -> Counter[int]:
    """How often each status came."""
    checks = [
        schemathesis.checks.not_a_server_error,
        status_code_conformance,
        content_type_conformance,
        response_headers_conformance,
        response_schema_conformance,
        unsupported_method,
    ]
    if mode is GenerationMode.NEGATIVE:
        checks.append(negative_data_rejection)
    statuses: Counter[int] = Counter()

    @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
    @given(case=document[path][method].as_strategy(generation_mode=mode), most=st.integers(0, 6))
    def check(case: Case[Any], most: int) -> None:
        if isinstance(case.body, dict) and case.body.get("model") and isinstance(case.body["model"], str):
            # Most names are no model's, and of many fields two hardly ever go together.
            case.body["model"] = MODEL
            if mode is GenerationMode.POSITIVE:
                case.body = with_few(case.body, most, path)
        response = case.call(base_url=gateway.url)
        statuses[response.status_code] += 1
        case.validate_response(response, checks=checks)

    check()
    return statuses


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
@pytest.mark.parametrize("path", POSTS)
def test_requests_made_of_the_document(
    path: str, mode: GenerationMode, document: Any, served: tuple[Gateway, MockEngine]
) -> None:
    gateway, engine = served
    statuses = play(document, path, "POST", mode, gateway)
    assert mode is GenerationMode.NEGATIVE or statuses[200]
    wait_for(lambda: gateway.metric("gateway_requests_in_flight") == 0)
    assert engine.state()["in_flight"] == 0
    assert not [line for line in gateway.logs if line["level"] in ("error", "critical", "raw")]


@pytest.mark.parametrize("path", GETS)
def test_what_is_read(path: str, document: Any, served: tuple[Gateway, MockEngine]) -> None:
    assert play(document, path, "GET", GenerationMode.POSITIVE, served[0])


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("ChatRequest", CHAT),
        ("CompletionRequest", COMPLETION),
        ("TokenizeRequest", TOKENIZE),
        ("DetokenizeRequest", DETOKENIZE),
    ],
)
def test_each_field_that_is_taken_is_there_with_its_fate(name: str, table: Any, client: httpx.Client) -> None:
    properties = client.get("/openapi.json").json()["components"]["schemas"][name]["properties"]
    assert properties.keys() == {field.name for field in table.values() if field.fate in (Fate.FORWARDED, Fate.DONE)}
    for field, schema in properties.items():
        assert table[field].note in schema["description"]


def test_which_routes_take_a_key(client: httpx.Client) -> None:
    document = client.get("/openapi.json").json()
    assert document["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    for path, methods in document["paths"].items():
        for operation in methods.values():
            if path in OPEN_PATHS:
                assert "security" not in operation
                assert "401" not in operation["responses"]
            else:
                # Without a file of keys only an operator needs one.
                assert {"key": []} in operation["security"]
                assert operation["responses"].keys() >= {"401", "403"}
                assert ({} in operation["security"]) == (not path.startswith("/admin/"))


def test_statuses_and_contents(client: httpx.Client) -> None:
    document = client.get("/openapi.json").json()
    operations = {path: methods.get("post") or methods["get"] for path, methods in document["paths"].items()}
    # An operator's routes need an admin key; they have tests of their own.
    assert {path for path in operations if not path.startswith("/admin/")} == {*POSTS, *GETS}
    for path in POSTS[:2]:
        responses = operations[path]["responses"]
        assert responses.keys() == {"200", "400", "401", "403", "404", "408", "413", "429", "500", "503", "504"}
        assert responses["200"]["content"].keys() == {"application/json", "text/event-stream"}
    for operation in operations.values():
        assert "422" not in operation["responses"]
        for status, response in operation["responses"].items():
            if int(status) >= 400 and operation is not operations["/health/ready"]:
                assert response["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/Error"}
    for send in (ask, complete):
        assert send(client, stream=True).headers["content-type"].partition(";")[0] == "text/event-stream"
    assert client.get("/metrics").headers["content-type"].partition(";")[0] == "text/plain"
