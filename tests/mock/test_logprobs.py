"""Log probabilities end to end, in front of an engine whose tokens the gateway's tokenizer knows byte by byte."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.mock_engine.running import MockEngine, running_mock_engine
from bench.mock_engine.tokens import EOS, pieces
from tests.support.chat import MODEL, ask, complete, events
from tests.support.gateway import running_gateway
from tests.support.mock_tokenizer import mock_tokenizer

# Characters of two, three and four bytes; the last ones are cut by the mock's rule of three bytes a token.
TEXT = "né 日本 🌊🌊 x🎉"
TEMPLATE = "{{ bos_token }}{% for message in messages %}{{ message['content'] }}{% endfor %}"


@pytest.fixture(scope="module")
def exact_repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose tokenizer has the mock engine's own tokens, as far as these tests' texts need them."""
    folder = tmp_path_factory.mktemp("exact")
    hf = folder / "hf"
    hf.mkdir()
    (hf / "tokenizer.json").write_text(mock_tokenizer([TEXT]))
    config = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE}
    (hf / "tokenizer_config.json").write_text(json.dumps(config))
    model = folder / "repository" / MODEL
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text('backend: "vllm"\n')
    (model / "1" / "model.json").write_text(json.dumps({"model": str(hf), "max_model_len": 512}))
    return folder / "repository"


@pytest.fixture(scope="module")
def exact_engine(exact_repository: Path) -> Iterator[MockEngine]:
    with running_mock_engine(model_repository=exact_repository) as engine:
        yield engine


@pytest.fixture(scope="module")
def exact_gateway(exact_engine: MockEngine, exact_repository: Path) -> Iterator[str]:
    with running_gateway("--triton", exact_engine.url, "--model-repository", str(exact_repository)) as gateway:
        yield gateway.wait_until_ready().url


@pytest.fixture
def engine(exact_engine: MockEngine) -> MockEngine:
    exact_engine.reset()
    return exact_engine


@pytest.fixture
def client(exact_gateway: str, engine: MockEngine) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=exact_gateway, timeout=60) as opened:
        yield opened


def chat_content(client: httpx.Client, **fields: Any) -> list[dict[str, Any]]:
    answer = ask(client, logprobs=True, **fields)
    assert answer.status_code == 200, answer.text
    content = answer.json()["choices"][0]["logprobs"]["content"]
    assert isinstance(content, list)
    return content


def engine_positions(client: httpx.Client, engine: MockEngine, **fields: Any) -> list[dict[str, Any]]:
    """What the engine itself answers to the last request, position by position."""
    (request,) = engine.wait_for_requests(1)
    body = request["inputs"] | {"sampling_parameters": json.dumps(request["sampling_parameters"])}
    answer = httpx.post(f"{engine.url}/v2/models/{MODEL}/generate_stream", json=body, timeout=60)
    rows = [json.loads(line.removeprefix("data:")) for line in answer.text.splitlines() if line.startswith("data:")]
    return [position for row in rows for position in json.loads(row["logprobs"])]


