"""Several choices in one request, and several prompts: each is a request of its own to the engine, together they are
one answer."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.mock_engine.running import MockEngine, running_mock_engine
from tests.support.chat import ask, chat, complete, completion, events
from tests.support.gateway import Gateway, raw_request, running_gateway
from tests.support.waiting import wait_for

BROKEN = {"tokens": 2, "error": "UNAVAILABLE: The engine is dead."}
PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}


def send(client: httpx.Client, kind: str, **fields: Any) -> httpx.Response:
    return ask(client, **fields) if kind == "chat" else complete(client, **fields)


def body_of(kind: str, **fields: Any) -> dict[str, Any]:
    return chat(**fields) if kind == "chat" else completion(**fields)


def text_of(choice: dict[str, Any]) -> str:
    said = choice.get("message") or choice.get("delta") or choice
    return said.get("content") or said.get("text") or ""


def joined(chunks: list[dict[str, Any]]) -> dict[int, str]:
    texts: dict[int, str] = {}
    for choice in (choice for chunk in chunks for choice in chunk.get("choices", ())):
        texts[choice["index"]] = texts.get(choice["index"], "") + text_of(choice)
    return texts


def by_index(requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The engine's requests in the order of their choices."""
    return sorted(requests, key=lambda request: int(request["request_id"].rpartition("-")[2]))


def everything_is_free(gateway: Gateway, engine: MockEngine, count: int) -> list[dict[str, Any]]:
    """The engine's requests, once all of them have ended."""
    requests = engine.wait_for_requests(count)
    assert len(requests) == count
    assert engine.state()["in_flight"] == 0
    wait_for(lambda: gateway.metric("gateway_requests_in_flight") == 0)
    return by_index(requests)


@pytest.mark.parametrize("kind", PATHS)
def test_each_choice_has_its_index_and_its_seed(kind: str, client: httpx.Client, engine: MockEngine) -> None:
    body = send(client, kind, n=3, seed=40).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    requests = by_index(engine.wait_for_requests(3))
    assert [request["request_id"] for request in requests] == [f"{body['id']}-{index}" for index in range(3)]
    assert [request["sampling_parameters"]["seed"] for request in requests] == [40, 41, 42]
    texts = [text_of(choice) for choice in body["choices"]]
    assert len(set(texts)) == 3
    for index, text in enumerate(texts):
        (alone,) = send(client, kind, seed=40 + index).json()["choices"]
        assert text_of(alone) == text
        assert alone["finish_reason"] == body["choices"][index]["finish_reason"]


def test_without_a_seed_the_choices_have_none(client: httpx.Client, engine: MockEngine) -> None:
    assert ask(client, n=2).status_code == 200
    assert all("seed" not in request["sampling_parameters"] for request in engine.wait_for_requests(2))


def test_a_seed_that_grows_out_of_64_bits(client: httpx.Client, engine: MockEngine) -> None:
    assert ask(client, n=2, seed=2**63 - 2).status_code == 200
    answer = ask(client, n=3, seed=2**63 - 2)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "seed")
    assert len(engine.wait_for_requests(2)) == 2


