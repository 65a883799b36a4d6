"""`/tokenize` and `/detokenize`: token ids of what is sent to the engine, and texts of token ids."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.mock_engine.running import MockEngine
from tests.support.chat import MODEL
from tests.support.gateway import Gateway, running_gateway

TEXTS = ["", "Hi", "é 世界 🌍👩‍👩‍👧", "नमस्ते", "\x00\t\n", "<s>", "a<s>b", "<|user|>"]


def tokenize(client: httpx.Client, **fields: Any) -> dict[str, Any]:
    answer = client.post("/tokenize", json={"model": MODEL} | fields)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    assert found["count"] == len(found["tokens"])
    return found


def detokenize(client: httpx.Client, tokens: list[int]) -> str:
    answer = client.post("/detokenize", json={"model": MODEL, "tokens": tokens})
    assert answer.status_code == 200, answer.text
    assert answer.json().keys() == {"prompt"}
    return str(answer.json()["prompt"])


def error(client: httpx.Client, path: str, body: Any) -> tuple[int, str | None, str]:
    answer = client.post(path, content=body if isinstance(body, bytes) else json.dumps(body))
    said = answer.json()["error"]
    return answer.status_code, said["param"], said["message"]


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_comes_back_from_its_tokens(text: str, client: httpx.Client) -> None:
    found = tokenize(client, prompt=text, add_special_tokens=False)
    assert found["max_model_len"] == 512
    assert found["token_strs"] is None
    assert detokenize(client, found["tokens"]) == text
    assert tokenize(client, prompt=text)["tokens"] == [0, *found["tokens"]]


def test_spellings_on_request(client: httpx.Client) -> None:
    found = tokenize(client, prompt="a b", return_token_strs=True)
    assert found["token_strs"] == ["<s>", "a", "Ġ", "b"]


CONVERSATION = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "The"}]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "<s><|user|>q<|assistant|>The<|assistant|>"),
        ({"add_generation_prompt": False}, "<s><|user|>q<|assistant|>The"),
        ({"continue_final_message": True}, "<s><|user|>q<|assistant|>The"),
        ({"add_special_tokens": True}, "<s><s><|user|>q<|assistant|>The<|assistant|>"),
    ],
)
def test_messages_are_rendered_as_for_a_chat_completion(
    fields: dict[str, Any], text: str, client: httpx.Client, engine: MockEngine
) -> None:
    found = tokenize(client, messages=CONVERSATION, **fields)
    assert detokenize(client, found["tokens"]) == text
    asked = {"model": MODEL, "messages": CONVERSATION, "max_tokens": 1} | fields
    answer = client.post("/v1/chat/completions", json=asked)
    assert answer.json()["usage"]["prompt_tokens"] == found["count"]


def test_what_the_template_does_not_read_is_warned_about(client: httpx.Client) -> None:
    body = {"model": MODEL, "messages": CONVERSATION, "chat_template_kwargs": {"thinking": 1}, "unheard_of": 1}
    answer = client.post("/tokenize", json=body)
    assert answer.status_code == 200
    assert "chat_template_kwargs.thinking" in answer.headers["x-gateway-warning"]
    assert "unheard_of" in answer.headers["x-gateway-warning"]
    answer = client.post("/detokenize", json={"model": MODEL, "tokens": [], "unheard_of": 1})
    assert "unheard_of" in answer.headers["x-gateway-warning"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"{", None),
        (b"[]", None),
        (b"\xff", None),
        (b'{"model": "mock", "prompt": "\\ud800"}', None),
        (b'{"model": "mock", "prompt": "a", "prompt": "b"}', None),
        ({}, "model"),
        ({"model": MODEL}, "prompt"),
        ({"model": MODEL, "prompt": "a", "messages": CONVERSATION}, "prompt"),
        ({"model": MODEL, "prompt": 1}, "prompt"),
        ({"model": MODEL, "prompt": ["a"]}, "prompt"),
        ({"model": MODEL, "messages": []}, "messages"),
        ({"model": MODEL, "messages": [{"role": "user"}]}, "messages[0].content"),
        ({"model": MODEL, "messages": [{"role": "function", "content": "x"}]}, "messages[0].role"),
        ({"model": MODEL, "prompt": "a", "add_special_tokens": "false"}, "add_special_tokens"),
        ({"model": MODEL, "prompt": "a", "add_generation_prompt": True}, "add_generation_prompt"),
        ({"model": MODEL, "prompt": "a", "continue_final_message": False}, "continue_final_message"),
        ({"model": MODEL, "prompt": "a", "chat_template_kwargs": {}}, "chat_template_kwargs"),
        ({"model": MODEL, "messages": CONVERSATION, "chat_template": "x"}, "chat_template"),
        ({"model": MODEL, "messages": CONVERSATION, "tools": [{"type": "function"}]}, "tools"),
        (
            {"model": MODEL, "messages": CONVERSATION, "add_generation_prompt": True, "continue_final_message": True},
            "continue_final_message",
        ),
    ],
)
def test_a_wrong_request_to_tokenize_is_a_400_that_names_the_place(
    body: Any, param: str | None, client: httpx.Client
) -> None:
    status, named, message = error(client, "/tokenize", body)
    assert (status, named) == (400, param)
    assert message.endswith(".")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"{", None),
        ({"model": MODEL}, "tokens"),
        ({"model": MODEL, "tokens": None}, "tokens"),
        ({"model": MODEL, "tokens": "a"}, "tokens"),
        ({"model": MODEL, "tokens": [1, "2"]}, "tokens[1]"),
        ({"model": MODEL, "tokens": [1, -1]}, "tokens[1]"),
        ({"model": MODEL, "tokens": [1, 2**31]}, "tokens[1]"),
        ({"model": MODEL, "tokens": [True]}, "tokens[0]"),
        ({"model": MODEL, "tokens": [1, 257]}, "tokens"),
    ],
)
def test_a_wrong_request_to_detokenize_is_a_400_that_names_the_place(
    body: Any, param: str | None, client: httpx.Client
) -> None:
    status, named, message = error(client, "/detokenize", body)
    assert (status, named) == (400, param)
    assert message.endswith(".")


def test_an_id_that_the_vocabulary_lacks_is_named(client: httpx.Client) -> None:
    assert error(client, "/detokenize", {"model": MODEL, "tokens": [1, 257]})[2] == (
        "tokens: the vocabulary has no token 257."
    )


def test_an_unknown_model_and_another_method(client: httpx.Client) -> None:
    for path, body in (("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [1]})):
        assert error(client, path, {"model": "other"} | body)[:2] == (404, "model")
        assert client.get(path).status_code == 405


def test_a_body_that_is_too_large(client: httpx.Client) -> None:
    status, _, message = error(client, "/tokenize", b" " * (4 * 1024 * 1024 + 1))
    assert status == 413
    assert "max_body_bytes" in message


def test_the_documents_name_both(client: httpx.Client) -> None:
    document = client.get("/openapi.json").json()
    assert {"/tokenize", "/detokenize"} <= document["paths"].keys()
    assert "return_token_strs" in document["components"]["schemas"]["TokenizeRequest"]["properties"]


def test_strict_fields(engine: MockEngine, repository: Path) -> None:
    flags = ("--triton", engine.url, "--model-repository", str(repository), "--strict-fields")
    with running_gateway(*flags) as strict, httpx.Client(base_url=strict.url, timeout=60) as client:
        assert error(client, "/tokenize", {"model": MODEL, "prompt": "a", "x": 1})[:2] == (400, "x")
        assert error(client, "/detokenize", {"model": MODEL, "tokens": [1], "x": 1})[:2] == (400, "x")


@pytest.mark.parametrize("folder", [True, False])
def test_a_model_without_a_tokenizer_names_the_setting(folder: bool, engine: MockEngine, tmp_path: Path) -> None:
    model: dict[str, Any] = {"triton_model": MODEL}
    if folder:
        # As of a model that comes with SentencePiece's files alone.
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages[0].content }}"}))
        model["tokenizer"] = str(tmp_path)
    flags = ("--triton", engine.url, "--models", json.dumps([model]))
    with running_gateway(*flags) as gateway, httpx.Client(base_url=gateway.url, timeout=60) as client:
        for path, body in (("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [1]})):
            status, param, message = error(client, path, {"model": MODEL} | body)
            assert (status, param) == (400, "model")
            assert "models[].tokenizer" in message


def test_long_texts_hold_up_nobody(client: httpx.Client, gateway: Gateway) -> None:
    """Texts that take seconds in all are tokenized while the gateway answers others."""
    long = json.dumps({"model": MODEL, "prompt": "the lowest world " * 40_000})

    def send(_: int) -> int:
        return httpx.post(f"{gateway.url}/tokenize", content=long, timeout=120).status_code

    with ThreadPoolExecutor(4) as threads:
        sent = [threads.submit(send, i) for i in range(4)]
        answered = 0
        while not all(one.done() for one in sent):
            assert client.get("/health/live").status_code == 200
            answered += 1
            time.sleep(0.01)
        assert [one.result() for one in sent] == [200] * 4
    assert answered > 10
