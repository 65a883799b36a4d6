"""Requests of known forms: the same on the wire, for the client and for the operator as those that are the first of
theirs, also where something goes wrong."""

import contextlib
import json
import os
import re
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.mock_engine.running import MockEngine, running_mock_engine
from tests.mock.test_keys import new_key
from tests.support.chat import MODEL, events, joined
from tests.support.gateway import Gateway, running_gateway
from tests.support.service import is_alive
from tests.support.waiting import wait_for

PATH = "/v1/chat/completions"
CONVERSATION = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": 'Say "ä\n\u2028🙂" \\ twice.'},
    {"role": "assistant", "content": ""},
    {"role": "user", "content": "Again."},
]


def body(text: str | list[dict[str, str]] = CONVERSATION, /, **fields: Any) -> dict[str, Any]:
    messages = text if isinstance(text, list) else [{"role": "user", "content": text}]
    return {"model": MODEL, "messages": messages, "max_tokens": 20} | fields


def encoded(value: Any) -> bytes:
    """As httpx does it, so that the form is the same."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def ask(client: httpx.Client, text: str | list[dict[str, str]] = CONVERSATION, /, **fields: Any) -> httpx.Response:
    return client.post(PATH, json=body(text, **fields))


def learned(gateway: Gateway, client: httpx.Client, engine: MockEngine | None = None, /, **fields: Any) -> None:
    """The gateway knows the form of such requests now, and has a connection to the engine."""
    before = gateway.metric("gateway_direct_requests_total")
    for number in range(3):
        answer = ask(client, f"To learn, {number}.", **fields)
        assert answer.status_code == 200, answer.text
    assert gateway.metric("gateway_direct_requests_total") > before
    if engine is not None:
        engine.forget_requests()


def without_identity(answer: httpx.Response) -> tuple[int, dict[str, str], str]:
    own = {"date", "x-request-id", "content-length"}
    headers = {name: value for name, value in answer.headers.items() if name not in own}
    text = re.sub(r'"id":"chatcmpl-[0-9a-f]{32}"', '"id":""', answer.text)
    return answer.status_code, headers, re.sub(r'"created":\d+', '"created":0', text)


FIELDS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.5, "seed": 7, "stop": None, "top_p": 0.25, "logit_bias": {"5": 1}},
    {"stop": ["zzz"]},
    {"max_tokens": None},
    {"user": "somebody", "metadata": {"a": "b"}},
    {"unheard_of": 1},
    {"chat_template_kwargs": {"mood": "cheerful", "unread": 1}},
    {"add_generation_prompt": False},
    {"add_special_tokens": True},
    {"reasoning_effort": "low", "documents": [{"title": "t"}]},
    {"stream_options": {"include_usage": True}},
    {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    {"logprobs": True, "top_logprobs": 2},
    {"return_token_ids": True},
    {"priority": 3, "cache_salt": "s"},
]


@pytest.mark.parametrize(
    ("fields", "stream"),
    [(fields, stream) for fields in FIELDS for stream in (False, True) if stream or "stream_options" not in fields],
    ids=str,
)
@pytest.mark.parametrize("backend", ["ours", "stock"])
def test_a_known_form_changes_nothing(
    backend: str, fields: dict[str, Any], stream: bool, request: pytest.FixtureRequest
) -> None:
    client: httpx.Client = request.getfixturevalue("client" if backend == "ours" else "stock_client")
    engine: MockEngine = request.getfixturevalue("engine" if backend == "ours" else "stock")
    # A form of this test's own, so that its first request is the first.
    fields = fields | {"stream": stream, "seed": 1000 + FIELDS.index(fields)}
    answers = [ask(client, **fields) for _ in range(5)]
    if answers[0].status_code != 200:
        # Of the stock backend, which has not everything.
        assert backend == "stock"
        assert len({answer.text for answer in answers}) == 1
        return
    first, *others = (without_identity(answer) for answer in answers)
    assert others == [first] * 4
    assert len({answer.headers["x-request-id"] for answer in answers}) == 5
    asked = engine.wait_for_requests(5)
    wires = [(one["inputs"], one["sampling_parameters"], one["parameters"]) for one in asked]
    assert wires[1:] == wires[:1] * 4
    assert len({one["id"] for one in asked}) == 5


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 2},
        {"request_id": "mine"},
        {"response_format": {"type": "json_object"}},
        {"echo": True},
        {"return_prompt_text": True},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"constraints": {"no_repeat_ngram": {"size": 3}}},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_what_says_more_than_its_messages_goes_the_usual_way(
    fields: dict[str, Any], gateway: Gateway, client: httpx.Client
) -> None:
    before = gateway.metric("gateway_direct_requests_total")
    answers = [ask(client, **fields) for _ in range(4)]
    assert {answer.status_code for answer in answers} == {answers[0].status_code}
    assert gateway.metric("gateway_direct_requests_total") == before


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
        [{"role": "developer", "content": "a"}],
        [{"role": "user", "content": "a", "name": "b"}],
        [{"role": "user", "content": None}],
        [{"role": "user"}],
        [{"role": "nobody", "content": "a"}],
        [],
    ],
)
def test_other_messages_of_a_known_form_go_the_usual_way(
    messages: list[dict[str, Any]], gateway: Gateway, client: httpx.Client
) -> None:
    learned(gateway, client, user="known")
    before = gateway.metric("gateway_direct_requests_total")
    known, unknown = ask(client, messages, user="known"), ask(client, messages, user="unknown")
    assert without_identity(known) == without_identity(unknown)
    assert gateway.metric("gateway_direct_requests_total") == before


def test_what_stands_around_must_be_the_same_to_the_byte(gateway: Gateway, client: httpx.Client) -> None:
    learned(gateway, client, seed=31)
    known = encoded(body("x", seed=31)).decode()
    broken = [known[:-1], known + "}", known.replace("31", "31,"), known.replace("31", "031"), known + known]
    for text in broken:
        answer = client.post(PATH, content=text)
        assert answer.status_code == 400, text
    twice = known.replace('"seed"', '"messages": [], "seed"')
    assert "stands twice" in client.post(PATH, content=twice).json()["error"]["message"]
    for text in (known, known.replace("31", "31 "), known.replace("seed", "se\\u0065d")):
        assert client.post(PATH, content=text).status_code == 200, text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "text",
    [
        "INVALID_ARG sampling_parameters.seed: seed cannot be used here.",
        "INVALID_ARG prompt: it holds 5000 tokens.",
        "INTERNAL: it broke",
    ],
)
def test_a_refusal_of_the_engine(
    text: str, stream: bool, gateway: Gateway, client: httpx.Client, engine: MockEngine
) -> None:
    learned(gateway, client, engine, stream=stream, seed=41)
    engine.add_fault(error_before=text)
    known = ask(client, "known", stream=stream, seed=41)
    engine.add_fault(error_before=text)
    assert without_identity(known) == without_identity(ask(client, "unknown", stream=stream, seed=42))
    assert known.status_code in (400, 500)
    assert len(engine.wait_for_requests(2)) == 2, "it is not asked again"


@pytest.mark.parametrize(
    "fault", [{"error_after": {"tokens": 3, "error": "INTERNAL: it broke"}}, {"close_after": {"events": 4}}]
)
def test_a_failure_in_mid_stream(
    fault: dict[str, Any], gateway: Gateway, client: httpx.Client, engine: MockEngine
) -> None:
    learned(gateway, client, engine, stream=True, seed=43)
    engine.add_fault(**fault)
    known = ask(client, "as long as the other", stream=True, seed=43)
    engine.add_fault(**fault)
    unknown = ask(client, "as long as the other", stream=True, seed=44)
    assert events(known)[-1]["error"] == events(unknown)[-1]["error"]
    assert len(joined(events(known))) > 0
    assert known.text.endswith("data: [DONE]\n\n")
    wait_for(lambda: gateway.metric("gateway_requests_in_flight") == 0)


@pytest.mark.parametrize("size", [1, 60, 200, 700])
def test_a_connection_cut_at_any_byte(size: int, gateway: Gateway, client: httpx.Client, engine: MockEngine) -> None:
    learned(gateway, client, seed=45)
    engine.add_fault(close_after={"bytes": size})
    assert ask(client, seed=45).status_code == 503
    engine.clear_faults()
    wait_for(lambda: ask(client, seed=45).status_code == 200)


def test_a_kept_connection_that_the_server_closed_is_no_failure(
    gateway: Gateway, client: httpx.Client, engine: MockEngine
) -> None:
    learned(gateway, client, seed=46)
    engine.add_fault(close_after={"bytes": 0})
    assert ask(client, seed=46).status_code in (200, 503)
    engine.clear_faults()
    wait_for(lambda: ask(client, seed=46).status_code == 200)


def test_many_at_once_each_on_a_new_connection(gateway: Gateway, client: httpx.Client, engine: MockEngine) -> None:
    for stream in (False, True):
        learned(gateway, client, engine, stream=stream, seed=48)
        before = gateway.metric("gateway_direct_requests_total")
        engine.add_fault(token_interval_ms=20, next=24)
        with ThreadPoolExecutor(24) as pool:
            asked = [pool.submit(ask, client, str(number), stream=stream, seed=48) for number in range(24)]
            answers = [future.result() for future in asked]
        assert {answer.status_code for answer in answers} == {200}
        assert gateway.metric("gateway_direct_requests_total") == before + 24
        assert len(engine.wait_for_requests(24)) == 24


def test_an_instance_that_is_gone(repository: Path) -> None:
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(running_mock_engine(model_repository=repository))
        flags = ("--triton", first.url, "--model-repository", str(repository))
        gateway = stack.enter_context(running_gateway(*flags))
        client = stack.enter_context(httpx.Client(base_url=gateway.wait_until_ready().url))
        learned(gateway, client, seed=49)
        with socket.socket() as taken:
            os.kill(first.pid, signal.SIGKILL)
            wait_for(lambda: not is_alive(str(first.pid)))
            # Nobody answers there any more, and nobody else may take the place.
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind(("127.0.0.1", int(first.url.rpartition(":")[2])))
            answers = [ask(client, seed=49), ask(client, seed=50)]
            assert {answer.status_code for answer in answers} == {503}
            wait_for(lambda: gateway.metric("gateway_requests_in_flight") == 0)


def test_a_request_moves_once_to_another_instance(repository: Path, engine: MockEngine) -> None:
    with running_mock_engine(model_repository=repository) as second:
        flags = ("--triton", engine.url, "--triton", second.url, "--model-repository", str(repository))
        with running_gateway(*flags) as gateway, httpx.Client(base_url=gateway.wait_until_ready().url) as client:
            wait_for(lambda: sum("is ready on" in line["message"] for line in gateway.logs) == 2)
            for stream in (False, True):
                for _ in range(6):
                    assert ask(client, stream=stream).status_code == 200
                before = gateway.metric("gateway_direct_requests_total")
                # Whichever gets it fails once, behind its admission.
                for faulty in (engine, second):
                    faulty.add_fault(close_after={"events": 1}, next=1)
                    retries = gateway.metric("gateway_retries_total")
                    while gateway.metric("gateway_retries_total") == retries:
                        answer = ask(client, stream=stream)
                        assert answer.status_code == 200
                        assert joined(events(answer)) if stream else answer.json()["choices"][0]["message"]["content"]
                assert gateway.metric("gateway_direct_requests_total") > before
            assert gateway.metric("gateway_requests_in_flight") == 0


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("tokens", [0, 5])
def test_a_client_that_goes_away(
    tokens: int, stream: bool, gateway: Gateway, client: httpx.Client, engine: MockEngine
) -> None:
    learned(gateway, client, engine, stream=stream, seed=47)
    before = gateway.metric("gateway_cancelled_requests_total")
    engine.add_fault(stall_after=tokens)
    with raw(gateway, stream=stream, seed=47) as connection:
        wait_for(lambda: [(r["admitted"], r["tokens"]) for r in engine.requests()] == [(True, tokens)])
        connection.close()
    (request,) = engine.wait_for_requests(1)
    assert request["ended"] == "cancelled"
    wait_for(lambda: gateway.metric("gateway_requests_in_flight") == 0)
    assert gateway.metric("gateway_cancelled_requests_total") == before + 1


def test_a_body_that_is_too_large(engine: MockEngine, repository: Path) -> None:
    flags = ("--triton", engine.url, "--model-repository", str(repository), "--max-body-bytes", "1024")
    with running_gateway(*flags) as gateway, httpx.Client(base_url=gateway.wait_until_ready().url) as client:
        learned(gateway, client)
        assert ask(client, "x" * 1000).status_code == 413
        assert ask(client, "x" * 300).status_code == 200


def test_what_is_known_ends_with_the_model_s_files(engine: MockEngine, repository: Path, tmp_path: Path) -> None:
    """A model's files that are read again."""
    template, config = tmp_path / "chat.jinja", tmp_path / "gateway.yaml"

    model = {"triton_model": MODEL, "names": ["m"], "tokenizer": str(repository.parent / "hf")}
    models = [model | {"chat_template": str(template)}]
    config.write_text(json.dumps({"triton": engine.url, "models": models}))
    template.write_text("first {{ messages[0].content }}")
    with running_gateway("--config", str(config)) as gateway:
        client = httpx.Client(base_url=gateway.wait_until_ready().url)

        def prompts(count: int) -> set[str]:
            engine.forget_requests()
            for _ in range(count):
                assert client.post(PATH, json=body("x") | {"model": "m"}).status_code == 200
            return {request["inputs"]["text_input"] for request in engine.wait_for_requests(count)}

        assert prompts(4) == {"first x"}
        assert gateway.metric("gateway_direct_requests_total") == 2
        template.write_text("second {{ messages[0].content }}")
        gateway.process.send_signal(signal.SIGHUP)
        wait_for(lambda: prompts(1) == {"second x"})
        assert prompts(4) == {"second x"}
        assert gateway.metric("gateway_direct_requests_total") > 2
        client.close()