def test_prompts_and_choices_are_numbered_prompt_by_prompt(client: httpx.Client, engine: MockEngine) -> None:
    prompts = ["one", "another", "a third"]
    body = complete(client, prompts, n=2, seed=5).json()
    assert [choice["index"] for choice in body["choices"]] == list(range(6))
    requests = by_index(engine.wait_for_requests(6))
    assert [request["inputs"]["text_input"] for request in requests] == [p for p in prompts for _ in range(2)]
    assert [request["sampling_parameters"]["seed"] for request in requests] == [5, 6] * 3
    for index, choice in enumerate(body["choices"]):
        alone = complete(client, prompts[index // 2], seed=5 + index % 2).json()
        assert alone["choices"][0]["text"] == choice["text"]


@pytest.mark.parametrize("kind", PATHS)
def test_prompt_tokens_count_once(kind: str, client: httpx.Client, engine: MockEngine) -> None:
    whole = send(client, kind, n=3, seed=1).json()
    requests = engine.wait_for_requests(3)
    prompt_tokens = requests[0]["num_input_tokens"]
    usage = whole["usage"]
    assert usage["prompt_tokens"] == prompt_tokens
    assert usage["completion_tokens"] == sum(request["tokens"] for request in requests)
    assert usage["total_tokens"] == prompt_tokens + usage["completion_tokens"]

    last = events(send(client, kind, n=3, seed=1, stream=True, stream_options={"include_usage": True}))[-1]
    assert last["usage"] == usage
    assert last["choices"] == []

    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = events(send(client, kind, n=3, seed=1, stream=True, stream_options=options))
    assert chunks[-1]["usage"] == usage
    for index in range(3):
        own = [chunk["usage"] for chunk in chunks if [c["index"] for c in chunk["choices"]] == [index]]
        assert {one["prompt_tokens"] for one in own} == {prompt_tokens}
        counts = [one["completion_tokens"] for one in own]
        assert counts == sorted(counts)
        assert counts[-1] == 20


def test_tokens_of_several_prompts_are_added_up(client: httpx.Client, engine: MockEngine) -> None:
    usage = complete(client, ["one", "and another"], n=2).json()["usage"]
    requests = by_index(engine.wait_for_requests(4))
    assert usage["prompt_tokens"] == requests[0]["num_input_tokens"] + requests[2]["num_input_tokens"]
    assert usage["completion_tokens"] == sum(request["tokens"] for request in requests)


@pytest.mark.parametrize("kind", PATHS)
def test_a_stream_of_choices_says_what_the_whole_answer_says(kind: str, client: httpx.Client) -> None:
    whole = send(client, kind, n=4, seed=9, max_tokens=60).json()["choices"]
    chunks = events(send(client, kind, n=4, seed=9, max_tokens=60, stream=True))
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert joined(chunks) == {choice["index"]: text_of(choice) for choice in whole}
    reasons = {
        choice["index"]: choice["finish_reason"]
        for chunk in chunks
        for choice in chunk["choices"]
        if choice["finish_reason"]
    }
    assert reasons == {choice["index"]: choice["finish_reason"] for choice in whole}


def test_choices_that_end_at_different_times(client: httpx.Client, engine: MockEngine) -> None:
    """One stands still until two others have ended, and then goes on."""
    engine.add_fault(request_id="-0", text=["a", "b", "c"], stall_after=1)
    engine.add_fault(request_id="-1", text=["x"])
    engine.add_fault(request_id="-2", text=["y", "z"])
    raw = ""
    with client.stream("POST", PATHS["chat"], json=chat(n=3, stream=True)) as answer:
        for line in answer.iter_lines():
            raw += line + "\n"
            if raw.count('"stop"') == 2:
                engine.clear_faults()
    chunks = [json.loads(line[6:]) for line in raw.splitlines() if line.startswith("data: {")]
    assert joined(chunks) == {0: "abc", 1: "x", 2: "yz"}
    finished = [c["choices"][0]["index"] for c in chunks if c["choices"][0]["finish_reason"] == "stop"]
    assert sorted(finished[:2]) == [1, 2]
    assert finished[2] == 0
    assert raw.rstrip().endswith("data: [DONE]")
    assert raw.count("[DONE]") == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", PATHS)
def test_one_that_is_refused_is_named_and_the_others_are_freed(
    kind: str, stream: bool, client: httpx.Client, gateway: Gateway, engine: MockEngine
) -> None:
    engine.add_fault(request_id="-2", error_before="INVALID_ARG sampling_parameters.seed: no such seed.")
    engine.add_fault(stall_after=0)
    answer = send(client, kind, n=4, stream=stream, stop=["zzz"])
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["message"].startswith("Choice 2: ")
    assert (error["param"], error["code"]) == ("seed", "invalid_value")
    requests = everything_is_free(gateway, engine, 4)
    assert [request["ended"] for request in requests] == ["cancelled", "cancelled", "error", "cancelled"]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"error_after": BROKEN}, "Choice 1: The engine is dead."),
        ({"finish_reason_error": True}, "Choice 1: The engine failed: "),
        ({"close_after": {"events": 3}}, "Choice 1: The inference server died in the middle of the answer."),
    ],
    ids=["error", "finish_reason_error", "died"],
)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", PATHS)
def test_one_that_fails_in_the_middle_is_named_and_the_others_are_freed(
    fault: dict[str, Any],
    message: str,
    kind: str,
    stream: bool,
    client: httpx.Client,
    gateway: Gateway,
    engine: MockEngine,
) -> None:
    engine.add_fault(request_id="-1", text=["a", "b", "c", "d"], **fault)
    engine.add_fault(text=["x", "y", "z"], stall_after=2)
    answer = send(client, kind, n=3, stream=stream)
    if stream:
        assert answer.status_code == 200
        *chunks, last = events(answer)
        assert all(choice["finish_reason"] is None for chunk in chunks for choice in chunk["choices"])
        said = "" if "finish_reason_error" in fault else "ab"
        assert joined(chunks).get(1, "") == said
        assert all("xy".startswith(text) for index, text in joined(chunks).items() if index != 1)
        error = last["error"]
    else:
        assert answer.status_code == (500 if "finish_reason_error" in fault else 503)
        error = answer.json()["error"]
    assert error["message"].startswith(message)
    requests = everything_is_free(gateway, engine, 3)
    assert [requests[index]["ended"] for index in (0, 2)] == ["cancelled"] * 2
    engine.clear_faults()
    assert ask(client).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("waiting_for", ["admission", "token", "more"])
