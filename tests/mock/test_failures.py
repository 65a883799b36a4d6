"""What goes wrong on the way: refusals before the head, errors after it, engines that vanish, limits."""

import contextlib
import json
import socket
import threading
from pathlib import Path

import httpx
import pytest

from bench.mock_engine.running import MockEngine, running_mock_engine
from gateway.openai.schema import LARGE_BODY
from tests.support.chat import MODEL, ask, chat, events, joined
from tests.support.gateway import Gateway, raw_request, running_gateway
from tests.support.waiting import wait_for


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("text", "status", "param"),
    [
        ("INVALID_ARG sampling_parameters.seed: seed cannot be used here.", 400, "seed"),
        ("INVALID_ARG prompt: it holds 5000 tokens.", 400, "messages"),
        ("UNAVAILABLE: The engine is dead.", 503, None),
        ("INTERNAL: it broke", 500, None),
    ],
)
def test_a_refusal_before_the_first_response_is_a_status(
    stream: bool, text: str, status: int, param: str | None, client: httpx.Client, engine: MockEngine
) -> None:
    engine.add_fault(error_before=text)
    answer = ask(client, stream=stream)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert error["param"] == param
    sentence = text.partition(": ")[2]
    assert error["message"] in (sentence, f"{param}: {sentence}", f"The engine failed: {sentence}.")
    assert ("retry-after" in answer.headers) is (status == 503)


def test_an_error_in_mid_stream_is_an_event_and_done(client: httpx.Client, engine: MockEngine) -> None:
    engine.add_fault(error_after={"tokens": 3, "error": "UNAVAILABLE: The engine is dead."})
    answer = ask(client, stream=True)
    assert answer.status_code == 200
    chunks = events(answer)
    assert joined(chunks)
    assert chunks[-1]["error"] == {
        "message": "The engine is dead.",
        "type": "unavailable_error",
        "param": None,
        "code": "engine_unavailable",
    }
    assert all(c["choices"][0]["finish_reason"] is None for c in chunks[:-1])


def test_an_error_in_the_middle_of_a_whole_answer_is_a_status(client: httpx.Client, engine: MockEngine) -> None:
    engine.add_fault(error_after={"tokens": 3, "error": "UNAVAILABLE: The engine is dead."})
    assert ask(client).status_code == 503


@pytest.mark.parametrize("stream", [False, True])
def test_the_engines_error_finish_names_the_constraint(
    stream: bool, client: httpx.Client, stock_client: httpx.Client, engine: MockEngine, stock: MockEngine
) -> None:
    for faulty, to in ((engine, client), (stock, stock_client)):
        faulty.add_fault(finish_reason_error=True)
        answer = ask(to, stream=stream, guided_choice=["a", "b"])
        error = events(answer)[-1]["error"] if stream and answer.status_code == 200 else answer.json()["error"]
        assert "choice" in error["message"]
        assert "no reason" in error["message"]
        assert error["type"] == "internal_error"


@pytest.mark.parametrize("events_before", [0, 1, 4])
def test_an_upstream_that_drops_the_connection(events_before: int, client: httpx.Client, engine: MockEngine) -> None:
    engine.add_fault(close_after={"events": events_before})
    answer = ask(client, stream=True)
    if events_before == 0:
        assert answer.status_code == 503
    else:
        assert "error" in events(answer)[-1]
    assert ask(client).status_code in (200, 503)
    engine.clear_faults()
    assert ask(client).status_code == 200


@pytest.mark.parametrize("size", [1, 60, 200, 700])
def test_a_connection_cut_at_any_byte_is_never_a_short_answer(
    size: int, client: httpx.Client, engine: MockEngine
) -> None:
    engine.add_fault(close_after={"bytes": size})
    assert ask(client).status_code == 503


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("tokens", [0, 5])
def test_a_client_that_goes_away_frees_the_engine(
    tokens: int, stream: bool, gateway: Gateway, client: httpx.Client, engine: MockEngine
) -> None:
    """Queued (admitted, no token yet) and decoding."""
    engine.add_fault(stall_after=tokens)
    with raw_request(gateway, "/v1/chat/completions", json.dumps(chat(stream=stream)).encode()) as connection:
        wait_for(lambda: [(r["admitted"], r["tokens"]) for r in engine.requests()] == [(True, tokens)])
        connection.close()
    (request,) = engine.wait_for_requests(1)
    assert request["ended"] == "cancelled"
    assert engine.state()["in_flight"] == 0
    wait_for(lambda: gateway.metric("gateway_requests_in_flight") == 0)


