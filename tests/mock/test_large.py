"""Large bodies: the engine is asked, and the client is answered, as with a small one.

Spaces behind it make any body a large one, which is worked on beside the event loop and in pieces.
"""

import json
from typing import Any

import httpx
import pytest

from bench.mock_engine.running import MockEngine
from gateway.openai.pieces import PIECE
from gateway.openai.schema import LARGE_BODY
from tests.support.chat import MODEL, TELLING, beside, events

SPACES = b" " * LARGE_BODY
CHAT = "/v1/chat/completions"
COMPLETION = "/v1/completions"
TEXT = 'Say "日本 🎉"\n\u2028\\ twice. '
MESSAGES = [{"role": "user", "content": TEXT}]
TOOL = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {"ä": {"enum": [1, None]}}}, "x": None},
    "strict_ish": [True, None],
}

BODIES: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"messages": MESSAGES}),
    (CHAT, {"messages": MESSAGES, "n": 3, "seed": 5}),
    (CHAT, {"messages": [*MESSAGES, {"role": "user", "content": [{"type": "text", "text": "x", "new": 1}]}]}),
    (CHAT, {"messages": MESSAGES, "tools": [TOOL], "tool_choice": "auto"}),
    (CHAT, {"messages": MESSAGES, "logprobs": True, "top_logprobs": 2}),
    (CHAT, {"messages": MESSAGES, "response_format": {"type": "json_object"}}),
    (CHAT, {"messages": MESSAGES, "documents": [{"title": "a", "b": [1]}], "nobody_knows": [1]}),
    (
        CHAT,
        {"messages": MESSAGES, "n": 2, "seed": 5, "logit_bias": {str(number): 1.5 for number in range(3000)}},
    ),
    (CHAT, {"messages": MESSAGES, "allowed_token_ids": list(range(3000)), "vllm_xargs": {"a": ["é"] * 3000}}),
    (CHAT, {"messages": MESSAGES, "guided_json": {"enum": [f"é{number}" for number in range(3000)]}}),
    (CHAT, {"messages": MESSAGES, "chat_template_kwargs": {"a": [1] * 3000}, "x": ["a"] * 3000}),
    (COMPLETION, {"prompt": TEXT}),
    (COMPLETION, {"prompt": [TEXT, "x"], "n": 2, "seed": 1}),
    (COMPLETION, {"prompt": [70, 71, 72]}),
    (COMPLETION, {"prompt": [[70, 71], [72]], "n": 2, "seed": 1}),
    (COMPLETION, {"prompt": [70, 71, 72], "echo": True, "logprobs": 1}),
    *((CHAT, {"messages": MESSAGES, name: value, **beside(name, is_chat=True)}) for name, value in TELLING.items()),
]
WRONG: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"messages": []}),
    (CHAT, {"messages": [*MESSAGES, {"role": "user", "content": [{"type": "image_url"}]}]}),
    (CHAT, {"messages": MESSAGES, "logit_bias": {"a": 1}}),
    (CHAT, {"messages": MESSAGES, "guided_json": {"type": "nonsense"}}),
    (CHAT, {"messages": MESSAGES, "stream_options": {"include_usage": True, "x": 1}}),
    (CHAT, {"messages": MESSAGES, "model": "nobody"}),
    (COMPLETION, {"prompt": [70, -1]}),
    (COMPLETION, {"prompt": [[70], [71, 2.5]]}),
    (COMPLETION, {"prompt": [70, 300], "echo": True}),
    ("/tokenize", {"prompt": 5}),
    ("/detokenize", {"tokens": [70, 300]}),
]


def post(client: httpx.Client, path: str, body: dict[str, Any], spaces: bytes = b"") -> httpx.Response:
    return client.post(path, content=json.dumps({"model": MODEL} | body).encode() + spaces)


def said(answer: httpx.Response) -> Any:
    """Without what differs from one answer to the next."""
    if answer.headers["content-type"] != "application/json":
        return [one["choices"] for one in events(answer)]
    value = answer.json()
    return answer.status_code, {name: one for name, one in value.items() if name not in ("id", "created")}


def asked(engine: MockEngine, count: int) -> list[Any]:
    requests = sorted(engine.wait_for_requests(count), key=lambda one: one["request_id"].partition("-")[2][-2:])
    return [{name: one for name, one in request["inputs"].items() if name != "id"} for request in requests]


@pytest.mark.parametrize(("path", "body"), BODIES)
def test_the_engine_and_the_client_see_the_same(
    path: str, body: dict[str, Any], client: httpx.Client, engine: MockEngine
) -> None:
    body = {"max_tokens": 5} | body
    small = post(client, path, body)
    assert small.status_code == 200, small.text
    count = len(engine.requests())
    of_small = asked(engine, count)
    engine.reset()
    large = post(client, path, body, SPACES)
    assert said(large) == said(small)
    assert large.headers.get("x-gateway-warning") == small.headers.get("x-gateway-warning")
    assert sorted(map(json.dumps, asked(engine, count))) == sorted(map(json.dumps, of_small))


