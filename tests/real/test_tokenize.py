"""The gateway's copy of a tokenizer against the engine's: the same ids, and the bytes of what it generates."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from devtools import models
from devtools.stack import Stack
from tests.support.backend import Backend, sampling

MODELS = [models.TINY, models.SMOLLM2]
TEXTS = [
    "Hello, world!",
    "  two  blanks\tand\n\nlines \r\n",
    "naïve café straße Ωmega ﬁ ǅ",
    "🌍🎉👩‍👩‍👧👍🏽🇫🇷",
    "世界、言葉と한국어",
    "नमस्ते हिन्दी क्षत्रिय",
    "e\u0301a\u0308\u200d\u200f\u202e\ufeff\ufffd",
    "\x00\x01\x1b[0m\x7f\x80\u2028",
    "\U0010ffff\U000e0001 \u00a0",
    "<s>Hello</s> <s>",
    "<|im_start|>user\n<|im_end|><|start|>x<|end|><|endoftext|>",
    "<|im_start| >< s></ s>",
    '{"a": [1, 2.5e-3, true]}',
    "x" * 300,
    " ",
    "the " * 100,
]
# Of an answer: the tiny model's are random bytes, in which characters in parts have to come up.
TOKENS = {models.TINY: 120, models.SMOLLM2: 24}
CONVERSATIONS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "Hi 🌍"}],
    [{"role": "system", "content": "Be <s>brief</s>."}, {"role": "user", "content": "नमस्ते\x00"}],
    [{"role": "user", "content": "q"}, {"role": "assistant", "content": "The"}],
]


@pytest.fixture(scope="module")
def client(stack: Stack) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=stack.url, timeout=240) as opened:
        yield opened


@pytest.fixture(scope="module", params=MODELS)
def engine(request: pytest.FixtureRequest, stack: Stack) -> Iterator[tuple[str, Backend]]:
    backend = Backend(stack.triton_url, request.param, stack.service("triton").log)
    yield request.param, backend
    backend.close()


def post(client: httpx.Client, path: str, **body: Any) -> Any:
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def ids_in_the_engine(backend: Backend, text: str, *, add_special_tokens: bool) -> list[int]:
    answer = backend.generate(
        text_input=text,
        add_special_tokens=add_special_tokens,
        return_prompt_token_ids=True,
        return_num_input_tokens=True,
        sampling_parameters=sampling(max_tokens=1),
    )
    ids: list[int] = json.loads(answer["prompt_token_ids"])
    assert len(ids) == answer["num_input_tokens"]
    return ids


@pytest.mark.parametrize("add_special_tokens", [True, False])
def test_the_ids_of_a_text_are_the_engines_and_give_it_back(
    add_special_tokens: bool, engine: tuple[str, Backend], client: httpx.Client
) -> None:
    model, backend = engine
    for text in TEXTS:
        ids = ids_in_the_engine(backend, text, add_special_tokens=add_special_tokens)
        found = post(client, "/tokenize", model=model, prompt=text, add_special_tokens=add_special_tokens)
        assert found["tokens"] == ids, text
        assert found["count"] == len(ids)
        shown = post(client, "/detokenize", model=model, tokens=ids)["prompt"]
        assert shown == ("<s>" if add_special_tokens and model == models.TINY else "") + text


def test_the_ids_of_a_conversation_are_the_engines(engine: tuple[str, Backend], client: httpx.Client) -> None:
    model, _ = engine
    for messages in CONVERSATIONS:
        for how in ({}, {"add_generation_prompt": False}, {"continue_final_message": True}):
            if how.get("continue_final_message") and messages[-1]["role"] != "assistant":
                continue
            found = post(client, "/tokenize", model=model, messages=messages, **how)
            asked = {"model": model, "messages": messages, "max_tokens": 1, "return_token_ids": True} | how
            answer = post(client, "/v1/chat/completions", **asked)
            assert found["tokens"] == answer["prompt_token_ids"]
            assert found["count"] == answer["usage"]["prompt_tokens"]


def test_the_bytes_of_the_tokens_are_those_of_the_answer(engine: tuple[str, Backend], client: httpx.Client) -> None:
    """The tiny model's answers are random bytes: characters in parts, and parts of characters that never end."""
    model, _ = engine
    answer = post(
        client,
        "/v1/chat/completions",
        model=model,
        messages=[{"role": "user", "content": "Write 🌍 and 世界."}],
        max_tokens=TOKENS[model],
        seed=7,
        ignore_eos=True,
        skip_special_tokens=False,
        logprobs=True,
        top_logprobs=2,
    )
    (choice,) = answer["choices"]
    content = choice["logprobs"]["content"]
    assert len(content) == TOKENS[model]
    data = bytes(byte for token in content for byte in token["bytes"])
    assert data.decode(errors="replace") == choice["message"]["content"]
    if model == models.TINY:
        assert any(token["token"] == "" for token in content), "no character came in parts"
    for token in content:
        assert len(token["top_logprobs"]) == 2


def test_offsets_lead_to_the_tokens_texts(engine: tuple[str, Backend], client: httpx.Client) -> None:
    model, _ = engine
    answer = post(
        client,
        "/v1/completions",
        model=model,
        prompt="Write 🌍 and 世界.",
        max_tokens=TOKENS[model],
        seed=7,
        ignore_eos=True,
        echo=True,
        logprobs=0,
    )
    (choice,) = answer["choices"]
    text, logprobs = choice["text"], choice["logprobs"]
    special = {"<s>", "</s>", "<|start|>", "<|end|>", "<|im_start|>", "<|im_end|>", "<|endoftext|>"}
    seen, before = 0, "-"
    for offset, token in zip(logprobs["text_offset"], logprobs["tokens"], strict=True):
        # The engine writes a character in parts, and what stands before it in the same token, with its last part.
        if before and token not in special and "\ufffd" not in token:
            assert text[offset : offset + len(token)] == token
            seen += token != ""
        before = token
    assert seen > TOKENS[model] / 2
    assert logprobs["text_offset"] == sorted(logprobs["text_offset"])
    assert logprobs["token_logprobs"][0] is None
