"""Completions: every form of a prompt, `echo`, what is refused, and what comes back beside the text."""

from typing import Any

import httpx
import openai
import pytest

from bench.mock_engine.running import MockEngine
from tests.support.chat import MODEL, complete, completion, events
from tests.support.gateway import Gateway


def texts(chunks: list[dict[str, Any]]) -> dict[int, str]:
    found: dict[int, str] = {}
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        found[choice["index"]] = found.get(choice["index"], "") + choice["text"]
    return found


def refusal(answer: httpx.Response, status: int = 400) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert isinstance(error, dict)
    return error


def test_a_whole_answer(client: httpx.Client) -> None:
    answer = complete(client, max_tokens=5)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert body["id"].startswith("cmpl-")
    assert (body["object"], body["model"]) == ("text_completion", MODEL)
    (choice,) = body["choices"]
    assert choice.keys() == {"index", "text", "logprobs", "finish_reason"}
    assert (choice["index"], choice["logprobs"], choice["finish_reason"]) == (0, None, "length")
    assert choice["text"]
    assert body["usage"]["completion_tokens"] == 5
    assert body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"] + 5


def test_a_stream_says_the_same(client: httpx.Client) -> None:
    whole = complete(client, seed=7, max_tokens=60).json()
    answer = complete(client, seed=7, max_tokens=60, stream=True, stream_options={"include_usage": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    *chunks, last = events(answer)
    assert texts(chunks) == {0: whole["choices"][0]["text"]}
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + [whole["choices"][0]["finish_reason"]]
    assert [chunk["usage"] for chunk in chunks] == [None] * len(chunks)
    assert (last["choices"], last["usage"]) == ([], whole["usage"])


@pytest.mark.parametrize(
    ("prompt", "arrives"),
    [
        ("Say something.", ["Say something."]),
        ("\u2028 日本 \x00 🌊", ["\u2028 日本 \x00 🌊"]),
        (["one"], ["one"]),
        (["one", "two", "one"], ["one", "two", "one"]),
        ([66], [[66]]),
        ([66, 67, 68], [[66, 67, 68]]),
        ([[66, 67]], [[66, 67]]),
        ([[66], [67, 68]], [[66], [67, 68]]),
    ],
    ids=["text", "odd text", "one text", "texts", "one id", "ids", "one list of ids", "lists of ids"],
)
@pytest.mark.parametrize("stream", [False, True])
def test_every_form_of_a_prompt(
    prompt: Any, arrives: list[Any], stream: bool, client: httpx.Client, engine: MockEngine
) -> None:
    answer = complete(client, prompt, stream=stream)
    assert answer.status_code == 200, answer.text
    indices = sorted(texts(events(answer))) if stream else [choice["index"] for choice in answer.json()["choices"]]
    assert indices == list(range(len(arrives)))
    requests = engine.wait_for_requests(len(arrives))
    requests.sort(key=lambda request: request["request_id"])
    for request, expected in zip(requests, arrives, strict=True):
        assert request["inputs"].get("input_ids" if isinstance(expected, list) else "text_input") == expected
        assert ("add_special_tokens" in request["inputs"]) is isinstance(expected, str)


@pytest.mark.parametrize(
    ("prompt", "param", "says"),
    [
        (None, "prompt", "a string, a list of strings, a list of token ids or a list of such lists"),
        (5, "prompt", "a string, a list of strings, a list of token ids or a list of such lists"),
        ({"text": "x"}, "prompt", "a string, a list of strings, a list of token ids or a list of such lists"),
        ([], "prompt", "not be empty"),
        ([[]], "prompt[0]", "not be empty"),
        ([None], "prompt", "a string, a list of strings, a list of token ids or a list of such lists"),
        (["a", 5], "prompt[1]", "a string"),
        ([5, "a"], "prompt[1]", "an integer"),
        ([5, 1.5], "prompt[1]", "an integer"),
        ([5, -1], "prompt[1]", "greater than or equal to 0"),
        ([5, 2**31], "prompt[1]", "less than"),
        ([[5], [6, True]], "prompt[1][1]", "an integer"),
        ([[5], "a"], "prompt[1]", "a list"),
    ],
)
def test_no_form_of_a_prompt(prompt: Any, param: str, says: str, client: httpx.Client, engine: MockEngine) -> None:
    error = refusal(complete(client, prompt))
    assert error["param"] == param
    assert says in error["message"]
    assert engine.requests() == []


def test_a_prompt_is_required(client: httpx.Client) -> None:
    error = refusal(client.post("/v1/completions", json={"model": MODEL}))
    assert (error["param"], error["code"]) == ("prompt", "missing_required_parameter")


def test_an_empty_prompt_is_the_engines_to_judge(client: httpx.Client, engine: MockEngine) -> None:
    """With a BOS it is one of one token."""
    assert complete(client, "").status_code == 200
    error = refusal(complete(client, "", add_special_tokens=False))
    assert error["param"] == "prompt"


def test_special_tokens_are_added_unless_told_otherwise(client: httpx.Client, engine: MockEngine) -> None:
    for value, adds in ((None, True), (True, True), (False, False)):
        engine.forget_requests()
        assert complete(client, "ab", add_special_tokens=value).status_code == 200
        (request,) = engine.wait_for_requests(1)
        assert request["inputs"]["add_special_tokens"] is adds
        assert request["num_input_tokens"] == 2 + adds


def test_sixteen_tokens_unless_set(client: httpx.Client, engine: MockEngine) -> None:
    body = complete(client, max_tokens=None, ignore_eos=True).json()
    assert body["usage"]["completion_tokens"] == 16
    assert body["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("prompts", "param"),
    [
        ("x" * 600, "prompt"),
        (["x" * 600], "prompt[0]"),
        (["short", "x" * 600], "prompt[1]"),
        ([5] * 600, "prompt"),
        ([[5], [5], [5] * 600], "prompt[2]"),
    ],
    ids=["text", "one text", "texts", "ids", "lists of ids"],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_is_too_long_is_named(prompts: Any, param: str, stream: bool, client: httpx.Client) -> None:
    error = refusal(complete(client, prompts, stream=stream))
    assert (error["param"], error["code"]) == (param, "context_length_exceeded")
    several = isinstance(prompts[0], list | str) and len(prompts) > 1 and not isinstance(prompts, str)
    assert error["message"].startswith("Choice ") is several


@pytest.mark.parametrize("prompt", ["Say it.", ["one", "two"], [66, 67], [[66], [67, 68]]])
@pytest.mark.parametrize("n", [1, 2])
def test_echo_whole_and_streamed(prompt: Any, n: int, client: httpx.Client) -> None:
    whole = complete(client, prompt, n=n, seed=4, echo=True).json()["choices"]
    plain = complete(client, prompt, n=n, seed=4).json()["choices"]
    streamed = texts(events(complete(client, prompt, n=n, seed=4, echo=True, stream=True)))
    assert streamed == {choice["index"]: choice["text"] for choice in whole}
    one = isinstance(prompt, str) or isinstance(prompt[0], int)
    for choice, without in zip(whole, plain, strict=True):
        asked = prompt if one else prompt[choice["index"] // n]
        if isinstance(asked, str):
            assert choice["text"] == asked + without["text"]
        else:
            assert choice["text"].endswith(without["text"])
            assert len(choice["text"]) > len(without["text"])


@pytest.mark.parametrize("stream", [False, True])
def test_max_tokens_0_gives_the_prompt_alone_and_needs_echo(
    stream: bool, client: httpx.Client, engine: MockEngine
) -> None:
    error = refusal(complete(client, max_tokens=0, stream=stream))
    assert error["param"] == "max_tokens"
    assert "echo" in error["message"]
    assert engine.requests() == []
    fields = {"max_tokens": 0, "echo": True, "return_token_ids": True}
    if stream:
        options = {"include_usage": True, "continuous_usage_stats": True}
        *chunks, last = events(complete(client, "ab", stream=True, stream_options=options, **fields))
        assert texts(chunks) == {0: "ab"}
        assert chunks[-1]["choices"][0]["finish_reason"] == "length"
        assert {chunk["usage"]["completion_tokens"] for chunk in [*chunks, last]} == {0}
        assert last["usage"] == {"prompt_tokens": 3, "completion_tokens": 0, "total_tokens": 3}
        return
    body = complete(client, "ab", **fields).json()
    (choice,) = body["choices"]
    assert (choice["text"], choice["token_ids"], choice["finish_reason"]) == ("ab", [], "length")
    assert len(choice["prompt_token_ids"]) == 3
    assert body["usage"] == {"prompt_tokens": 3, "completion_tokens": 0, "total_tokens": 3}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"suffix": "end"}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"prompt_embeds": "abc"}, "prompt_embeds"),
        ({"echo": True, "truncate_prompt_tokens": 2}, "echo"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": -2}, "logprobs"),
    ],
)
def test_what_is_refused(fields: dict[str, Any], param: str, client: httpx.Client, engine: MockEngine) -> None:
    error = refusal(complete(client, **fields))
    assert error["param"] == param
    assert param in error["message"]
    assert engine.requests() == []