@pytest.mark.parametrize(("path", "body"), WRONG)
def test_the_same_refusals(path: str, body: dict[str, Any], client: httpx.Client) -> None:
    small = post(client, path, body)
    assert small.status_code in (400, 404)
    assert said(post(client, path, body, SPACES)) == said(small)


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
def test_both_ways_of_the_tokenizer(path: str, client: httpx.Client) -> None:
    body = {"prompt": TEXT} if path == "/tokenize" else {"tokens": [70, 71]}
    small = post(client, path, body)
    assert small.status_code == 200
    assert said(post(client, path, body, SPACES)) == said(small)


def test_a_prompt_of_megabytes_comes_as_it_is(client: httpx.Client, engine: MockEngine) -> None:
    text = TEXT * 40_000
    answer = post(client, COMPLETION, {"prompt": text, "max_tokens": 1, "truncate_prompt_tokens": 9})
    assert answer.status_code == 200, answer.text
    assert engine.wait_for_requests(1)[0]["inputs"]["text_input"] == text


def test_token_ids_by_the_hundred_thousand_come_as_they_are(client: httpx.Client, engine: MockEngine) -> None:
    ids = [70 + number % 50 for number in range(300_000)]
    answer = post(client, COMPLETION, {"prompt": ids, "max_tokens": 1, "truncate_prompt_tokens": 9})
    assert answer.status_code == 200, answer.text
    assert engine.wait_for_requests(1)[0]["inputs"]["input_ids"] == ids


def test_messages_by_the_thousand_are_rendered(client: httpx.Client, engine: MockEngine) -> None:
    roles = ("user", "assistant")
    messages = [{"role": roles[number % 2], "content": f"{TEXT}{number}"} for number in range(9999)]
    answer = post(client, CHAT, {"messages": messages, "max_tokens": 1, "truncate_prompt_tokens": 9})
    assert answer.status_code == 200, answer.text
    text = engine.wait_for_requests(1)[0]["inputs"]["text_input"]
    assert text == "<s>" + "".join(f"<|{one['role']}|>{one['content']}" for one in messages) + "<|assistant|>"


def test_a_whole_answer_with_thousands_of_log_probabilities(client: httpx.Client) -> None:
    asked = {"messages": MESSAGES, "seed": 7, "max_tokens": 200, "ignore_eos": True}
    asked |= {"logprobs": True, "top_logprobs": 20}
    whole = post(client, CHAT, asked).json()["choices"][0]["logprobs"]
    assert sum(len(one["top_logprobs"]) for one in whole["content"]) > 1500
    chunks = events(post(client, CHAT, asked | {"stream": True}))
    streamed = [one for chunk in chunks for choice in chunk["choices"] if choice["logprobs"]
                for one in choice["logprobs"]["content"]]  # fmt: skip
    assert (whole["content"], whole["refusal"]) == (streamed, None)


def test_a_whole_completion_with_thousands_of_log_probabilities(client: httpx.Client) -> None:
    asked = {"prompt": TEXT, "seed": 7, "max_tokens": 200, "ignore_eos": True, "logprobs": 20}
    whole = post(client, COMPLETION, asked).json()["choices"][0]["logprobs"]
    assert sum(map(len, whole["top_logprobs"])) > 1500
    chunks = events(post(client, COMPLETION, asked | {"stream": True}))
    parts = [choice["logprobs"] for chunk in chunks for choice in chunk["choices"] if choice["logprobs"]]
    assert whole == {name: [one for part in parts for one in part[name]] for name in whole}


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
def test_the_log_probabilities_of_a_long_prompt(path: str, client: httpx.Client) -> None:
    """They are read in pieces where they are many."""
    text = "word " * 60
    asked: dict[str, Any] = {"max_tokens": 1, "seed": 7, "n": 2, "prompt_logprobs": 20}
    asked |= {"prompt": text} if path == COMPLETION else {"messages": [{"role": "user", "content": text}]}
    answer = post(client, path, asked | {"return_token_ids": True}).json()
    assert "error" not in answer, answer
    places = [answer] if path == CHAT else answer["choices"]
    ids = answer["prompt_token_ids"] if path == CHAT else answer["choices"][0]["prompt_token_ids"]
    for place in places:
        first, *others = place["prompt_logprobs"]
        assert first is None
        assert [next(iter(one)) for one in others] == [str(number) for number in ids[1:]]
        assert {len(one) for one in others} <= {20, 21}
    assert len(json.dumps(places[0]["prompt_logprobs"])) > 10 * PIECE
