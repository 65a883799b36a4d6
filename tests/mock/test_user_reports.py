"""What users of such gateways have reported, as what must hold here: one test a report, or several.

The comment above a test names the public reports. Reports that other tests hold already have no second one here.
"""

import json
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from langchain_core.messages import AIMessageChunk, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel, SecretStr

from bench.mock_engine.running import MockEngine, running_mock_engine
from tests.support.chat import MODEL, SCHEMA, ask, chat, complete, completion, events, joined
from tests.support.gateway import Gateway, raw_request, running_gateway
from tests.support.waiting import wait_for

PATHS = {"/v1/chat/completions": chat, "/v1/completions": completion}


@contextmanager
def gateway_for(engine: MockEngine, repository: Path, *flags: str) -> Iterator[httpx.Client]:
    with (
        running_gateway("--triton", engine.url, "--model-repository", str(repository), *flags) as gateway,
        httpx.Client(base_url=gateway.wait_until_ready().url, timeout=60) as client,
    ):
        yield client


def error_of(answer: httpx.Response, status: int = 400) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert isinstance(error, dict)
    return error


# server#8852, vllm PR#50544: a JSON schema was rejected, or ignored, or ignored where it is not strict.
@pytest.mark.parametrize("strict", [None, True, False])
@pytest.mark.parametrize("stream", [False, True])
def test_a_json_schema_binds_the_answer_streamed_or_not_strict_or_not(
    stream: bool, strict: bool | None, client: httpx.Client, engine: MockEngine
) -> None:
    inner = {"name": "person", "schema": SCHEMA} | ({} if strict is None else {"strict": strict})
    answer = ask(client, response_format={"type": "json_schema", "json_schema": inner}, stream=stream, max_tokens=100)
    assert answer.status_code == 200
    text = joined(events(answer)) if stream else answer.json()["choices"][0]["message"]["content"]
    assert json.loads(text).keys() == {"name", "n"}
    (request,) = engine.wait_for_requests(1)
    assert request["sampling_parameters"]["structured_outputs"] == {"json": SCHEMA}


# vllm#4070: a schema that is none broke the engine.
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "strin"},
        {"type": "object", "properties": []},
        {"$ref": "#/nowhere"},
        {"type": "string", "pattern": "("},
        {"minimum": "a"},
        {"enum": 5},
    ],
)
def test_a_schema_that_is_none_never_reaches_the_engine(schema: Any, client: httpx.Client, engine: MockEngine) -> None:
    inner = {"name": "x", "schema": schema}
    error = error_of(ask(client, response_format={"type": "json_schema", "json_schema": inner}))
    assert error["param"].startswith("response_format.json_schema.schema")
    assert engine.requests() == []


# server#7796: replies were cropped at 16 tokens and said "stop".
@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_goes_to_the_end_of_the_context_and_says_why_it_ends(stream: bool, client: httpx.Client) -> None:
    def end(**fields: Any) -> tuple[str, int]:
        options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
        answer = ask(client, seed=5, **options, **fields)
        if not stream:
            body = answer.json()
            return body["choices"][0]["finish_reason"], body["usage"]["completion_tokens"]
        *chunks, last = events(answer)
        return chunks[-1]["choices"][0]["finish_reason"], last["usage"]["completion_tokens"]

    reason, tokens = end(max_tokens=None)
    assert (reason, tokens > 20) == ("stop", True)
    reason, tokens = end(max_tokens=None, ignore_eos=True)
    assert (reason, tokens > 400) == ("length", True)
    assert end(max_tokens=7) == ("length", 7)


# server#8194: the usage was null.
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("fields", [{}, {"stop": ["a"]}, {"n": 2}, {"max_tokens": 1}, {"guided_choice": ["yes"]}])
def test_usage_is_always_there(path: str, fields: dict[str, Any], client: httpx.Client, engine: MockEngine) -> None:
    usage = client.post(path, json=PATHS[path](**fields)).json()["usage"]
    requests = engine.wait_for_requests(fields.get("n", 1))
    assert usage["prompt_tokens"] == requests[0]["num_input_tokens"] > 0
    assert usage["completion_tokens"] == sum(request["tokens"] for request in requests) > 0
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    body = PATHS[path](**fields, stream=True, stream_options={"include_usage": True})
    assert events(client.post(path, json=body))[-1]["usage"] == usage


