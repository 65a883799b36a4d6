"""An explanation covers what it is about, and nothing where the gateway is wrong; the page lists them all."""

from pathlib import Path
from typing import Any

import pytest

from bench.parity.client import Answer
from bench.parity.compare import differences
from bench.parity.explained import Case, explanation_of, table
from bench.parity.shape import CHAT, COMPLETIONS, Group, Shape

PAGE = Path(__file__).parents[3] / "docs" / "parity.md"

Tree = dict[str, Any]


def unexplained(body: Tree, gateway: Tree, vllm: Tree, *, statuses: tuple[int, int] = (200, 200)) -> list[str]:
    """The places of differences without an explanation."""
    path = CHAT if "messages" in body else COMPLETIONS
    ours, theirs = ({"status": status} | tree for status, tree in zip(statuses, (gateway, vllm), strict=True))
    case = Case(Shape("x", path, body, Group.REQUESTS), Answer(statuses[0], ours), Answer(statuses[1], theirs))
    return [one.place for one in differences(ours, theirs) if explanation_of(case, one) is None]


def test_the_page_has_the_table_as_it_is() -> None:
    assert table() in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("body", "statuses", "places"),
    [
        ({"messages": [], "priority": 1}, (400, 200), []),
        ({"messages": [], "priority": 1}, (500, 200), ["status"]),
        ({"messages": [], "priority": 1}, (200, 400), ["status"]),
        ({"messages": [], "priority": 0}, (400, 200), ["status"]),
        ({"messages": [], "max_tokens": 1, "max_completion_tokens": 2}, (400, 200), []),
        ({"messages": [], "max_tokens": 1}, (400, 200), ["status"]),
        ({"prompt": "x", "best_of": 2}, (400, 200), []),
        ({"prompt": "x", "best_of": 1}, (400, 200), ["status"]),
    ],
)
def test_refusals(body: Tree, statuses: tuple[int, int], places: list[str]) -> None:
    assert unexplained(body, {}, {}, statuses=statuses) == places


def choices(*texts: str) -> Tree:
    return {"choices": [{"index": index, "text": text} for index, text in enumerate(texts)]}


@pytest.mark.parametrize(
    ("gateway", "explained"),
    [
        (choices("a", "a", "b", "b"), True),
        (choices("a", "a", "b", "c"), False),
        (choices("a", "b", "a", "b"), False),
        (choices("a", "a"), False),
    ],
)
def test_greedy_choices_of_each_prompt_are_the_same(gateway: Tree, explained: bool) -> None:
    body = {"prompt": ["x", "y"], "n": 2, "temperature": 0}
    places = unexplained(body, gateway, {}, statuses=(200, 400))
    assert ("status" not in places) == explained


def entry(token: str, data: bytes, logprob: float = -1.0, top: list[Tree] | None = None) -> Tree:
    return {"token": token, "logprob": logprob, "bytes": list(data), "top_logprobs": top or []}


def chat(text: str, *entries: Tree) -> Tree:
    return {"choices": [{"index": 0, "message": {"content": text}, "logprobs": {"content": list(entries)}}]}


def test_bytes_of_a_character_in_parts() -> None:
    body: Tree = {"messages": [], "logprobs": True}
    vllm = chat("é", entry("", b""), entry("é", "é".encode()))
    assert unexplained(body, chat("é", entry("", b"\xc3"), entry("é", b"\xa9")), vllm) == []
    # Bytes that do not make up the text.
    assert unexplained(body, chat("é", entry("", b"\xc3"), entry("é", b"\xaa")), vllm) != []
    # Bytes of a text of its own.
    wrong = chat("é", entry("", b"e"), entry("é", "é".encode()))
    assert unexplained(body, wrong, vllm) == ["choices[0].logprobs.content[0].bytes"]


def top(*entries: tuple[str, float]) -> list[Tree]:
    return [{"token": token, "logprob": logprob, "bytes": list(token.encode())} for token, logprob in entries]


