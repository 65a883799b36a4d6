"""Requests that nobody wrote: valid ones with random mistakes, thousands of them at once.

Never a 500, never a hang, never a known field that is dropped without a word.
"""

import asyncio
import copy
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bench.mock_engine.running import MockEngine, running_mock_engine
from gateway.openai.fields import Fate
from tests.support.chat import COMPLETION_TELLING, MODEL, SCHEMA, TELLING
from tests.support.flood import Reply, flood
from tests.support.gateway import Gateway, running_gateway
from tests.support.kept import TABLES, Exchange, dropped
from tests.support.waiting import wait_for

CHAT, COMPLETIONS, TOKENIZE, DETOKENIZE = TABLES
CONNECTIONS = 16
BATCH = 500
REQUIRED: dict[str, dict[str, Any]] = {
    CHAT: {"model": MODEL, "messages": [{"role": "user", "content": "Say something."}]},
    COMPLETIONS: {"model": MODEL, "prompt": "Say something."},
    TOKENIZE: {"model": MODEL, "prompt": "Say something."},
    DETOKENIZE: {"model": MODEL, "tokens": [1, 2, 70]},
}
# Values of what is not forwarded one to one; several of them are alternatives.
_SHARED: dict[str, list[Any]] = {
    "stream": [True, False],
    "stream_options": [{"include_usage": True}, {"include_usage": False}, {"continuous_usage_stats": True}],
    "n": [1, 2, 3],
    "request_id": ["mine"],
    "return_token_ids": [True, False],
    "return_tokens_as_token_ids": [True],
    "response_format": [
        {"type": "text"},
        {"type": "json_object"},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}},
    ],
    "structured_outputs": [{"regex": "[a-c]{3}"}, {"choice": ["yes", "no"]}, {"json": SCHEMA}],
    "guided_json": [SCHEMA],
    "guided_regex": ["[a-c]{3}"],
    "guided_choice": [["yes", "no"]],
    "guided_grammar": ['root ::= "a" | "b"'],
    "constraints": [{"no_repeat_ngram": {"size": 1}}],
    "user": ["someone"],
    "max_tokens": [4, 1],
}
_TEMPLATE: dict[str, list[Any]] = {
    "add_generation_prompt": [True, False],
    "add_special_tokens": [True, False],
    "chat_template_kwargs": [{"mood": "telling"}, {"colour": "red"}],
}
_MESSAGES: list[Any] = [
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "日本 🌊"}],
    [{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}],
    [{"role": "user", "content": "a", "name": "me"}, {"role": "assistant", "content": "telling"}],
]
OPTIONAL: dict[str, dict[str, list[Any]]] = {
    CHAT: {name: [value] for name, value in TELLING.items()}
    | _SHARED
    | _TEMPLATE
    | {
        "messages": _MESSAGES,
        "max_completion_tokens": [3],
        "logprobs": [True, False],
        "continue_final_message": [True, False],
        "documents": [[{"title": "telling"}]],
        "echo": [True, False],
        "return_prompt_text": [True, False],
        "metadata": [{"a": "b"}],
        "store": [False, True],
        "safety_identifier": ["someone"],
        "prompt_cache_key": ["a key"],
        "service_tier": ["auto", "priority"],
        "tools": [[], [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]],
        "tool_choice": ["none", "auto", "required", {"type": "function", "function": {"name": "f"}}],
        "parallel_tool_calls": [True, False],
        "reasoning_effort": ["low"],
        "include_reasoning": [True, False],
        "modalities": [["text"], ["audio"]],
    },
    COMPLETIONS: {name: [value] for name, value in COMPLETION_TELLING.items()}
    | _SHARED
    | {
        "prompt": [["one", "two"], [65, 66], [[65], [66, 67]], ""],
        "echo": [True, False],
        "add_special_tokens": [True, False],
        "max_tokens": [4, 1, 0],
        "suffix": ["", "end"],
        "best_of": [1, 2],
    },
    TOKENIZE: _TEMPLATE
    | {
        "return_token_strs": [True, False],
        "continue_final_message": [True, False],
        "tools": [[]],
    },
    DETOKENIZE: {"tokens": [[], [256], [257]]},
}
# What cannot be had in a stream, or beside another choice of this list, is rare enough by itself.
_WEIGHTS = {CHAT: 45, COMPLETIONS: 45, TOKENIZE: 5, DETOKENIZE: 5}