# server#6895, vllm_backend PR#70, PR#75: finish reasons, token counts and log probabilities could not be had.
def test_reasons_and_counts_are_asked_of_the_engine_for_every_request(
    client: httpx.Client, stock_client: httpx.Client, engine: MockEngine, stock: MockEngine
) -> None:
    for to, asked in ((client, engine), (stock_client, stock)):
        for path, body in PATHS.items():
            answer = to.post(path, json=body(logprobs=True if path.endswith("chat/completions") else 1))
            assert answer.json()["choices"][0]["logprobs"], answer.text
        for request in asked.wait_for_requests(2):
            flags = ("return_finish_reason", "return_num_input_tokens", "return_num_output_tokens", "return_logprobs")
            assert [request["inputs"][flag] for flag in flags] == [True] * 4


# dynamo PR#4140, then #8593: unknown fields were refused, and clients broke.
@pytest.mark.parametrize("path", PATHS)
def test_unknown_fields_are_named_and_ignored_unless_they_are_to_be_refused(
    path: str, client: httpx.Client, engine: MockEngine, repository: Path
) -> None:
    body = PATHS[path](seed=3, colour="red", cached={"a": 1}, thinking=None)
    answer = client.post(path, json=body)
    assert answer.status_code == 200
    assert answer.headers["x-gateway-warning"].count("ignored") == 2
    assert all(name in answer.headers["x-gateway-warning"] for name in ("colour", "cached"))
    plain = client.post(path, json=PATHS[path](seed=3)).json()
    assert answer.json()["choices"] == plain["choices"]
    with gateway_for(engine, repository, "--strict-fields") as strict:
        error = error_of(strict.post(path, json=body))
        assert (error["param"], error["code"]) == ("colour", "unknown_parameter")
        assert strict.post(path, json=PATHS[path](thinking=None)).status_code == 200


# vllm_backend PR#88: priority was taken without effect.
def test_priority_is_taken_only_where_it_has_an_effect(
    client: httpx.Client, stock_client: httpx.Client, engine: MockEngine, stock: MockEngine, repository: Path
) -> None:
    assert ask(client, priority=-2).status_code == 200
    assert engine.wait_for_requests(1)[0]["inputs"]["priority"] == -2
    assert error_of(ask(stock_client, priority=1))["param"] == "priority"
    assert stock.requests() == []
    with running_mock_engine(model_repository=repository) as fcfs, gateway_for(fcfs, repository) as to:
        for send in (ask, complete):
            error = error_of(send(to, priority=1))
            assert error["param"] == "priority"
            assert "scheduling_policy" in error["message"]
            assert send(to, priority=0).status_code == 200
    with (
        running_mock_engine(model_repository=repository, without=("priority",)) as old,
        gateway_for(old, repository) as to,
    ):
        assert error_of(ask(to, priority=1))["param"] == "priority"
        assert old.requests() == []


# vllm_backend PR#117: a wrong sampling parameter ended in an error that named nothing.
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 513}, "max_tokens"),
        ({"min_tokens": 30}, "min_tokens"),
        ({"stop": [""]}, "stop[0]"),
        ({"stop_token_ids": ["a"]}, "stop_token_ids[0]"),
        ({"logit_bias": {"a": 1}}, "logit_bias.a"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5"),
        # What only the engine knows.
        ({"logit_bias": {str(2**30): 1}}, "logit_bias"),
        ({"allowed_token_ids": [2**30]}, "allowed_token_ids"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"truncate_prompt_tokens": 513}, "truncate_prompt_tokens"),
        ({"repetition_detection": {"max_pattern_size": 1, "min_count": 1}}, "repetition_detection"),
        ({"watermarking": True}, "watermarking"),
        ({"cache_salt": "a/b"}, "cache_salt"),
    ],
)
def test_a_wrong_sampling_parameter_is_named(
    fields: dict[str, Any], param: str, path: str, client: httpx.Client
) -> None:
    for stream in (False, True):
        error = error_of(
            client.post(path, json=PATHS[path](**fields, stream=stream and "prompt_logprobs" not in fields))
        )
        assert (error["type"], error["param"]) == ("invalid_request_error", param)
        assert param.partition("[")[0].partition(".")[0] in error["message"]