@pytest.mark.parametrize("stream", [False, True])
def test_a_deadline(stream: bool, engine: MockEngine, repository: Path) -> None:
    flags = ("--triton", engine.url, "--model-repository", str(repository), "--request-timeout", "0.5")
    with running_gateway(*flags) as gateway, httpx.Client(base_url=gateway.wait_until_ready().url) as client:
        learned(gateway, client, engine, stream=stream)
        engine.add_fault(stall_after=2)
        answer = ask(client, stream=stream)
        error = events(answer)[-1]["error"] if stream else answer.json()["error"]
        assert error["code"] == "deadline_exceeded"
        assert [r["ended"] for r in engine.wait_for_requests(1)] == ["cancelled"]
        engine.clear_faults()
        assert ask(client, stream=stream).status_code == 200


def test_a_stalled_engine(engine: MockEngine, repository: Path) -> None:
    flags = ("--triton", engine.url, "--model-repository", str(repository), "--stall-timeout", "1")
    with running_gateway(*flags) as gateway, httpx.Client(base_url=gateway.wait_until_ready().url) as client:
        learned(gateway, client, engine, stream=True)
        learned(gateway, client, engine, stream=False)
        engine.add_fault(stall_after=2)
        assert events(ask(client, stream=True))[-1]["error"]["code"] == "engine_unavailable"
        engine.clear_faults()
        wait_for(lambda: ask(client).status_code == 200)
        engine.add_fault(stall_before=True)
        assert ask(client).status_code == 503
        engine.clear_faults()