NUMBERS: list[Any] = [0, 1, -1, 2, 16, 0.5, -0.5, 1e-300, 1e308, float("nan"), float("inf"), -float("inf")]
NUMBERS += [2**31 - 1, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 10**40, 10**400]
TEXTS = ["", "x", "0", "1", "true", "null", "text", "\x00", "\x7f", "\u2028", "é", "日本", "🌊", "\ud800", "\udc00x"]
TEXTS += ["a" * 3000, "\r\nx: y", "$ref", "{{ x }}"]
LISTS: list[Any] = [[], [[]], [{}], [None], [True], ["x", 1], [0.5], [1, 2, 3], ["a", "b"]]
LISTS += [[{"role": "user", "content": "x"}]]
OBJECTS: list[Any] = [{}, {"": None}, {"a": {"a": {"a": {}}}}, {"type": "text"}, {"type": "json_object"}]
OBJECTS += [{"5": 1}, {"5": -101}]
JUNK: list[Any] = [None, True, False, *NUMBERS, *TEXTS, *LISTS, *OBJECTS]


@dataclass(frozen=True)
class Case:
    path: str
    raw: bytes
    body: Any
    """What the bytes say, where they are JSON."""


def cases(seed: int, count: int) -> Iterator[Case]:
    rng = random.Random(seed)
    for number in range(count):
        (path,) = rng.choices(list(_WEIGHTS), list(_WEIGHTS.values()))
        body: Any = copy.deepcopy(REQUIRED[path])
        if path in (CHAT, COMPLETIONS):
            # What has no limit speaks to the end of the context.
            body["max_tokens"] = 4
        optional = OPTIONAL[path]
        for name in rng.sample(sorted(optional), min(rng.choice((0, 1, 1, 2, 3, 5)), len(optional))):
            body[name] = copy.deepcopy(rng.choice(optional[name]))
        if path == TOKENIZE and rng.random() < 0.5:
            del body["prompt"]
            body["messages"] = copy.deepcopy(rng.choice(_MESSAGES))
        if ("top_logprobs" in body or "logprob_token_ids" in body) and path == CHAT and rng.random() < 0.8:
            body["logprobs"] = True
        for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
            body = mutated(body, rng)
        if isinstance(body, dict) and isinstance(body.get("request_id"), str) and body["request_id"]:
            # By it a case's requests to the engine are found.
            body["request_id"] += f".{number}"
        raw = json.dumps(body, ensure_ascii=rng.random() < 0.7).encode("utf-8", "surrogatepass")
        if rng.random() < 0.03:
            raw = damaged(raw, rng)
        yield Case(path, raw, body)


def mutated(body: Any, rng: random.Random) -> Any:
    """One mistake somewhere in a JSON value."""
    places = list(_places(body))
    if not places or rng.random() < 0.01:
        return rng.choice(JUNK)
    holder, key = rng.choice(places)
    value = holder[key]
    what = rng.randrange(10)
    if what == 0:
        del holder[key]
    elif what == 1:
        holder[key] = None
    elif what in (2, 3, 4):
        holder[key] = copy.deepcopy(rng.choice(JUNK))
    elif what == 5:
        holder[key] = _stretched(value, rng)
    elif what == 6 and isinstance(holder, dict):
        holder[rng.choice((f"{key}s", f"x_{key}", str(key).upper(), "日本", "a\r\nb", ""))] = holder.pop(key)
    elif what == 7 and isinstance(holder, dict):
        holder[rng.choice(("colour", "logit_biases", "stop_sequences", key + " "))] = copy.deepcopy(rng.choice(JUNK))
    elif what == 8:
        other, place = rng.choice(places)
        if place in other:
            holder[key], other[place] = copy.deepcopy(other[place]), copy.deepcopy(value)
    else:
        holder[key] = [value]
    return body


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every member and element: what holds it, and its key."""
    keys: Any = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _places(value[key])


def _stretched(value: Any, rng: random.Random) -> Any:
    """Something of the same type, mostly over a bound."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice((value + 1, value - 1, -value, value * 1000, value * 10**30, value % 10**6 + 0.0))
    if isinstance(value, float):
        return rng.choice((value * 10, -value, value + 1e-9, value * 1e300))
    if isinstance(value, str):
        return rng.choice((value * 50, value[::-1], value.upper(), value + "\u2028", f" {value}"))
    if isinstance(value, list):
        return rng.choice((value * 2, value * 300, value[:1], [*value, *value[:1]]))
    if isinstance(value, dict):
        return value | {f"{key}{number}": one for key, one in value.items() for number in range(rng.choice((1, 30)))}
    return value