def test_what_asks_for_nothing_is_accepted(client: httpx.Client) -> None:
    answer = complete(client, suffix=None, best_of=1, echo=False, logprobs=None, stop=[], logit_bias={}, user=None)
    assert answer.status_code == 200, answer.text
    assert "x-gateway-warning" not in answer.headers


@pytest.mark.parametrize(
    ("prompt", "fields", "param"),
    [
        ([66, 67], {}, "prompt"),
        ([[66], [67]], {}, "prompt"),
        ("x", {"echo": True, "logprobs": 1}, "echo"),
        ("x", {"add_special_tokens": False}, "add_special_tokens"),
        ("x", {"prompt_logprobs": 1}, "prompt_logprobs"),
        ("x", {"return_token_ids": True}, "return_token_ids"),
        ("x", {"truncate_prompt_tokens": 3}, "truncate_prompt_tokens"),
    ],
)
def test_what_the_stock_backend_cannot_do_is_refused(
    prompt: Any, fields: dict[str, Any], param: str, stock_client: httpx.Client, stock: MockEngine
) -> None:
    error = refusal(complete(stock_client, prompt, **fields))
    assert (error["param"], error["code"]) == (param, "unsupported_parameter")
    assert "vllm_backend" in error["message"]
    assert stock.requests() == []