@pytest.mark.parametrize("kind", PATHS)
def test_a_client_that_goes_away_frees_every_choice(
    kind: str, waiting_for: str, stream: bool, gateway: Gateway, engine: MockEngine, client: httpx.Client
) -> None:
    """Queued, decoding, and while one of them is not even admitted."""
    stalled: dict[str, dict[str, Any]] = {
        "admission": {"stall_before": True},
        "token": {"stall_after": 0},
        "more": {"stall_after": 2},
    }
    engine.add_fault(request_id="-1", **stalled[waiting_for])
    engine.add_fault(stall_after=1)
    body = json.dumps(body_of(kind, n=3, stream=stream)).encode()
    with raw_request(gateway, PATHS[kind], body) as connection:
        wait_for(lambda: engine.state()["in_flight"] == 3)
        connection.close()
    wait_for(lambda: gateway.metric("gateway_requests_in_flight") == 0)
    # Before its first response Triton does not tell a backend that a client has gone.
    wait_for(lambda: engine.state()["in_flight"] <= 1)
    engine.clear_faults()
    requests = everything_is_free(gateway, engine, 3)
    assert [request["ended"] for request in requests] == ["cancelled"] * 3


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", PATHS)
def test_in_front_of_the_stock_backend(
    kind: str, stream: bool, stock_client: httpx.Client, stock_gateway: Gateway, stock: MockEngine
) -> None:
    """It sends no admission: an answer begins with the first token of all choices."""
    options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    answer = send(stock_client, kind, n=3, seed=4, **options)
    assert answer.status_code == 200
    requests = stock.wait_for_requests(3)
    assert sorted(request["sampling_parameters"]["seed"] for request in requests) == [4, 5, 6]
    if stream:
        *chunks, last = events(answer)
        texts, usage = joined(chunks), last["usage"]
    else:
        texts = {choice["index"]: text_of(choice) for choice in answer.json()["choices"]}
        usage = answer.json()["usage"]
    assert len(set(texts.values())) == 3
    assert usage["prompt_tokens"] == requests[0]["num_input_tokens"]
    assert usage["completion_tokens"] == 60

    # An engine that gave up says so in an empty last response, here the only one.
    stock.reset()
    stock.add_fault(next=1, finish_reason_error=True)
    answer = send(stock_client, kind, n=3, **options)
    failed = events(answer)[-1]["error"] if stream else answer.json()["error"]
    assert failed["message"].startswith("Choice ")
    assert "no reason" in failed["message"]
    everything_is_free(stock_gateway, stock, 3)


@contextmanager
def gateway_with(engine: MockEngine, repository: Path, *flags: str) -> Iterator[tuple[Gateway, httpx.Client]]:
    with (
        running_gateway("--triton", engine.url, "--model-repository", str(repository), *flags) as gateway,
        httpx.Client(base_url=gateway.wait_until_ready().url, timeout=60) as client,
    ):
        yield gateway, client


def test_the_deadline_frees_every_choice(engine: MockEngine, repository: Path) -> None:
    with gateway_with(engine, repository, "--request-timeout", "1") as (gateway, client):
        engine.add_fault(request_id="-0", stall_after=1)
        engine.add_fault(text=["x", "y"])
        for kind in PATHS:
            answer = send(client, kind, n=3)
            assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline_exceeded")
            assert "Choice" not in answer.json()["error"]["message"]
            chunks = events(send(client, kind, n=3, stream=True))
            assert chunks[-1]["error"]["code"] == "deadline_exceeded"
            assert joined(chunks)[1] == joined(chunks)[2] == "xy"
        requests = everything_is_free(gateway, engine, 12)
        assert [request["ended"] for request in requests] == ["cancelled"] * 4 + ["finished"] * 8