def test_the_best_ranked_tokens_without_a_sampled_one_of_a_lower_rank() -> None:
    body: Tree = {"messages": [], "logprobs": True, "top_logprobs": 2}
    vllm = chat("z", entry("z", b"z", -5.0, top(("z", -5.0), ("a", -1.0))))
    assert unexplained(body, chat("z", entry("z", b"z", -5.0, top(("a", -1.0), ("b", -2.0)))), vllm) == []
    assert unexplained(body, chat("z", entry("z", b"z", -5.0, top(("b", -2.0), ("a", -1.0)))), vllm) != []
    assert unexplained(body, chat("z", entry("z", b"z", -5.0, top(("b", -1.0), ("a", -2.0)))), vllm) != []
    assert unexplained(body, chat("z", entry("z", b"z", -5.0, top(("a", -1.0)))), vllm) != []


def text(said: str, tokens: list[str], offsets: list[int]) -> Tree:
    return {"choices": [{"index": 0, "text": said, "logprobs": {"tokens": tokens, "text_offset": offsets}}]}


@pytest.mark.parametrize(
    ("said", "tokens", "offsets", "vllm"),
    [
        ("It was", ["<s>", "It", " was"], [0, 0, 2], [0, 3, 5]),
        ("a\N{REPLACEMENT CHARACTER}b", ["a", "", "b"], [0, 1, 2], [0, 1, 1]),
        ("ab", ["token_id:7", "token_id:12"], [0, 1], [0, 10]),
        ("a \N{CJK UNIFIED IDEOGRAPH-6C49}", ["a", "", " \N{CJK UNIFIED IDEOGRAPH-6C49}"], [0, 1, 2], [0, 1, 1]),
        ("a\N{REPLACEMENT CHARACTER}", ["a", "", "", "b"], [0, 1, 1, 2], [0, 1, 1, 1]),
    ],
)
def test_offsets_where_the_tokens_stand(said: str, tokens: list[str], offsets: list[int], vllm: list[int]) -> None:
    body = {"prompt": "x", "logprobs": 0}
    assert unexplained(body, text(said, tokens, offsets), text(said, tokens, vllm)) == []


@pytest.mark.parametrize("offsets", [[0, 1, 3], [0, 0, 3], [1, 1, 2], [0, 0, 1], [0, 2, 0]])
def test_offsets_where_they_do_not_stand(offsets: list[int]) -> None:
    body = {"prompt": "x", "logprobs": 0}
    tokens = ["<s>", "It", " was"]
    assert unexplained(body, text("It was", tokens, offsets), text("It was", tokens, [0, 3, 5])) != []


def error(message: str = "Wrong.", **members: Any) -> tuple[Tree, str]:
    return {"error": members}, message


@pytest.mark.parametrize(
    ("body", "a", "b", "places"),
    [
        ({"n": 0}, error(type="invalid_request_error"), error(type="BadRequestError"), []),
        ({"n": 0}, error(type="invalid_request_error"), error(type="Bad Request"), []),
        ({"n": 0}, error(type="BadRequestError"), error(type="invalid_request_error"), ["error.type"]),
        ({"n": 0}, error(type="invalid_request_error"), error(type="other_error"), ["error.type"]),
        ({"n": 0}, error(code="invalid_value"), error(code=400), []),
        ({"n": 0}, error(), error(code=400), []),
        ({"n": 0}, error(code=400), error(code="invalid_value"), ["error.code"]),
        ({"n": 0}, error(code="invalid_value"), error(code=401), ["error.code"]),
        ({"n": 0}, error(param="n"), error(), []),
        ({"n": 0}, error(param="m"), error(), ["error.param"]),
        ({"n": 0}, error(), error(param="n"), ["error.param"]),
        ({"a": {"b": 1}}, error(param="a.b"), error(param="a"), []),
        ({"a": [1]}, error(param="a[0].c"), error(param="body.a.0.c"), []),
        ({"a": 1, "b": 2}, error(param="a"), error(param="b"), ["error.param"]),
        ({"a": 1}, error(param="a"), error(param="input_tokens"), []),
        ({"logprobs": 1, "top_logprobs": 9}, error(param="top_logprobs"), error(param="logprobs"), []),
        ({}, error("messages is required.", param="messages"), error(param="body.messages"), []),
        ({}, error(type="not_found_error"), ({"detail": "Not Found"}, ""), ["detail"]),
        ({}, ({"detail": "Not Found"}, ""), error(type="not_found_error"), ["detail", "error"]),
    ],
)
def test_what_an_error_says(body: Tree, a: tuple[Tree, str], b: tuple[Tree, str], places: list[str]) -> None:
    left, right = (Answer(400, {"status": 400} | tree, message) for tree, message in (a, b))
    case = Case(Shape("x", CHAT, body, Group.ERRORS), left, right)
    found = [one.place for one in differences(left.tree, right.tree) if explanation_of(case, one) is None]
    assert found == places