@pytest.mark.parametrize("workers", [1, 2])
def test_waiting_for_a_place(workers: int, engine: MockEngine, repository: Path) -> None:
    flags = ("--triton", engine.url, "--model-repository", str(repository), "--workers", str(workers))
    limits = ("--max-in-flight", "1", "--max-waiting", "1")
    with running_gateway(*flags, *limits) as gateway, httpx.Client(base_url=gateway.wait_until_ready().url) as client:
        for number in range(4 * workers):
            # On connections of their own, so that every worker learns.
            assert httpx.post(f"{gateway.url}{PATH}", json=body(str(number))).status_code == 200
        engine.forget_requests()
        engine.add_fault(stall_after=1)
        answers: list[int] = []
        running = [threading.Thread(target=lambda: answers.append(ask(client).status_code)) for _ in range(2)]
        for thread in running:
            thread.start()
        wait_for(lambda: engine.state()["in_flight"] == 1 and gateway.metric("gateway_queue_waiting") == 1)
        refused = ask(client)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        engine.clear_faults()
        for thread in running:
            thread.join()
        assert answers == [200, 200]
        # One that waits and goes away leaves its place to the next.
        engine.add_fault(stall_after=1)
        with raw(gateway), raw(gateway) as second:
            wait_for(lambda: gateway.metric("gateway_queue_waiting") == 1)
            second.close()
            wait_for(lambda: gateway.metric("gateway_queue_waiting") == 0)
            engine.clear_faults()
        wait_for(lambda: ask(client).status_code == 200)


