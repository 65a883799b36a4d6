"""The main job: the official client, the gateway, a real Triton, real vLLM."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from transformers import AutoTokenizer

from devtools import models
from devtools.stack import Stack
from tests.support.waiting import wait_for

MODELS = [models.TINY, models.SMOLLM2]
CAPITAL = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "people": {"type": "integer", "minimum": 0, "maximum": 100_000_000},
    },
    "required": ["city", "people"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def client(stack: Stack) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{stack.url}/v1", api_key="none", max_retries=0) as opened:
        yield opened


def request(text: str = "What is the capital of France?", **changes: Any) -> Any:
    return {"model": models.TINY, "messages": [{"role": "user", "content": text}], "max_tokens": 20} | changes


def as_schema(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("stream", [False, True])
def test_a_schema_is_obeyed(model: str, stream: bool, client: openai.OpenAI) -> None:
    body = request("The capital of France, as JSON.", model=model, response_format=as_schema(CAPITAL), max_tokens=100)
    if stream:
        parts = list(client.chat.completions.create(**body, stream=True))
        text = "".join(part.choices[0].delta.content or "" for part in parts)
        reason = parts[-1].choices[0].finish_reason
    else:
        choice = client.chat.completions.create(**body).choices[0]
        text, reason = choice.message.content or "", choice.finish_reason
    assert reason == "stop"
    answer = json.loads(text)
    assert answer.keys() == {"city", "people"}
    assert len(answer["city"]) <= 20
    assert isinstance(answer["people"], int)
    assert 0 <= answer["people"] <= 100_000_000


def test_a_stream_is_the_whole_answer_in_parts(client: openai.OpenAI) -> None:
    body = request(temperature=0, max_tokens=40)
    whole = client.chat.completions.create(**body)
    parts = list(client.chat.completions.create(**body, stream=True, stream_options={"include_usage": True}))
    assert "".join(p.choices[0].delta.content or "" for p in parts if p.choices) == whole.choices[0].message.content
    assert parts[-2].choices[0].finish_reason == whole.choices[0].finish_reason == "length"
    assert parts[-1].usage == whole.usage
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 40


@pytest.mark.parametrize("model", MODELS)
def test_the_prompt_is_the_templates_tokens_with_exactly_one_bos(
    model: str, client: openai.OpenAI, stack: Stack
) -> None:
    """The tiny tokenizer adds a BOS, and its template writes one."""
    folder = Path(json.loads((stack.repository / model / "1" / "model.json").read_text())["model"])
    tokenizer = AutoTokenizer.from_pretrained(folder)
    messages = [{"role": "user", "content": "hi"}]
    rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids = tokenizer(rendered, add_special_tokens=False).input_ids
    if model == models.TINY:
        assert ids.count(tokenizer.bos_token_id) == 1
        assert tokenizer(rendered).input_ids.count(tokenizer.bos_token_id) == 2
    usage = client.chat.completions.create(**request("hi", model=model, max_tokens=1)).usage
    assert usage is not None
    assert usage.prompt_tokens == len(ids)


def test_an_absent_limit_is_the_rest_of_the_context(client: openai.OpenAI) -> None:
    long = "1 " * 1900
    body = request(long, max_tokens=None, extra_body={"ignore_eos": True})
    answer = client.chat.completions.create(**body)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.total_tokens == 4096
    assert answer.usage.completion_tokens > 16


def test_stop_and_finish_reason(client: openai.OpenAI) -> None:
    text = client.chat.completions.create(**request(temperature=0, model=models.SMOLLM2)).choices[0].message.content
    assert text is not None
    assert "Paris" in text
    cut = client.chat.completions.create(**request(temperature=0, model=models.SMOLLM2, stop="Paris")).choices[0]
    assert cut.finish_reason == "stop"
    assert cut.message.content == text[: text.index("Paris")]


def test_a_seed_makes_it_the_same_again(client: openai.OpenAI) -> None:
    def say(seed: int) -> Any:
        return client.chat.completions.create(**request(seed=seed, temperature=1.5)).choices[0].message.content

    assert say(1) == say(1) != say(2)


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"messages": [{"role": "user", "content": "1 " * 5000}]}, "messages"),
        ({"extra_body": {"stop_token_ids": [10**9]}}, "stop_token_ids"),
        ({"extra_body": {"allowed_token_ids": [10**6]}}, "allowed_token_ids"),
        ({"logit_bias": {"1000000": 1}}, "logit_bias"),
        ({"max_tokens": 5000}, "max_tokens"),
        ({"extra_body": {"structured_outputs": {"regex": "("}}}, "structured_outputs.regex"),
        (
            {"response_format": as_schema({"type": "object", "properties": {"a": {"not": {}}}})},
            "response_format.json_schema.schema.properties.a.not",
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_the_engine_or_the_gateway_refuses_is_a_400_that_names_it(
    changes: dict[str, Any], param: str, stream: bool, client: openai.OpenAI
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**request(**changes), stream=stream)
    assert caught.value.param == param
    assert caught.value.type == "invalid_request_error"


def test_logit_bias_reaches_the_engine(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(**request(logit_bias={"65": 100}, temperature=0, max_tokens=5))
    text = answer.choices[0].message.content
    assert text
    assert len(set(text)) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_frees_the_engine(stream: bool, stack: Stack) -> None:
    log = stack.service("triton").log
    before = log.read_text(errors="replace").count(CANCELLED)
    begun = begun_answers(stack)
    body = json.dumps(request(max_tokens=4000, stream=stream) | {"ignore_eos": True})
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", stack.config.ports.gateway)) as connection:
        connection.sendall((head + body).encode())
        # It decodes; a client of a whole answer has seen nothing of that.
        wait_for(lambda: begun_answers(stack) > begun)
    wait_for(lambda: log.read_text(errors="replace").count(CANCELLED) > before)
    line = [line for line in log.read_text(errors="replace").splitlines() if CANCELLED in line][-1]
    # Stopped long before its limit, and nothing is left in the engine.
    assert "after 4000 tokens" not in line
    assert "open: 0 in the backend, 0 in the engine" in line


CANCELLED = "cancelled by its client"


def begun_answers(stack: Stack) -> float:
    """How many answers of the tiny model have had a first text."""
    name, of_model = "gateway_time_to_first_token_seconds_count{", f'model="{models.TINY}"'
    lines = httpx.get(f"{stack.url}/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name) and of_model in line)


def test_sixteen_at_a_time(client: openai.OpenAI, stack: Stack) -> None:
    """Streams beside each other do not mix: each says what it says alone."""
    from concurrent.futures import ThreadPoolExecutor

    def ask(i: int) -> str:
        body = request(f"Number {i}", extra_body={"structured_outputs": {"choice": [f"answer-{i}"]}})
        parts = client.chat.completions.create(**body, stream=True)
        return "".join(part.choices[0].delta.content or "" for part in parts)

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(ask, range(48))) == [f"answer-{i}" for i in range(48)]