def test_a_body_that_is_no_json_has_no_place() -> None:
    shape = Shape("x", CHAT, {}, Group.ERRORS, True, b"{")
    a, b = Answer(400, {"error": {}}, "Wrong."), Answer(400, {"error": {"param": "body.1"}})
    (one,) = differences(a.tree, b.tree)
    assert explanation_of(Case(shape, a, b), one) is not None
    assert explanation_of(Case(shape, b, a), one.mirrored) is None


def test_roles_and_tools_that_are_refused() -> None:
    narrator: Tree = {"messages": [{"role": "narrator"}]}
    assert unexplained(narrator, {}, {}, statuses=(400, 200)) == []
    assert unexplained({"messages": [{"role": "user"}]}, {}, {}, statuses=(400, 200)) == ["status"]
    tools: Tree = {"messages": [{"role": "user"}], "tools": [{}]}
    assert "status" not in unexplained(tools, {"error": {"param": "tools"}}, {}, statuses=(400, 200))
    assert "status" in unexplained(tools, {"error": {"param": "messages"}}, {}, statuses=(400, 200))


def call(arguments: str, content: str | None = None) -> Tree:
    message: Tree = {"tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}
    return {"choices": [{"index": 0, "message": message | ({} if content is None else {"content": content})}]}


def test_calls_are_as_the_model_wrote_them() -> None:
    body: Tree = {"messages": [], "tools": []}
    arguments = "choices[0].message.tool_calls[0].function.arguments"
    assert unexplained(body, call('{"a":1}'), call('{"a": 1}', "")) == []
    assert unexplained(body, call('{"a":1}'), call('{"a": 2}')) == [arguments]
    assert unexplained(body, call('{"a":'), call('{"a": ')) == [arguments]
    assert unexplained(body | {"stream": True}, call('{"a":1}'), call('{"a": 1}')) == [arguments]
    assert unexplained(body, call("{}"), call("{}", "text")) == ["choices[0].message.content"]
    assert unexplained(body, call("{}", ""), call("{}")) == ["choices[0].message.content"]


def test_thinking_that_is_counted() -> None:
    body: Tree = {"messages": []}
    none, some = ({"usage": {"completion_tokens_details": {"reasoning_tokens": n}}} for n in (0, 1))
    assert unexplained(body, none, {"usage": {}}) == []
    assert unexplained(body, some, {"usage": {}}) == ["usage.completion_tokens_details"]
    assert unexplained(body, {"usage": {}}, none) == ["usage.completion_tokens_details"]


def test_what_a_bound_call_does_not_need() -> None:
    body: Tree = {"messages": [], "tools": [{}], "tool_choice": "required"}
    few, more = ({"usage": {"completion_tokens": tokens, "total_tokens": tokens + 5}} for tokens in (23, 52))
    usage = ["usage.completion_tokens", "usage.total_tokens"]
    assert unexplained(body, call('{"a":1}') | few, call('{"a":1}') | more) == []
    assert unexplained(body, call('{"a":1}') | more, call('{"a":1}') | few) == usage
    assert unexplained(body | {"tool_choice": "auto"}, call("{}") | few, call("{}") | more) == usage
    found = unexplained(body, call('{"a":1}') | few, call('{"a":2}') | more)
    assert found[-2:] == usage