# server#8207, #8216: images were dropped.
@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "file", "file": {"file_id": "x"}},
        {"type": "video_url", "video_url": {"url": "https://example.invalid/x"}},
    ],
)
def test_what_is_no_text_is_refused_by_its_place(
    part: dict[str, Any], client: httpx.Client, engine: MockEngine
) -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "What is this?"}, part]}]
    error = error_of(ask(client, messages=messages))
    assert error["param"] == "messages[0].content[1].type"
    assert "not supported yet" in error["message"]
    assert engine.requests() == []


# server#8655: embeddings refused lists of texts; until there are any, all are refused clearly.
@pytest.mark.parametrize("given", ["x", ["x", "y"], [1, 2], [[1], [2]]])
def test_embeddings_say_that_they_are_to_come(given: Any, client: httpx.Client) -> None:
    error = error_of(client.post("/v1/embeddings", json={"model": MODEL, "input": given}))
    assert error["code"] == "unsupported_endpoint"


# server PR#8321: one tokenizer and template served all models.
def test_each_model_has_its_own_template_and_defaults(tmp_path: Path, repository: Path) -> None:
    models = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        config = {"chat_template": f"<{name}>{{{{ messages[0].content }}}}"}
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        (folder / "generation_config.json").write_text(json.dumps({"temperature": 0.25 if name == "one" else 0.5}))
        models.append({"triton_model": name, "tokenizer": str(folder), "names": [f"served-{name}"]})
    with (
        running_mock_engine(models=["one", "two"]) as engine,
        running_gateway("--triton", engine.url, "--models", json.dumps(models)) as gateway,
        httpx.Client(base_url=gateway.wait_until_ready().url, timeout=60) as client,
    ):
        for name, temperature in (("one", 0.25), ("two", 0.5)):
            wait_for(lambda: ask(client, "hi", model=f"served-{name}").status_code == 200)  # noqa: B023
            request = engine.requests()[-1]
            assert (request["model"], request["inputs"]["text_input"]) == (name, f"<{name}>hi")
            assert request["sampling_parameters"]["temperature"] == temperature


# server#8640, trtllm_backend#202: a model of another backend failed request by request, in ways of its own.
def test_a_backend_other_than_vllm_is_told_before_any_request(repository: Path) -> None:
    with (
        running_mock_engine(model_repository=repository, without=("sampling_parameters", "send_admission")) as other,
        running_gateway("--triton", other.url, "--model-repository", str(repository)) as gateway,
        httpx.Client(base_url=gateway.url, timeout=60) as client,
    ):
        wait_for(lambda: "not vLLM" in client.get("/health/ready").text)
        for send in (ask, complete):
            error = error_of(send(client), 503)
            assert "its backend is not vLLM" in error["message"]
            assert "sampling_parameters" in error["message"]
        assert other.requests() == []


# open-webui#29628, any-llm#847, litellm#40578: an error in the middle looked like a complete answer.
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "fault",
    [
        {"error_after": {"tokens": 3, "error": "UNAVAILABLE: The engine is dead."}},
        {"close_after": {"events": 3}},
        {"finish_reason_error": True},
    ],
    ids=["error", "died", "gave up"],
)
def test_an_error_in_the_middle_is_seen_by_every_client(
    fault: dict[str, Any], path: str, client: httpx.Client, gateway: Gateway, engine: MockEngine
) -> None:
    engine.add_fault(**fault)
    *chunks, last = events(client.post(path, json=PATHS[path](stream=True)))
    assert last.keys() == {"error"}
    assert all(choice["finish_reason"] is None for chunk in chunks for choice in chunk["choices"])
    assert client.post(path, json=PATHS[path]()).status_code in (500, 503)
    sdk = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0)
    create: Any = sdk.chat.completions.create if path.endswith("chat/completions") else sdk.completions.create
    with pytest.raises(openai.APIError) as caught:
        list(create(**PATHS[path](stream=True)))
    assert caught.value.message == last["error"]["message"]