def test_a_client_that_reads_slowly_gets_everything(gateway: Gateway, client: httpx.Client, engine: MockEngine) -> None:
    learned(gateway, client, engine, stream=True, max_tokens=400)
    whole = joined(events(ask(client, "the same", stream=True, max_tokens=400)))
    with raw(gateway, "the same", stream=True, max_tokens=400) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        answer = b""
        while not answer.endswith(b"0\r\n\r\n"):
            answer += connection.recv(512)
    assert joined(events(httpx.Response(200, content=unchunked(answer)))) == whole


@pytest.mark.parametrize("stream", [False, True])
def test_a_drain_lets_it_finish_or_tells_it(stream: bool, engine: MockEngine, repository: Path) -> None:
    flags = ("--triton", engine.url, "--model-repository", str(repository), "--shutdown-timeout", "2")
    with running_gateway(*flags) as gateway, httpx.Client(base_url=gateway.wait_until_ready().url) as client:
        learned(gateway, client, engine, stream=stream)
        engine.add_fault(token_interval_ms=50, next=1)
        answers: list[httpx.Response] = []
        ends = threading.Thread(target=lambda: answers.append(ask(client, stream=stream, max_tokens=20)))
        ends.start()
        wait_for(lambda: engine.state()["in_flight"] == 1)
        engine.add_fault(stall_after=1)
        with_own = f"{gateway.url}{PATH}"
        stalls = threading.Thread(target=lambda: answers.append(httpx.post(with_own, json=body(stream=stream))))
        stalls.start()
        wait_for(lambda: engine.state()["in_flight"] == 2)
        gateway.process.send_signal(signal.SIGTERM)
        ends.join()
        stalls.join()
        done, told = answers
        assert done.status_code == 200
        error = events(told)[-1]["error"] if stream else told.json()["error"]
        assert "shutting down" in error["message"]
        assert gateway.process.wait(10) == 0