def test_a_client_that_goes_away_before_admission_is_let_go_at_once(
    gateway: Gateway, client: httpx.Client, engine: MockEngine
) -> None:
    """Triton tells a backend of a closed connection only after the first response: the gateway is free at once, the
    engine as soon as it answers."""
    engine.add_fault(stall_before=True)
    with raw_request(gateway, "/v1/chat/completions", json.dumps(chat()).encode()) as connection:
        wait_for(lambda: engine.state()["in_flight"] == 1)
        connection.close()
    wait_for(lambda: gateway.metric("gateway_requests_in_flight") == 0)
    engine.clear_faults()
    (request,) = engine.wait_for_requests(1)
    assert request["ended"] == "cancelled"


def test_a_deadline_is_504_and_cancels(engine: MockEngine, repository: Path) -> None:
    flags = ("--triton", engine.url, "--model-repository", str(repository), "--request-timeout", "0.5")
    with running_gateway(*flags) as gateway, httpx.Client(base_url=gateway.wait_until_ready().url) as client:
        engine.add_fault(stall_after=2)
        answer = ask(client)
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline_exceeded")
        chunks = events(ask(client, stream=True))
        assert chunks[-1]["error"]["code"] == "deadline_exceeded"
        assert joined(chunks)
        assert [r["ended"] for r in engine.wait_for_requests(2)] == ["cancelled"] * 2