# dynamo#12292, #10923: what a client had got before it went away was counted nowhere.
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True])
def test_tokens_of_a_client_that_goes_away_are_counted(
    stream: bool, path: str, gateway: Gateway, client: httpx.Client, engine: MockEngine
) -> None:
    names = ("gateway_completion_tokens_total", "gateway_prompt_tokens_total", "gateway_cancelled_requests_total")
    before = [gateway.metric(name) for name in names]
    engine.add_fault(stall_after=5)
    with raw_request(gateway, path, json.dumps(PATHS[path](n=2, stream=stream)).encode()) as connection:
        wait_for(lambda: [request["tokens"] for request in engine.requests()] == [5, 5])
        # By the time that it answers this, the gateway has read what came before.
        assert client.get("/health/live").status_code == 200
        connection.close()
    requests = engine.wait_for_requests(2)
    wait_for(lambda: gateway.metric("gateway_requests_in_flight") == 0)
    counted = [gateway.metric(name) - old for name, old in zip(names, before, strict=True)]
    assert counted == [10, requests[0]["num_input_tokens"], 1]


# vllm#9428, #10806: requests of clients that had gone stayed in the engine.
def test_after_many_clients_that_went_away_nothing_is_left(
    gateway: Gateway, client: httpx.Client, engine: MockEngine
) -> None:
    rng = random.Random(1)

    def go_away() -> None:
        path = rng.choice(list(PATHS))
        body = PATHS[path](stream=rng.random() < 0.7, n=rng.choice((1, 1, 3)), max_tokens=400, ignore_eos=True)
        with raw_request(gateway, path, json.dumps(body).encode()) as connection:
            connection.settimeout(0.001 + rng.random() / 20)
            with suppress(TimeoutError):
                connection.recv(rng.choice((1, 100, 10_000)))

    for _ in range(10):
        clients = [threading.Thread(target=go_away) for _ in range(10)]
        for one in clients:
            one.start()
        for one in clients:
            one.join()
    wait_for(lambda: gateway.metric("gateway_requests_in_flight") == 0)
    wait_for(lambda: engine.state()["in_flight"] == 0)
    assert ask(client).status_code == 200


# LangChain's clients lose nothing: server PR#8134, dynamo#8593.


@pytest.fixture
def warned(gateway: Gateway) -> Iterator[tuple[httpx.Client, list[str]]]:
    """An HTTP client for LangChain, and the warnings that came with its answers."""
    warnings: list[str] = []

    def look(response: httpx.Response) -> None:
        warnings.extend(response.headers.get_list("x-gateway-warning"))

    with httpx.Client(event_hooks={"response": [look]}, timeout=60) as opened:
        yield opened, warnings


def langchain(gateway: Gateway, http_client: httpx.Client, **settings: Any) -> ChatOpenAI:
    return ChatOpenAI(
        model=MODEL,
        base_url=f"{gateway.url}/v1",
        api_key=SecretStr("none"),
        http_client=http_client,
        max_retries=0,
        **settings,
    )


MESSAGES = [SystemMessage("Be brief."), HumanMessage("Say something.")]