def test_the_stock_backend_completes(stock_client: httpx.Client, stock: MockEngine) -> None:
    body = complete(stock_client, ["one", "two"], n=2, seed=3, echo=True, logprobs=None).json()
    assert [choice["text"][:3] for choice in body["choices"]] == ["one", "one", "two", "two"]
    assert body["usage"]["completion_tokens"] == 80
    requests = stock.wait_for_requests(4)
    # Its tokenizer adds the BOS by itself.
    assert {request["first_prompt_token_ids"].count(0) for request in requests} == {1}
    # A prompt that begins with a BOS already does not get a second one where that can be had.
    answer = complete(stock_client, "<s>one", add_special_tokens=False)
    assert answer.status_code == 200
    assert stock.requests()[-1]["first_prompt_token_ids"].count(0) == 1
    whole = complete(stock_client, seed=5, logprobs=2).json()["choices"][0]["logprobs"]
    assert len(whole["tokens"]) == 20
    choices = [c for e in events(complete(stock_client, seed=5, logprobs=2, stream=True)) for c in e["choices"]]
    assert [token for c in choices for token in (c["logprobs"] or {}).get("tokens", [])] == whole["tokens"]


@pytest.mark.parametrize("stream", [False, True])
def test_token_ids_beside_the_text(stream: bool, client: httpx.Client, engine: MockEngine) -> None:
    engine.add_fault(text=["a", "b", "c"])
    answer = complete(client, ["xy", "z"], return_token_ids=True, stream=stream)
    assert answer.status_code == 200
    choices = [c for e in events(answer) for c in e["choices"]] if stream else answer.json()["choices"]
    requests = sorted(engine.wait_for_requests(2), key=lambda request: request["request_id"])
    for index, request in enumerate(requests):
        own = [choice for choice in choices if choice["index"] == index]
        ids = [token for choice in own for token in choice.get("token_ids") or ()]
        assert len(ids) == request["tokens"] == 4
        assert ids[:3] == [ord("a"), ord("b"), ord("c")]
        of_prompt = [choice["prompt_token_ids"] for choice in own if choice.get("prompt_token_ids")]
        assert of_prompt == [request["first_prompt_token_ids"]]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "reason", "stop_reason"),
    [
        ({"stop": ["b"]}, "stop", "b"),
        ({"stop": "b"}, "stop", "b"),
        ({"stop": ["zz"]}, "stop", None),
        ({"stop_token_ids": [ord("b")]}, "stop", ord("b")),
        ({"stop": ["zz"], "max_tokens": 2}, "length", None),
        (
            {"repetition_detection": {"max_pattern_size": 1, "min_pattern_size": 1, "min_count": 2}},
            "repetition",
            "repetition_detected",
        ),
    ],
)
def test_why_an_answer_ended(
    fields: dict[str, Any],
    reason: str,
    stop_reason: str | int | None,
    stream: bool,
    client: httpx.Client,
    engine: MockEngine,
) -> None:
    engine.add_fault(text=["a", "b", "b", "c"])
    answer = complete(client, stream=stream, **fields)
    choice = events(answer)[-1]["choices"][0] if stream else answer.json()["choices"][0]
    assert choice["finish_reason"] == reason
    assert choice.get("stop_reason") == stop_reason


def test_the_official_client(gateway: Gateway, engine: MockEngine) -> None:
    client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0)
    whole = client.completions.create(**completion(["one", "two"], seed=2, n=2, logprobs=2, echo=True))
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 80
    streamed: dict[int, str] = {}
    usage = None
    options = {"include_usage": True}
    for part in client.completions.create(
        **completion(["one", "two"], seed=2, n=2, logprobs=2, echo=True, stream=True, stream_options=options)
    ):
        for choice in part.choices:
            streamed[choice.index] = streamed.get(choice.index, "") + choice.text
        usage = part.usage or usage
    assert streamed == {choice.index: choice.text for choice in whole.choices}
    assert usage == whole.usage
    logprobs = whole.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert logprobs.top_logprobs is not None
    # The first token of the prompt has none, as OpenAI had it.
    assert logprobs.top_logprobs[0] is None
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(**completion(best_of=3))
    assert refused.value.param == "best_of"
    with pytest.raises(openai.NotFoundError):
        client.completions.create(**completion(model="nope"))