@pytest.mark.parametrize(("spaces", "stream"), [(0, False), (LARGE_BODY, True)])
def test_a_deadline_before_the_engine_is_asked_is_504(
    spaces: int, stream: bool, engine: MockEngine, repository: Path
) -> None:
    flags = ("--triton", engine.url, "--model-repository", str(repository), "--request-timeout", "0.3")
    # To check it takes two seconds.
    schema = {"type": "object", "properties": {f"p{i}": {"type": "string", "pattern": f"^a{i}"} for i in range(4000)}}
    body = json.dumps(chat(guided_json=schema, stream=stream)).encode() + b" " * spaces
    with running_gateway(*flags) as gateway, httpx.Client(base_url=gateway.wait_until_ready().url) as client:
        answer = client.post("/v1/chat/completions", content=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline_exceeded")
        assert engine.requests() == []
        assert ask(client, max_tokens=1).status_code == 200


def test_one_request_too_many_is_429(engine: MockEngine, repository: Path) -> None:
    flags = ("--triton", engine.url, "--model-repository", str(repository))
    limits = ("--max-in-flight", "2", "--max-waiting", "0")
    with running_gateway(*flags, *limits) as gateway, httpx.Client(base_url=gateway.wait_until_ready().url) as client:
        engine.add_fault(stall_after=1)
        waiting = [threading.Thread(target=lambda: ask(client)) for _ in range(2)]
        for thread in waiting:
            thread.start()
        wait_for(lambda: engine.state()["in_flight"] == 2)
        answer = ask(client)
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
        assert answer.json()["error"]["type"] == "rate_limit_error"
        engine.clear_faults()
        for thread in waiting:
            thread.join()
        assert ask(client).status_code == 200


def test_a_body_that_is_too_large_is_413_before_it_is_read(gateway: Gateway, engine: MockEngine) -> None:
    host, _, port = gateway.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n{")
        assert connection.recv(4096).startswith(b"HTTP/1.1 413 ")
    answer = httpx.post(f"{gateway.url}/v1/chat/completions", content=(b" " * 65536 for _ in range(100)))
    assert answer.status_code == 413
    assert "max_body_bytes" in answer.json()["error"]["message"]


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 100_000, b"null"])
def test_a_body_that_is_no_request_is_400(body: bytes, client: httpx.Client) -> None:
    answer = client.post("/v1/chat/completions", content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/responses", "/v1/moderations"])
def test_what_is_to_come_says_so(path: str, client: httpx.Client) -> None:
    answer = client.post(path, json={})
    assert answer.status_code == 400
    assert "not supported yet" in answer.json()["error"]["message"]


def test_unknown_paths_and_methods_have_openais_error_shape(client: httpx.Client) -> None:
    assert client.get("/nope").json()["error"]["message"].startswith("GET /nope does not exist")
    answer = client.get("/v1/chat/completions")
    assert answer.status_code == 405
    assert answer.json()["error"]["message"]


def test_readiness_follows_the_engine(engine: MockEngine, gateway: Gateway, client: httpx.Client) -> None:
    engine.set_state(models={MODEL: {"ready": False}})
    wait_for(lambda: client.get("/health/ready").status_code == 503)
    assert "ready" in client.get("/health/ready").json()["models"][MODEL]
    answer = ask(client)
    assert answer.status_code == 503
    assert "retry-after" in answer.headers
    assert client.get("/health/live").status_code == 200
    engine.set_state(models={MODEL: {"ready": True}})
    wait_for(lambda: client.get("/health/ready").status_code == 200)
    assert ask(client).status_code == 200


def test_no_triton_at_all(repository: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with running_gateway("--triton", url, "--model-repository", str(repository)) as gateway:
            answer = httpx.post(f"{gateway.url}/v1/chat/completions", json=chat())
            assert answer.status_code == 503
            assert "127.0.0.1" not in answer.text
            assert httpx.get(f"{gateway.url}/health/live").status_code == 200
            assert httpx.get(f"{gateway.url}/health/ready").status_code == 503


def test_an_engine_that_dies_and_comes_back(repository: Path) -> None:
    with contextlib.ExitStack() as stack:
        with running_mock_engine(model_repository=repository) as first:
            port = first.url.rpartition(":")[2]
            flags = ("--triton", first.url, "--model-repository", str(repository))
            gateway = stack.enter_context(running_gateway(*flags))
            client = stack.enter_context(httpx.Client(base_url=gateway.wait_until_ready().url))
            assert ask(client).status_code == 200
        assert ask(client).status_code == 503
        with running_mock_engine(model_repository=repository, port=port):
            wait_for(lambda: ask(client).status_code == 200)


def test_two_instances_share_the_requests(repository: Path, engine: MockEngine) -> None:
    with running_mock_engine(model_repository=repository) as second:
        flags = ("--triton", engine.url, "--triton", second.url, "--model-repository", str(repository))
        with running_gateway(*flags) as gateway, httpx.Client(base_url=gateway.wait_until_ready().url) as client:
            wait_for(lambda: sum("is ready on" in line["message"] for line in gateway.logs) == 2)
            for faulty in (engine, second):
                faulty.add_fault(stall_after=1)
            waiting = [threading.Thread(target=lambda: ask(client)) for _ in range(6)]
            for thread in waiting:
                thread.start()
            wait_for(lambda: engine.state()["in_flight"] + second.state()["in_flight"] == 6)
            assert engine.state()["in_flight"] == 3
            for faulty in (engine, second):
                faulty.clear_faults()
            for thread in waiting:
                thread.join()


def test_the_api_documents_itself(client: httpx.Client) -> None:
    document = client.get("/openapi.json").json()
    responses = document["paths"]["/v1/chat/completions"]["post"]["responses"]
    assert {"200", "400", "404", "413", "429", "503", "504"} <= responses.keys()
    assert "422" not in responses
    assert "messages" in document["components"]["schemas"]["ChatRequest"]["properties"]
    assert client.get("/docs").status_code == 200


def test_probes_may_ask_with_head(client: httpx.Client) -> None:
    assert client.head("/health/live").status_code == 200
    assert client.head("/health/ready").status_code == 200