def test_langchain_invoke_and_stream(
    gateway: Gateway, engine: MockEngine, warned: tuple[httpx.Client, list[str]]
) -> None:
    settings: dict[str, Any] = {
        "temperature": 0.5,
        "top_p": 0.25,
        "seed": 7,
        "max_completion_tokens": 12,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "logit_bias": {"5": 10},
        "stop": ["zzz"],
        "logprobs": True,
        "top_logprobs": 2,
        "extra_body": {"top_k": 5, "repetition_penalty": 1.5},
    }
    model = langchain(gateway, warned[0], **settings, stream_usage=True)
    whole = model.invoke(MESSAGES)
    streamed: AIMessageChunk | None = None
    for chunk in model.stream(MESSAGES):
        assert isinstance(chunk, AIMessageChunk)
        streamed = chunk if streamed is None else streamed + chunk
    assert streamed is not None
    assert streamed.content == whole.content != ""
    assert streamed.usage_metadata == whole.usage_metadata
    assert whole.usage_metadata is not None
    assert whole.usage_metadata["output_tokens"] == 12
    assert whole.response_metadata["finish_reason"] == streamed.response_metadata["finish_reason"] == "length"
    assert len(whole.response_metadata["logprobs"]["content"]) == 12
    assert streamed.response_metadata["logprobs"]["content"] == whole.response_metadata["logprobs"]["content"]
    for request in engine.wait_for_requests(2):
        assert request["inputs"]["text_input"] == "<s><|system|>Be brief.<|user|>Say something.<|assistant|>"
        parameters = request["sampling_parameters"]
        assert {name: parameters[name] for name in ("temperature", "top_p", "seed", "presence_penalty")} == {
            "temperature": 0.5,
            "top_p": 0.25,
            "seed": 7,
            "presence_penalty": 0.5,
        }
        assert (parameters["frequency_penalty"], parameters["logit_bias"]) == (-0.5, {"5": 10})
        assert (parameters["stop"], parameters["max_tokens"], parameters["logprobs"]) == (["zzz"], 12, 2)
        assert (parameters["top_k"], parameters["repetition_penalty"]) == (5, 1.5)
    assert warned[1] == []


def test_langchain_several_choices(
    gateway: Gateway, engine: MockEngine, warned: tuple[httpx.Client, list[str]]
) -> None:
    model = langchain(gateway, warned[0], n=3, seed=1, max_completion_tokens=5)
    result = model.generate([list(MESSAGES)])
    assert len({generation.text for generation in result.generations[0]}) == 3
    requests = engine.wait_for_requests(3)
    assert sorted(request["sampling_parameters"]["seed"] for request in requests) == [1, 2, 3]
    assert result.llm_output is not None
    assert result.llm_output["token_usage"]["completion_tokens"] == 15
    assert result.llm_output["token_usage"]["prompt_tokens"] == requests[0]["num_input_tokens"]
    assert warned[1] == []


class Person(BaseModel):
    name: str
    age: int


def test_langchain_structured_output(
    gateway: Gateway, engine: MockEngine, warned: tuple[httpx.Client, list[str]]
) -> None:
    model = langchain(gateway, warned[0], max_completion_tokens=200)
    person = model.with_structured_output(Person, method="json_schema").invoke(MESSAGES)
    assert isinstance(person, Person)
    (request,) = engine.wait_for_requests(1)
    assert request["sampling_parameters"]["structured_outputs"]["json"]["properties"].keys() == {"name", "age"}
    assert warned[1] == []


def test_langchain_sees_errors(gateway: Gateway, engine: MockEngine, warned: tuple[httpx.Client, list[str]]) -> None:
    model = langchain(gateway, warned[0])
    with pytest.raises(openai.BadRequestError) as refused:
        model.invoke([HumanMessage([{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}])])
    assert refused.value.param == "messages[0].content[0].type"
    engine.add_fault(error_after={"tokens": 2, "error": "UNAVAILABLE: The engine is dead."})
    with pytest.raises(openai.APIError, match="The engine is dead"):
        list(model.stream(MESSAGES))


def test_langchain_completions(gateway: Gateway, engine: MockEngine, warned: tuple[httpx.Client, list[str]]) -> None:
    model = OpenAI(
        model=MODEL,
        base_url=f"{gateway.url}/v1",
        api_key=SecretStr("none"),
        http_client=warned[0],
        max_retries=0,
        seed=3,
        max_tokens=9,
        n=1,
        logit_bias={"5": 10},
    )
    whole = model.invoke("Once upon a time")
    assert whole
    assert "".join(model.stream("Once upon a time")) == whole
    result = model.generate(["one", "two"])
    assert [len(generations) for generations in result.generations] == [1, 1]
    assert result.llm_output is not None
    assert result.llm_output["token_usage"]["completion_tokens"] == 18
    for request in engine.wait_for_requests(4):
        assert request["sampling_parameters"]["logit_bias"] == {"5": 10}
        assert request["sampling_parameters"]["max_tokens"] == 9
    assert warned[1] == []