def test_a_key_is_asked_for_each_time(engine: MockEngine, repository: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    made = new_key(keys, "somebody", "--requests-per-minute", "6")
    flags = ("--triton", engine.url, "--model-repository", str(repository), "--keys-file", str(keys))
    with running_gateway(*flags) as gateway, httpx.Client(base_url=gateway.wait_until_ready().url) as client:
        allowed = {"authorization": f"Bearer {made}"}
        for number in range(6):
            assert client.post(PATH, json=body(str(number)), headers=allowed).status_code == 200
        assert gateway.metric("gateway_direct_requests_total") == 4
        assert client.post(PATH, json=body("x"), headers=allowed).status_code == 429
        assert client.post(PATH, json=body("x")).status_code == 401
        assert client.post(PATH, json=body("x"), headers={"authorization": "Bearer gw-0"}).status_code == 401
        assert gateway.metric("gateway_direct_requests_total") == 4


HEAD = f"POST {PATH} HTTP/1.1\r\nHost: x\r\n"


def request(*lines: str, **fields: Any) -> bytes:
    content = encoded(body("x", **fields))
    head = HEAD + "".join(f"{line}\r\n" for line in (*lines, f"Content-Length: {len(content)}"))
    return head.encode() + b"\r\n" + content


@pytest.mark.parametrize("piece", [1, 7, 100, 10_000])
def test_any_cut_of_a_request_gives_the_same(piece: int, gateway: Gateway, client: httpx.Client) -> None:
    learned(gateway, client, max_tokens=3)
    raw_bytes = request(max_tokens=3) * 2
    with connected(gateway) as connection:
        for at in range(0, len(raw_bytes), piece):
            connection.sendall(raw_bytes[at : at + piece])
        answer = read_until(connection, lambda data: data.count(b'"total_tokens"') == 2)
    assert answer.count(b"HTTP/1.1 200 OK") == 2


def test_requests_behind_one_another(gateway: Gateway, client: httpx.Client) -> None:
    """Pipelined behind one of a known form: they are answered in their order, streams too."""
    learned(gateway, client, max_tokens=3)
    learned(gateway, client, max_tokens=3, stream=True)
    whole, streamed = request(max_tokens=3), request(max_tokens=3, stream=True)
    for order in ((whole, streamed, whole), (streamed, whole, streamed)):
        with connected(gateway) as connection:
            connection.sendall(order[0])
            connection.sendall(order[1] + order[2])
            answer = read_until(connection, lambda data: data.count(b"total_tokens") + data.count(b"[DONE]") == 3)
        kinds = re.findall(rb"content-type: (\S+?)[;\r]", answer)
        assert kinds == [b"text/event-stream" if one is streamed else b"application/json" for one in order]


@pytest.mark.parametrize(
    "line", ["Connection: close", "Expect: 100-continue", "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c"]
)
def test_out_of_the_ordinary_heads_go_the_usual_way(line: str, gateway: Gateway, client: httpx.Client) -> None:
    learned(gateway, client, max_tokens=3)
    before = gateway.metric("gateway_direct_requests_total")
    with connected(gateway) as connection:
        connection.sendall(request(line, max_tokens=3))
        answer = read_until(connection, lambda data: b'"total_tokens"' in data)
        if "close" in line:
            assert connection.recv(100) == b""
    assert b"HTTP/1.1 200 OK" in answer
    assert gateway.metric("gateway_direct_requests_total") == before


def test_half_a_request_and_then_nothing(gateway: Gateway, client: httpx.Client) -> None:
    learned(gateway, client, max_tokens=3)
    half = request(max_tokens=3)
    with connected(gateway) as connection:
        connection.sendall(half[:-10])
        # Longer than the gateway waits for a rest that is worth waiting for.
        connection.settimeout(1.0)
        with contextlib.suppress(TimeoutError):
            assert connection.recv(1) == b"", "there is nothing to answer"
        connection.settimeout(30)
        connection.sendall(half[-10:])
        answer = read_until(connection, lambda data: b'"total_tokens"' in data)
    assert answer.startswith(b"HTTP/1.1 200 OK")


def test_the_log_and_the_metrics_say_the_same(gateway: Gateway, client: httpx.Client) -> None:
    logs: list[dict[str, Any]] = []
    for number in range(4):
        answer = ask(client, stream=True, seed=99)
        name = answer.headers["x-request-id"]
        wait_for(lambda name=name: any(line.get("request_id") == name for line in gateway.logs))  # type: ignore[misc]
        logs += [line for line in gateway.logs if line.get("request_id") == name]
        assert len(logs) == number + 1
    measured = {"request_id", "time", "total", "sent", "head", "first_token", "connect", "mean_itl", "queue"}
    assert [line.keys() for line in logs] == [logs[0].keys()] * 4
    plain = [{name: value for name, value in line.items() if name not in measured} for line in logs]
    assert plain == plain[:1] * 4


@contextlib.contextmanager
def connected(gateway: Gateway) -> Iterator[socket.socket]:
    host, _, port = gateway.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield connection


@contextlib.contextmanager
def raw(gateway: Gateway, text: str = "x", /, **fields: Any) -> Iterator[socket.socket]:
    """A request on a connection of its own, whose answer is not read."""
    content = encoded(body(text, **fields))
    with connected(gateway) as connection:
        connection.sendall(f"{HEAD}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        yield connection


def read_until(connection: socket.socket, is_enough: Any) -> bytes:
    answer = b""
    while not is_enough(answer):
        data = connection.recv(65536)
        assert data, answer
        answer += data
    return answer


def unchunked(answer: bytes) -> bytes:
    _, _, rest = answer.partition(b"\r\n\r\n")
    parts = []
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        parts.append(rest[: int(size, 16)])
        rest = rest[int(size, 16) + 2 :]
    return b"".join(parts)
