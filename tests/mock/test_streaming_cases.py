"""The shape of streams: each case of `tests/data/streaming.jsonl`, every one of its rules checked by code.

A case holds a request, what the engine says, and rules in words. A rule's text is the key of its check, so a rule
without a check is a failure here.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.mock_engine.running import MockEngine
from tests.support.chat import MODEL, ask

FILE = Path(__file__).parents[1] / "data" / "streaming.jsonl"
CASES: list[dict[str, Any]] = [json.loads(line) for line in FILE.read_text("utf-8").splitlines()]

_PAUSE_S = 0.5


@dataclass
class Exchange:
    """What a case's request brought. `events` are the JSON events of a stream, without `[DONE]`; `arrived` what the
    engine received."""

    case: dict[str, Any]
    client: httpx.Client
    engine: MockEngine
    response: httpx.Response
    raw: bytes
    arrived: list[dict[str, Any]]
    events: list[dict[str, Any]] = field(default_factory=list)

    @property
    def blocks(self) -> list[bytes]:
        *blocks, rest = self.raw.split(b"\n\n")
        assert rest == b""
        return blocks

    @property
    def with_choices(self) -> list[dict[str, Any]]:
        return [event for event in self.events if event.get("choices")]

    @property
    def error(self) -> dict[str, Any]:
        error = json.loads(self.raw)["error"]
        assert isinstance(error, dict)
        return error

    def text(self, index: int = 0) -> str:
        return "".join(delta.get("content") or "" for delta, _ in self.choices(index))

    def choices(self, index: int) -> list[tuple[dict[str, Any], str | None]]:
        """Each delta of a choice with its finish reason."""
        return [
            (choice["delta"], choice["finish_reason"])
            for event in self.with_choices
            for choice in event["choices"]
            if choice["index"] == index
        ]

    def kinds(self) -> list[str]:
        """The kinds of events in their order, runs of content as one."""
        kinds: list[str] = []
        for event in self.events:
            kind = _kind(event)
            if kind != "content" or kinds[-1:] != ["content"]:
                kinds.append(kind)
        return [*kinds, "[DONE]"]


def _kind(event: dict[str, Any]) -> str:
    if "error" in event:
        return "error"
    if not event["choices"]:
        return "usage"
    (choice,) = event["choices"]
    if "role" in choice["delta"]:
        return "role"
    return "content" if choice["finish_reason"] is None else "finish"


def play(case: dict[str, Any], client: httpx.Client, engine: MockEngine) -> Exchange:
    said = case.get("engine", {})
    body = case["request"]["body"] | {"model": MODEL} | script(said, engine)
    stalls_until = _stalls_until(said)
    raw = b""
    with client.stream("POST", case["request"]["path"], json=body) as response:
        for data in response.iter_bytes():
            raw += data
            if stalls_until and stalls_until in raw:
                if "pause_s_before_first" in said:
                    time.sleep(_PAUSE_S)
                stalls_until = b""
                engine.clear_faults()
    assert not stalls_until
    exchange = Exchange(case, client, engine, response, raw, engine.requests())
    if response.headers["content-type"].startswith("text/event-stream"):
        *events, done = [block for block in exchange.blocks if not block.startswith(b":")]
        assert done == b"data: [DONE]"
        exchange.events = [json.loads(event.removeprefix(b"data: ")) for event in events]
    return exchange


def _stalls_until(said: dict[str, Any]) -> bytes:
    """What has to be seen before the engine goes on: the role chunk, or the end of the choice that ends first."""
    return b"assistant" if "pause_s_before_first" in said else b'"length"' if "choices" in said else b""


def script(said: dict[str, Any], engine: MockEngine) -> dict[str, Any]:
    """Have the engine say it. Returns what the request needs beside its own fields."""
    if "choices" in said:
        # What choice 0 says ends with its stop string, what choice 1 says at the limit. Choice 0 has a token first and
        # the last one.
        first, second = said["choices"]
        engine.add_fault(request_id="-0", text=first["deltas"], stall_after=1)
        engine.add_fault(request_id="-1", text=second["deltas"])
        return {"max_tokens": 2, "stop": first["deltas"][-1], "include_stop_str_in_output": True}
    if "error_before_first_delta" in said:
        engine.add_fault(error_before=f"INVALID_ARG prompt: {said['error_before_first_delta']}.")
    elif "error_after" in said:
        fails = {"tokens": said["error_after"], "error": "INTERNAL: the engine broke."}
        engine.add_fault(text="".join(said["deltas"]), error_after=fails)
    elif "family" in said:
        # A token a character, so that each delta is one response.
        engine.add_fault(text=list("".join(said["deltas"])), merge=[len(delta) for delta in said["deltas"]])
    elif "deltas" in said:
        engine.add_fault(text="".join(said["deltas"]), stall_after=0 if "pause_s_before_first" in said else None)
    return {}


# The rules


def role_comes_once_and_first(it: Exchange) -> None:
    first, *later = it.choices(0)
    assert first[0]["role"] == "assistant"
    assert first[0]["content"] in ("", "Hello")
    assert all("role" not in delta for delta, _ in later)


def chunks_have_one_identity(it: Exchange) -> None:
    assert {event["object"] for event in it.events} == {"chat.completion.chunk"}
    assert len({(event["id"], event["created"], event["model"]) for event in it.events}) == 1


def finish_reason_is_last(it: Exchange) -> None:
    *earlier, (delta, reason) = it.choices(0)
    assert all(reason is None for _, reason in earlier)
    assert reason == "stop"
    assert delta in ({}, {"content": " there"})


def text_is_hello_there(it: Exchange) -> None:
    assert it.text() == "Hello there"


def done_is_last(it: Exchange) -> None:
    assert it.raw.endswith(b"\n\ndata: [DONE]\n\n")
    assert it.raw.count(b"[DONE]") == 1


def usage_chunk_has_counts_and_no_choices(it: Exchange) -> None:
    last = it.events[-1]
    assert last["choices"] == []
    assert last["usage"]["prompt_tokens"] == it.arrived[0]["num_input_tokens"] > 0
    assert last["usage"]["completion_tokens"] == it.arrived[0]["tokens"] > 0
    assert last["usage"]["total_tokens"] == last["usage"]["prompt_tokens"] + last["usage"]["completion_tokens"]


def others_have_usage_null(it: Exchange) -> None:
    assert all(event["usage"] is None for event in it.events[:-1])


def one_chunk_has_usage(it: Exchange) -> None:
    assert sum(event.get("usage") is not None for event in it.events) == 1


def no_chunk_has_usage(it: Exchange) -> None:
    assert all(event.get("usage") is None for event in it.events)


def no_chunk_is_without_choices(it: Exchange) -> None:
    assert all(event["choices"] for event in it.events)


def no_usage_at_all(it: Exchange) -> None:
    no_chunk_has_usage(it)
    no_chunk_is_without_choices(it)


def error_names_stream_options(it: Exchange) -> None:
    assert it.error.keys() == {"message", "type", "param", "code"}
    assert it.error["param"] == "stream_options"
    assert "stream_options" in it.error["message"]


def chunks_are_of_choice_0_or_1(it: Exchange) -> None:
    assert {choice["index"] for event in it.with_choices for choice in event["choices"]} == {0, 1}
    assert all(event["choices"] for event in it.events[:-1])


def each_choice_begins_and_ends_once(it: Exchange) -> None:
    for index in (0, 1):
        deltas = it.choices(index)
        assert ["role" in delta for delta, _ in deltas] == [True] + [False] * (len(deltas) - 1)
        assert [reason for _, reason in deltas[:-1]] == [None] * (len(deltas) - 1)
        assert deltas[-1][1] == it.case["engine"]["choices"][index]["finish_reason"]


def texts_are_ab_and_xy(it: Exchange) -> None:
    assert (it.text(0), it.text(1)) == ("ab", "xy")


def one_id(it: Exchange) -> None:
    assert len({event["id"] for event in it.events}) == 1


def prompt_counts_once(it: Exchange) -> None:
    first, second = it.arrived
    usage = it.events[-1]["usage"]
    assert usage["prompt_tokens"] == first["num_input_tokens"] == second["num_input_tokens"]
    assert usage["completion_tokens"] == first["tokens"] + second["tokens"] == 4


def one_done_at_the_end(it: Exchange) -> None:
    done_is_last(it)
    assert _kind(it.events[-1]) == "usage"
    assert sum(_kind(event) == "finish" for event in it.events[:-1]) == 2


def body_is_an_error_and_no_event(it: Exchange) -> None:
    assert it.error["message"]
    assert b"data:" not in it.raw


def error_event_has_the_error_key(it: Exchange) -> None:
    error = it.events[-1]["error"]
    assert error["message"]
    assert error["type"] == "internal_error"
    assert error["code"] == "engine_error"


def no_other_sse_fields(it: Exchange) -> None:
    assert not [line for line in it.raw.splitlines() if line and not line.startswith((b"data: ", b":"))]


def nothing_follows_the_error(it: Exchange) -> None:
    assert all(choice["finish_reason"] is None for event in it.with_choices for choice in event["choices"])
    assert [_kind(event) for event in it.events].index("error") == len(it.events) - 1


def the_connection_is_free(it: Exchange) -> None:
    it.engine.clear_faults()
    assert ask(it.client, "next").status_code == 200


def each_event_is_one_line(it: Exchange) -> None:
    for block in it.blocks:
        assert block.startswith(b"data: ")
        assert b"\n" not in block
        assert b"\r" not in block
    assert it.text() == "".join(it.case["engine"]["deltas"])


def bytes_are_utf8(it: Exchange) -> None:
    assert "é" in it.text()
    it.raw.decode("utf-8", "strict")


def idle_time_has_no_chunk(it: Exchange) -> None:
    assert len({event["id"] for event in it.events}) == 1
    assert it.kinds() == ["role", "content", "finish", "[DONE]"]


def headers_are_a_streams(it: Exchange) -> None:
    assert "content-length" not in it.response.headers
    assert it.response.headers["cache-control"] == "no-cache"


def call_deltas(it: Exchange) -> list[dict[str, Any]]:
    return [call for delta, _ in it.choices(0) for call in delta.get("tool_calls", ())]


def a_call_begins_with_all_its_members(it: Exchange) -> None:
    first = call_deltas(it)[0]
    assert (first["index"], first["type"], first["function"]["name"]) == (0, "function", "get_weather")
    assert first["id"]
    assert '{"city": "Paris"}'.startswith(first["function"]["arguments"])


def a_call_goes_on_with_arguments_only(it: Exchange) -> None:
    _, *later = call_deltas(it)
    assert len(later) >= 2
    assert all(call.keys() == {"index", "function"} and call["index"] == 0 for call in later)
    assert all(call["function"].keys() == {"arguments"} for call in later)


def arguments_are_paris(it: Exchange) -> None:
    assert json.loads("".join(call["function"]["arguments"] for call in call_deltas(it))) == {"city": "Paris"}


def content_has_no_markup(it: Exchange) -> None:
    assert it.text() == ""


def it_ends_with_calls(it: Exchange) -> None:
    assert it.choices(0)[-1][1] == "tool_calls"


RULES: dict[str, Callable[[Exchange], None]] = {
    'the first chunk has delta.role "assistant" and delta.content "" or the first text; role is in no later chunk': (
        role_comes_once_and_first
    ),
    'every chunk has object "chat.completion.chunk" and the same id, created and model': chunks_have_one_identity,
    'finish_reason is null in every chunk but the last with choices, where it is "stop" and delta is {} or holds the '
    "last text": finish_reason_is_last,
    'joined delta.content is "Hello there"': text_is_hello_there,
    "the last event is exactly data: [DONE] and nothing follows it": done_is_last,
    "the usage chunk has choices [] and usage with prompt_tokens, completion_tokens and their sum total_tokens": (
        usage_chunk_has_counts_and_no_choices
    ),
    "all other chunks have usage null (the key is there)": others_have_usage_null,
    "exactly one chunk has usage": one_chunk_has_usage,
    "no chunk has a usage object": no_chunk_has_usage,
    "no chunk has empty choices": no_chunk_is_without_choices,
    "as without stream_options: no usage object, no chunk with empty choices": (no_usage_at_all),
    'body is {"error": {message, type, param, code}}; param or message names stream_options': (
        error_names_stream_options
    ),
    "every chunk has one or more choices with index 0 or 1; chunks of both may alternate in any order": (
        chunks_are_of_choice_0_or_1
    ),
    "each index has its own role delta ahead of its own text, and exactly one finish_reason": (
        each_choice_begins_and_ends_once
    ),
    'joined by index: 0 is "ab", 1 is "xy"': texts_are_ab_and_xy,
    "one id for all chunks": one_id,
    "usage: prompt_tokens counted once, completion_tokens summed over both choices": prompt_counts_once,
    "exactly one [DONE], after both finish chunks and the usage chunk": one_done_at_the_end,
    'body is {"error": {...}}; no SSE event is sent': body_is_an_error_and_no_event,
    'the error event is a data: line with {"error": {"message": ..., "type": ..., "code": ...}}': (
        error_event_has_the_error_key
    ),
    "no event: line and no line that begins with error:": no_other_sse_fields,
    "no finish_reason is invented; no chunk follows the error": nothing_follows_the_error,
    "the connection is closed or free for the next request": the_connection_is_free,
    "each event is one line data: <json> and one empty line; the JSON has no raw newline": each_event_is_one_line,
    "bytes are UTF-8": bytes_are_utf8,
    "idle time is bridged by SSE comments (lines beginning with a colon) only, if at all, never by a chunk with "
    "another id": idle_time_has_no_chunk,
    "no content-length; cache-control no-cache": headers_are_a_streams,
    'the first delta of the call has index 0, a non-empty id, type "function", function.name "get_weather" and '
    'function.arguments "" or its beginning': a_call_begins_with_all_its_members,
    "later deltas of the call have index 0 and function.arguments only: no id, no type, no name (nor null or empty "
    "ones that a client would add up)": a_call_goes_on_with_arguments_only,
    'joined arguments parse to {"city": "Paris"}': arguments_are_paris,
    "delta.content never holds a part of the markup": content_has_no_markup,
    'finish_reason is "tool_calls"': it_ends_with_calls,
}
_WORDS = {"role chunk": "role", "finish chunk": "finish", "usage chunk": "usage", "error event": "error"}


def test_every_rule_has_a_check_and_every_check_a_rule() -> None:
    assert len({case["id"] for case in CASES}) == len(CASES)
    assert {rule for case in CASES for rule in case["expect"]["rules"]} == RULES.keys()


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_a_case(case: dict[str, Any], client: httpx.Client, engine: MockEngine) -> None:
    exchange = play(case, client, engine)
    expected, status = case["expect"], exchange.response.status_code
    assert status == 400 if isinstance(expected["status"], str) else expected["status"]
    if "content_type" in expected:
        assert exchange.response.headers["content-type"].partition(";")[0] == expected["content_type"]
    if "order" in expected:
        order = [_WORDS.get(word, word).removesuffix(" chunks").removesuffix(" chunk") for word in expected["order"]]
        assert exchange.kinds() == order
    for rule in expected["rules"]:
        RULES[rule](exchange)