def streamed_content(chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    return [position for choice in choices if choice["logprobs"] for position in choice["logprobs"]["content"]]


def streamed_completion(chunks: list[dict[str, Any]]) -> tuple[str, dict[str, list[Any]]]:
    text = ""
    found: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        text += choice["text"]
        for name, values in (choice["logprobs"] or {}).items():
            found[name] += values
    return text, found


# Chat


@pytest.mark.parametrize("merge", [1, 3, 500])
@pytest.mark.parametrize("top", [None, 0, 1, 5, 20])
def test_a_chat_stream_has_the_whole_answers_log_probabilities(
    top: int | None, merge: int, client: httpx.Client, engine: MockEngine
) -> None:
    fields = {"seed": 3, "top_logprobs": top}
    whole = chat_content(client, **fields)
    engine.add_fault(merge=merge)
    chunks = events(ask(client, logprobs=True, stream=True, **fields))
    assert streamed_content(chunks) == whole
    assert len(whole) == 20
    assert all(choice["logprobs"] is None or choice["logprobs"]["content"] for c in chunks for choice in c["choices"])


def test_the_bytes_of_a_chat_answer_are_its_text_also_where_a_token_is_part_of_a_character(
    client: httpx.Client, engine: MockEngine
) -> None:
    engine.add_fault(text=TEXT)
    body = ask(client, logprobs=True, top_logprobs=2).json()["choices"][0]
    assert body["message"]["content"] == TEXT
    *content, end = body["logprobs"]["content"]
    assert [bytes(one["bytes"]) for one in content] == pieces(TEXT.encode())
    assert (end["token"], bytes(end["bytes"])) == ("</s>", b"</s>")
    parts = [one for one in content if len(bytes(one["bytes"]).decode(errors="ignore").encode()) < len(one["bytes"])]
    assert len(parts) > 3
    # A token that is only a part of a character has an empty text or the whole character's.
    assert all("\ufffd" not in one["token"] for one in content)
    assert "".join(one["token"] for one in content) == TEXT


def test_the_sampled_token_is_the_first_key_of_the_engine_and_not_the_best(
    client: httpx.Client, engine: MockEngine
) -> None:
    content = chat_content(client, seed=1, max_tokens=200, top_logprobs=2, ignore_eos=True)
    positions = engine_positions(client, engine)
    assert len(content) == len(positions) == 200
    ranks = set()
    for one, position in zip(content, positions, strict=True):
        sampled = next(iter(position.values()))
        assert one["token"] == sampled["decoded_token"]
        assert one["logprob"] == pytest.approx(sampled["logprob"])
        ranks.add(sampled["rank"])
        best = sorted((entry for entry in position.values() if entry["rank"] <= 2), key=lambda entry: entry["rank"])
        assert [top["token"] for top in one["top_logprobs"]] == [entry["decoded_token"] for entry in best]
        assert [top["logprob"] for top in one["top_logprobs"]] == sorted(
            (top["logprob"] for top in one["top_logprobs"]), reverse=True
        )
        assert len(one["top_logprobs"]) == 2
    assert {1, 2, 5} <= ranks


@pytest.mark.parametrize("top", [0, 1, 3, 20])
def test_never_more_alternatives_than_asked(top: int, client: httpx.Client, engine: MockEngine) -> None:
    content = chat_content(client, seed=2, max_tokens=100, top_logprobs=top, ignore_eos=True)
    assert {len(one["top_logprobs"]) for one in content} == {top}
    body = complete(client, seed=2, max_tokens=100, logprobs=top, ignore_eos=True).json()
    tops = body["choices"][0]["logprobs"]["top_logprobs"]
    # The sampled one is always among them.
    assert {len(one) for one in tops} <= {max(top, 1), top + 1}


def test_without_top_logprobs_the_lists_are_empty(client: httpx.Client) -> None:
    assert all(one["top_logprobs"] == [] for one in chat_content(client))
    assert all(one["top_logprobs"] == [] for one in chat_content(client, top_logprobs=0))


def test_all_that_the_engine_gives(client: httpx.Client) -> None:
    content = chat_content(client, top_logprobs=-1, seed=1)
    assert all(len(one["top_logprobs"]) in (20, 21) for one in content)


def test_more_than_the_engine_allows_is_refused_by_the_clients_name(client: httpx.Client) -> None:
    answer = ask(client, logprobs=True, top_logprobs=21)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "top_logprobs")
    answer = complete(client, logprobs=21)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "logprobs")


def test_chat_without_logprobs_has_none(client: httpx.Client, engine: MockEngine) -> None:
    for fields in ({}, {"logprobs": False}, {"logprobs": None, "top_logprobs": 0}):
        assert ask(client, **fields).json()["choices"][0]["logprobs"] is None
        chunks = events(ask(client, stream=True, **fields))
        assert all(choice["logprobs"] is None for chunk in chunks for choice in chunk["choices"])
    answer = ask(client, top_logprobs=2)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "top_logprobs")
    assert all("logprobs" not in request["sampling_parameters"] for request in engine.wait_for_requests(6))


