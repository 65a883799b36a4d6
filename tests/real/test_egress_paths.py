"""Whichever way an answer's tokens come back, the client gets the same: one request to the real engine, by its own
stream and by batched egress."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from devtools import models
from devtools.stack import Stack
from tests.support.gateway import Gateway, running_gateway
from tests.support.waiting import wait_for

_SETTINGS = ("never", "always")
_CHAT = {"messages": [{"role": "user", "content": "Hi 🌍"}], "temperature": 0, "max_tokens": 30}
_COMPLETION = {"prompt": "One, two", "temperature": 0, "max_tokens": 30}
_IDS = {"return_token_ids": True}
_STREAM = {"stream": True, "stream_options": {"include_usage": True}}
_CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", _CHAT),
    "choices": ("/v1/chat/completions", {**_CHAT, "temperature": 1, "seed": 5, "n": 3}),
    "log probabilities": ("/v1/chat/completions", {**_CHAT, **_IDS, "logprobs": True, "top_logprobs": 3}),
    "a stop token": ("/v1/completions", {**_COMPLETION, "temperature": 1, "seed": 3, "stop_token_ids": [*range(300)]}),
    "echo": ("/v1/completions", {**_COMPLETION, **_IDS, "echo": True, "logprobs": 2}),
    "prompts": ("/v1/completions", {**_COMPLETION, "prompt": ["a", "b", "c"], "max_tokens": 5}),
    "one token": ("/v1/completions", {**_COMPLETION, "max_tokens": 1}),
    "a prompt that is too long": ("/v1/completions", {**_COMPLETION, "prompt": "a" * 100_000}),
}


# What is 400 for a stream.
_WHOLE = {"the prompt's log probabilities": ("/v1/completions", {**_COMPLETION, "prompt_logprobs": 1})}


@pytest.fixture(scope="module", params=[1, 2], ids=["one worker", "two workers"])
def gateways(stack: Stack, request: pytest.FixtureRequest) -> Iterator[dict[str, Gateway]]:
    """One for each setting."""
    opened: dict[str, Gateway] = {}

    def flags(setting: str) -> tuple[str, ...]:
        served = json.dumps([{"triton_model": models.TINY, "batched_egress": setting}])
        repository = str(stack.repository)
        return (
            *("--triton", stack.triton_url, "--model-repository", repository, "--models", served),
            *("--workers", str(request.param)),
        )

    with running_gateway(*flags("never")) as never, running_gateway(*flags("always")) as always:
        opened["never"], opened["always"] = never.wait_until_ready(), always.wait_until_ready()
        yield opened


def _events(text: str) -> list[dict[str, Any]]:
    *events, done, rest = text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]


def _folded(events: list[dict[str, Any]]) -> dict[str, Any]:
    """What they come to: engine outputs may come together."""
    choices: dict[int, dict[str, Any]] = {}
    for event in events:
        for choice in event.get("choices", ()):
            whole = choices.setdefault(choice["index"], {"text": "", "logprobs": [], "token_ids": [], "ends": []})
            whole["text"] += choice.get("text") or (choice.get("delta") or {}).get("content") or ""
            logprobs = choice.get("logprobs") or {}
            whole["logprobs"] += logprobs.get("content") or logprobs.get("token_logprobs") or []
            whole["token_ids"] += choice.get("token_ids") or []
            if choice.get("finish_reason") is not None:
                whole["ends"].append((choice["finish_reason"], choice.get("stop_reason")))
    return {"choices": choices, "usage": events[-1].get("usage"), "error": events[-1].get("error")}


def _asked(gateway: Gateway, path: str, body: dict[str, Any]) -> Any:
    answer = httpx.post(gateway.url + path, json={"model": models.TINY, **body}, timeout=240)
    if not answer.headers["content-type"].startswith("text/event-stream"):
        whole = answer.json()
        return answer.status_code, {name: value for name, value in whole.items() if name not in ("id", "created")}
    return answer.status_code, _folded(_events(answer.text))


@pytest.mark.parametrize(
    ("case", "stream"),
    [*((case, stream) for case in _CASES for stream in (False, True)), *((case, False) for case in _WHOLE)],
)
def test_the_client_gets_the_same(case: str, stream: bool, gateways: dict[str, Gateway]) -> None:
    path, body = (_CASES | _WHOLE)[case]
    own, batched = (_asked(gateways[setting], path, {**body, **(_STREAM if stream else {})}) for setting in _SETTINGS)
    assert batched == own
    assert own[0] == (400 if case == "a prompt that is too long" else 200)


def test_the_ways_were_taken(gateways: dict[str, Gateway]) -> None:
    for setting, path in zip(_SETTINGS, ("per_request", "batched"), strict=True):
        for _ in range(8):
            _asked(gateways[setting], "/v1/completions", _COMPLETION)
        sent = gateways[setting].metric("gateway_generations_total", path=path)
        assert gateways[setting].metric("gateway_generations_total") == sent >= 8
    # Two seconds after the last request the backend has ended what is open, so that Triton could stop.
    wait_for(lambda: gateways["always"].metric("gateway_egress_subscriptions") == 0, "the subscriptions to end")
    assert [gateways["always"].metric(f"gateway_egress_{what}_total") for what in ("repairs", "cut_streams")] == [0, 0]


def test_many_at_once(gateways: dict[str, Gateway]) -> None:
    """Each is whole: its length is what its usage says, and the ids are those of its text."""
    bodies = [{**_COMPLETION, **_IDS, **_STREAM, "max_tokens": 20 + n, "seed": n, "temperature": 1} for n in range(24)]
    with ThreadPoolExecutor(24) as pool:
        answers = list(pool.map(lambda body: _asked(gateways["always"], "/v1/completions", body), bodies))
    for body, (status, answer) in zip(bodies, answers, strict=True):
        assert status == 200
        assert answer["error"] is None
        (choice,) = answer["choices"].values()
        assert len(choice["token_ids"]) == answer["usage"]["completion_tokens"] <= body["max_tokens"]
        assert len(choice["ends"]) == 1
