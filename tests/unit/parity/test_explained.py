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