@pytest.mark.parametrize("stream", [False, True])
def test_tokens_that_are_named(stream: bool, client: httpx.Client, engine: MockEngine) -> None:
    """`logprob_token_ids`: these and the sampled one, whatever their rank."""
    asked = [ord("a"), ord("b"), ord("c")]
    fields = {"logprobs": True, "logprob_token_ids": asked, "stream": stream, "max_tokens": 5}
    answer = ask(client, **fields)
    content = streamed_content(events(answer)) if stream else answer.json()["choices"][0]["logprobs"]["content"]
    assert len(content) == 5
    for one in content:
        assert [ord("a"), ord("b"), ord("c")] == [top["bytes"][0] for top in one["top_logprobs"][-3:]]
    answer = ask(client, logprob_token_ids=asked)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "logprob_token_ids")


def test_tokens_may_be_named_by_their_ids(client: httpx.Client, engine: MockEngine) -> None:
    engine.add_fault(text=["a", "b"])
    content = chat_content(client, top_logprobs=1, return_tokens_as_token_ids=True, return_token_ids=True)
    assert [one["token"] for one in content] == [f"token_id:{t}" for t in (ord("a"), ord("b"), EOS)]
    assert all(one["top_logprobs"][0]["token"].startswith("token_id:") for one in content)
    assert [bytes(one["bytes"]) for one in content] == [b"a", b"b", b"</s>"]


@pytest.mark.parametrize("stream", [False, True])
def test_each_choice_has_its_own(stream: bool, client: httpx.Client) -> None:
    fields = {"logprobs": True, "top_logprobs": 1, "max_tokens": 6}
    alone = [ask(client, seed=seed, **fields).json()["choices"][0]["logprobs"]["content"] for seed in (8, 9)]
    answer = ask(client, seed=8, n=2, stream=stream, **fields)
    if stream:
        chunks = events(answer)
        of = [[c for c in chunks if [x["index"] for x in c["choices"]] == [index]] for index in (0, 1)]
        assert [streamed_content(own) for own in of] == alone
    else:
        assert [choice["logprobs"]["content"] for choice in answer.json()["choices"]] == alone


# Completions


@pytest.mark.parametrize("merge", [1, 3, 500])
@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize("text", [None, TEXT])
def test_a_completion_stream_has_the_whole_answers_log_probabilities(
    text: str | None, echo: bool, merge: int, client: httpx.Client, engine: MockEngine
) -> None:
    fields = {"seed": 3, "logprobs": 2, "echo": echo}
    engine.add_fault(text=text)
    whole = complete(client, "日 🌊!", **fields).json()["choices"][0]
    engine.clear_faults()
    engine.add_fault(text=text, merge=merge)
    streamed = streamed_completion(events(complete(client, "日 🌊!", stream=True, **fields)))
    assert streamed == (whole["text"], whole["logprobs"])
    assert whole["text"].startswith("日 🌊!") is echo


@pytest.mark.parametrize("echo", [False, True])
def test_text_offsets_are_where_the_tokens_stand_in_the_text(
    echo: bool, client: httpx.Client, engine: MockEngine
) -> None:
    """Counted in characters; a token in the middle of a character has that character's offset."""
    prompt = "é日🌊." if echo else "x"
    engine.add_fault(text=TEXT)
    choice = complete(client, prompt, logprobs=1, echo=echo).json()["choices"][0]
    text, logprobs = choice["text"], choice["logprobs"]
    assert text == (prompt if echo else "") + TEXT
    tokens = [b"", *(bytes([byte]) for byte in prompt.encode())] if echo else []
    tokens += [*pieces(TEXT.encode()), b""]
    expected, at = [], 0
    for data in tokens:
        before = text.encode()[:at].decode(errors="ignore")
        expected.append(len(before))
        at += len(data)
    assert at == len(text.encode())
    assert logprobs["text_offset"] == expected
    assert {len(values) for values in logprobs.values()} == {len(tokens)}