def damaged(raw: bytes, rng: random.Random) -> bytes:
    """Bytes that are hardly JSON any more, or say a thing twice."""
    at = rng.randrange(len(raw) + 1)
    return rng.choice(
        (
            raw[:at],
            raw + rng.choice((b"x", b"{}", b"\x00", b" \n")),
            raw[:at] + bytes([rng.randrange(256)]) + raw[at:],
            b"\xef\xbb\xbf" + raw,
            raw.replace(b"{", b'{"model": "mock", ', 1),
            raw.replace(b'"', b"'", 2),
        )
    )


@pytest.fixture(scope="module")
def fuzzed_engine(repository: Path) -> Iterator[MockEngine]:
    options: dict[str, Any] = {"scheduling_policy": "priority", "token_interval_ms": 0}
    with running_mock_engine(model_repository=repository, **options) as engine:
        yield engine


@pytest.fixture(scope="module")
def fuzzed_gateway(fuzzed_engine: MockEngine, repository: Path) -> Iterator[Gateway]:
    flags = ("--triton", fuzzed_engine.url, "--model-repository", str(repository))
    with running_gateway(*flags) as gateway:
        yield gateway.wait_until_ready()


def play(some: list[Case], gateway: Gateway, engine: MockEngine) -> list[Reply]:
    """The answers. A schema that could not be checked since too many were is sent again, alone."""
    requests = [(case.path, case.raw) for case in some]
    replies = asyncio.run(flood(gateway.url, requests, CONNECTIONS))
    for number, reply in enumerate(replies):
        while reply.status == 503 and b"schema_checker_busy" in reply.body:
            (reply,) = asyncio.run(flood(gateway.url, [requests[number]], 1))
            replies[number] = reply
    return replies