def test_choices_count_as_open_requests(engine: MockEngine, repository: Path) -> None:
    with gateway_with(engine, repository, "--max-in-flight", "4", "--max-waiting", "0") as (gateway, client):
        engine.add_fault(stall_after=1)
        waiting = threading.Thread(target=lambda: ask(client, n=2))
        waiting.start()
        wait_for(lambda: engine.state()["in_flight"] == 2)
        assert gateway.metric("gateway_requests_in_flight") == 2
        answer = complete(client, ["a", "b", "c"])
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
        # What can never be admitted is no matter of trying again.
        for prompts, n, param in ((["a"], 5, "n"), (["a"] * 5, 1, "prompt"), (["a"] * 2, 3, "n")):
            answer = complete(client, prompts, n=n)
            error = answer.json()["error"]
            assert (answer.status_code, error["param"]) == (400, param)
            assert "max_in_flight" in error["message"]
            assert "retry-after" not in answer.headers
        assert len(engine.requests()) == 2
        engine.clear_faults()
        waiting.join()
        assert complete(client, ["a", "b"], n=2).status_code == 200
        wait_for(lambda: gateway.metric("gateway_requests_in_flight") == 0)


@pytest.mark.parametrize("stream", [False, True])
def test_as_many_choices_as_there_may_be(
    stream: bool, client: httpx.Client, gateway: Gateway, engine: MockEngine
) -> None:
    answer = ask(client, n=128, seed=1, max_tokens=3, stream=stream)
    assert answer.status_code == 200
    texts = (
        joined(events(answer)) if stream else {choice["index"]: text_of(choice) for choice in answer.json()["choices"]}
    )
    assert sorted(texts) == list(range(128))
    assert all(texts.values())
    requests = everything_is_free(gateway, engine, 128)
    assert {request["ended"] for request in requests} == {"finished"}
    assert [request["sampling_parameters"]["seed"] for request in requests] == list(range(1, 129))
    for wrong in (0, 129, -1, "2", 1.5, True):
        answer = ask(client, n=wrong)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "n")


def test_a_slow_reader_loses_nothing_of_any_choice(client: httpx.Client, engine: MockEngine) -> None:
    """Log probabilities make the answers large, so that every buffer on the way fills while nothing is read."""
    fields = {"n": 6, "seed": 3, "max_tokens": 300, "logprobs": True, "top_logprobs": 20, "ignore_eos": True}
    whole = ask(client, **fields).json()
    raw = bytearray()
    with client.stream("POST", PATHS["chat"], json=chat(**fields, stream=True)) as answer:
        for number, data in enumerate(answer.iter_raw()):
            if number == 1:
                # Nothing is read until the engine is done or stands still.
                wait_until_quiet(engine)
            raw += data
    chunks = [json.loads(block[6:]) for block in bytes(raw).decode().split("\n\n")[:-2]]
    for choice in whole["choices"]:
        own = [c for chunk in chunks for c in chunk["choices"] if c["index"] == choice["index"]]
        assert "".join(text_of(c) for c in own) == text_of(choice)
        content = [position for c in own if c["logprobs"] for position in c["logprobs"]["content"]]
        assert content == choice["logprobs"]["content"]


def wait_until_quiet(engine: MockEngine) -> None:
    seen = -1
    while seen != (seen := sum(request["responses"] for request in engine.requests())):
        threading.Event().wait(0.3)


def test_two_choices_share_an_instance_that_is_chosen_once(repository: Path, engine: MockEngine) -> None:
    """The choices of one request are one answer: of one engine, with its one version of the model."""
    with running_mock_engine(model_repository=repository) as second:
        flags = ("--triton", engine.url, "--triton", second.url, "--model-repository", str(repository))
        with running_gateway(*flags) as gateway, httpx.Client(base_url=gateway.wait_until_ready().url) as client:
            wait_for(lambda: sum("is ready on" in line["message"] for line in gateway.logs) == 2)
            assert ask(client, n=4).status_code == 200
            assert sorted([len(engine.requests()), len(second.requests())]) == [0, 4]