def test_echo_gives_the_prompts_tokens_too(client: httpx.Client, engine: MockEngine) -> None:
    logprobs = complete(client, "ab", echo=True, logprobs=2, max_tokens=1).json()["choices"][0]["logprobs"]
    assert logprobs["tokens"][:3] == ["<s>", "a", "b"]
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["top_logprobs"][0] is None
    assert all(value is not None for value in logprobs["token_logprobs"][1:])
    assert [token in top for token, top in zip("ab", logprobs["top_logprobs"][1:], strict=False)] == [True, True]
    (request,) = engine.wait_for_requests(1)
    assert request["sampling_parameters"]["prompt_logprobs"] == 2


def test_echo_of_nothing_but_the_prompt(client: httpx.Client, engine: MockEngine) -> None:
    fields = {"echo": True, "logprobs": 1, "max_tokens": 0}
    body = complete(client, "ab", **fields).json()
    (choice,) = body["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("ab", "length")
    assert choice["logprobs"]["tokens"] == ["<s>", "a", "b"]
    assert choice.keys() == {"index", "text", "logprobs", "finish_reason"}
    assert body["usage"] == {"prompt_tokens": 3, "completion_tokens": 0, "total_tokens": 3}
    chunks = events(complete(client, "ab", stream=True, stream_options={"include_usage": True}, **fields))
    assert streamed_completion(chunks) == ("ab", choice["logprobs"])
    assert chunks[-1]["usage"] == body["usage"]
    assert chunks[-2]["choices"][0]["finish_reason"] == "length"


def test_the_sampled_token_of_a_completion(client: httpx.Client, engine: MockEngine) -> None:
    body = complete(client, seed=1, max_tokens=200, logprobs=2, ignore_eos=True).json()
    logprobs = body["choices"][0]["logprobs"]
    positions = engine_positions(client, engine)
    for index, position in enumerate(positions):
        sampled = next(iter(position.values()))
        assert logprobs["tokens"][index] == sampled["decoded_token"]
        assert logprobs["token_logprobs"][index] == pytest.approx(sampled["logprob"])
        assert logprobs["top_logprobs"][index][sampled["decoded_token"]] == pytest.approx(sampled["logprob"])
    assert {next(iter(position.values()))["rank"] for position in positions} > {1, 2}


@pytest.mark.parametrize("stream", [False, True])
def test_prompt_logprobs_as_the_engine_gives_them(stream: bool, client: httpx.Client, engine: MockEngine) -> None:
    for send in (ask, complete):
        answer = send(client, prompt_logprobs=1, stream=stream)
        if stream:
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt_logprobs")
            continue
        body = answer.json()
        given = body["prompt_logprobs"] if send is ask else body["choices"][0]["prompt_logprobs"]
        request = engine.requests()[-1]
        assert len(given) == request["num_input_tokens"]
        assert given[0] is None
        assert all(entry["rank"] >= 1 for position in given[1:] for entry in position.values())


def test_log_probabilities_of_an_answer_that_a_stop_string_cuts(client: httpx.Client, engine: MockEngine) -> None:
    """Text that is held back because it may begin a stop string does not hold back or lose its tokens."""
    fields = {"logprobs": 0, "stop": ["dxe"]}
    engine.add_fault(text=["ab", "dx", "ca", "dx", "e", "f"])
    whole = complete(client, **fields).json()["choices"][0]
    assert (whole["text"], whole["finish_reason"], whole["stop_reason"]) == ("abdxca", "stop", "dxe")
    assert whole["logprobs"]["tokens"] == ["ab", "dx", "ca", "dx", "e"]
    text, logprobs = streamed_completion(events(complete(client, stream=True, **fields)))
    assert (text, logprobs) == (whole["text"], whole["logprobs"])
    content = chat_content(client, stop=["dxe"])
    assert [one["token"] for one in content] == ["ab", "dx", "ca", "dx", "e"]
    assert streamed_content(events(ask(client, logprobs=True, stop=["dxe"], stream=True))) == content