def check(case: Case, reply: Reply, arrived: dict[str, list[dict[str, Any]]]) -> None:
    if reply.status != 200:
        assert reply.status in (400, 404, 413), reply
        assert reply.headers["content-type"] == "application/json"
        error = json.loads(reply.body)["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        assert error["type"] in ("invalid_request_error", "not_found_error")
        assert isinstance(error["message"], str)
        assert error["message"]
        assert isinstance(error["code"], str)
        if reply.status == 404:
            assert (error["param"], json.loads(case.raw)["model"] != MODEL) == ("model", True)
        return
    body = json.loads(case.raw)
    exchange = exchange_of(case.path, body, reply, arrived)
    assert not any("error" in answer for answer in exchange.answers), exchange.answers[-1]
    assert dropped(exchange) == []


def exchange_of(path: str, body: dict[str, Any], reply: Reply, arrived: dict[str, list[dict[str, Any]]]) -> Exchange:
    streamed = reply.headers["content-type"].startswith("text/event-stream")
    if streamed:
        *events, done, rest = reply.body.split(b"\n\n")
        assert (done, rest) == (b"data: [DONE]", b"")
        answers = [json.loads(event.removeprefix(b"data: ")) for event in events]
    else:
        answers = [json.loads(reply.body)]
    found = arrived.get(answers[0].get("id", ""), [])
    assert path in (TOKENIZE, DETOKENIZE) or found
    return Exchange(path, body, found, answers, reply.headers.get("x-gateway-warning", ""), streamed)


def by_answer(requests: list[dict[str, Any]], ids: set[str]) -> dict[str, list[dict[str, Any]]]:
    """The engine's requests by the answer that they belong to, in the order of its choices."""
    found: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    for request in requests:
        whole = request["request_id"]
        begin, _, number = whole.rpartition("-")
        if whole in ids:
            found.setdefault(whole, []).append((0, request))
        elif begin in ids:
            found.setdefault(begin, []).append((int(number), request))
    return {one: [request for _, request in sorted(some, key=lambda pair: pair[0])] for one, some in found.items()}


def ids_of(replies: list[Reply]) -> set[str]:
    ids = set()
    for reply in replies:
        if reply.status == 200:
            first = reply.body.partition(b"\n\n")[0].removeprefix(b"data: ")
            ids.add(str(json.loads(first).get("id")))
    return ids


def fuzz(seed: int, count: int, gateway: Gateway, engine: MockEngine) -> None:
    every = list(cases(seed, count))
    answered = 0
    for at in range(0, count, BATCH):
        engine.reset()
        some = every[at : at + BATCH]
        replies = play(some, gateway, engine)
        arrived = by_answer(engine.requests(), ids_of(replies))
        for case, reply in zip(some, replies, strict=True):
            try:
                check(case, reply, arrived)
            except Exception as error:
                raise AssertionError(f"{case.path} {case.raw!r}: {reply}") from error
        answered += sum(reply.status == 200 for reply in replies)
    # Mistakes that all end in a refusal would prove little, and so would none.
    assert count / 5 < answered < count * 4 / 5
    wait_for(lambda: gateway.metric("gateway_requests_in_flight") == 0)
    assert engine.state()["in_flight"] == 0
    assert not [line for line in gateway.logs if line["level"] in ("error", "critical", "raw")]


@pytest.mark.timeout(600)
def test_ten_thousand_requests(fuzzed_gateway: Gateway, fuzzed_engine: MockEngine) -> None:
    fuzz(1, 10_000, fuzzed_gateway, fuzzed_engine)


def test_every_known_field_is_given_to_some_request() -> None:
    given: dict[str, set[str]] = {path: set() for path in TABLES}
    for case in cases(1, 10_000):
        if isinstance(case.body, dict):
            given[case.path] |= {name for name, value in case.body.items() if value is not None}
    for path, table in TABLES.items():
        assert {field.name for field in table.values() if field.fate is not Fate.REFUSED} <= given[path]


# What a field needs beside it to be of consequence.
BESIDE: dict[str, dict[str, Any]] = {
    "truncation_side": {"truncate_prompt_tokens": 9},
    "top_logprobs": {"logprobs": True},
    "stream_options": {"stream": True},
    "continue_final_message": {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]},
    "echo": {"messages": [{"role": "assistant", "content": "telling"}]},
    "tool_choice": {"tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]},
    "add_generation_prompt": {"messages": _MESSAGES[0]},
    "spaces_between_special_tokens": {"skip_special_tokens": False},
    "stream_interval": {"stream": True},
}
BESIDE["parallel_tool_calls"] = BESIDE["tool_choice"] | {"tool_choice": "required"}
ALONE: dict[str, Any] = {
    "tool_choice": "required",
    "parallel_tool_calls": False,
    "include_reasoning": False,
    "add_generation_prompt": False,
    "chat_template_kwargs": {"colour": "red"},
    "tools": OPTIONAL[CHAT]["tools"][1],
    "store": False,
    "max_tokens": 3,
    "n": 2,
    "response_format": {"type": "json_object"},
}
# What cannot be left out, and what shows in nothing that this judge looks at: of the tokenizing routes the tokens
# alone.
UNSEEN = {"model"} | {
    f"{TOKENIZE} {name}" for name in ("prompt", "messages", "add_special_tokens", "add_generation_prompt",
                                      "continue_final_message")
}  # fmt: skip
SEEN = [
    (path, name)
    for path, table in TABLES.items()
    for name, field in table.items()
    if field.fate is not Fate.REFUSED and not {name, f"{path} {name}"} & UNSEEN
]


@pytest.mark.parametrize(("path", "name"), [*SEEN, (CHAT, "colour")])
def test_the_judge_sees_a_field_that_is_dropped(
    path: str, name: str, fuzzed_gateway: Gateway, fuzzed_engine: MockEngine
) -> None:
    """The answer to a request without a field, judged as if it had been one with it."""
    if name == "add_special_tokens":
        # The other value than what holds unless it is set.
        value: Any = path == CHAT
    else:
        value = "red" if name == "colour" else ALONE.get(name, OPTIONAL[path].get(name, [None])[0])
    beside = BESIDE.get(name, {})
    if name == "logprob_token_ids" or name == "return_tokens_as_token_ids":
        beside = {"logprobs": True if path == CHAT else 0}
    if path != CHAT:
        beside = {key: one for key, one in beside.items() if key in TABLES[path] and key != "messages"}
    if path == TOKENIZE and name == "chat_template_kwargs":
        beside = {"messages": _MESSAGES[0], "prompt": None}
    without = REQUIRED[path] | beside
    body = without | {name: value}

    def exchange(sent: dict[str, Any]) -> Exchange:
        fuzzed_engine.reset()
        (reply,) = asyncio.run(flood(fuzzed_gateway.url, [(path, json.dumps(sent).encode())], 1))
        assert reply.status == 200, reply
        return exchange_of(path, body, reply, by_answer(fuzzed_engine.requests(), ids_of([reply])))

    assert dropped(exchange(body)) == []
    assert name in dropped(exchange(without))
