"""The tokens of a thinking are told apart in the same way however they come."""

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.output.answer import Answer, usage
from gateway.output.parsers import OutputFormat
from gateway.output.thinking import Withheld, without_thinking
from gateway.triton.contract import Delta
from tests.support.output import cut

HARMONY_PROMPT = "<|start|>assistant"
ANALYSIS, FINAL = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"
PARTS = ["<think>", "</think>", "<", "</th", "ink>", " ", "\n\n", "a", "so 🌊", "日", ANALYSIS, FINAL, "<|end|>"]
PARTS += ["<|end", HARMONY_PROMPT, '<tool_call>{"name": "f", "arguments": {}}</tool_call>']
TEXTS = st.lists(st.sampled_from(PARTS), max_size=14).map("".join)
FORMATS = [("think", ""), ("think", "<think>\n"), ("gpt_oss", HARMONY_PROMPT)]


class Vocabulary:
    """Tokens of one answer, numbered in their order; a token may be a part of a character."""

    def __init__(self, text: str, cuts: list[int]) -> None:
        data = text.encode()
        bounds = sorted({0, len(data), *(place % (len(data) + 1) for place in cuts)})
        self.pieces = [data[a:b] for a, b in itertools.pairwise(bounds)]

    def bytes(self, token_id: int) -> bytes | None:
        return self.pieces[token_id]


def answered(
    name: str, prompt: str, text: str, vocabulary: Vocabulary, sizes: list[int], knows: bool = True
) -> tuple[Answer, list[int]]:
    """The answer whose tokens come so many in a response, and the tokens that a client gets whose thinking is hidden.
    The text lags behind its tokens, as behind a stop string."""
    output = OutputFormat("hermes" if name == "think" else "gpt_oss", name)
    thinking = output.thinking_tokens(prompt, vocabulary.bytes) if knows else None
    answer = Answer(0, 0, output.parser(prompt, {"f": {}}), thinking)
    withheld = Withheld(thinking) if thinking else None
    shown: list[int] = []
    ids = list(range(len(vocabulary.pieces)))
    texts = cut(text, sizes)
    while ids or texts:
        size = sizes[len(shown) % len(sizes)] % 4 + 1 if sizes else len(text) + 1
        taken, ids = ids[:size], ids[size:]
        said = texts.pop(0) if texts else ""
        answer.add(Delta(said, None, 1, len(taken), {"token_ids": taken}))
        if withheld:
            shown += withheld.pass_on((), taken)[1]
    answer.add(Delta("", "stop", 0, 0))
    answer.finish(None)
    if withheld:
        shown += withheld.pass_on((), ())[1]
    return answer, shown


@settings(max_examples=300)
@given(
    st.sampled_from(FORMATS),
    TEXTS,
    st.lists(st.integers(0, 200), max_size=30),
    st.lists(st.integers(0, 100), max_size=6),
    st.booleans(),
)
def test_every_cut_gives_the_same_counts_and_the_same_tokens(
    form: tuple[str, str], text: str, tokens: list[int], sizes: list[int], knows: bool
) -> None:
    vocabulary = Vocabulary(text, tokens)
    whole, left = answered(*form, text, vocabulary, [], knows)
    streamed, left_of_stream = answered(*form, text, vocabulary, sizes, knows)
    assert usage([streamed]) == usage([whole])
    assert left_of_stream == left
    if whole.thinking is not None:
        assert left == without_thinking(range(len(vocabulary.pieces)), whole.thinking)
        assert whole.reasoning_tokens == len(vocabulary.pieces) - len(left)
    # Thinking that is shown has cost something, and no more than all.
    assert bool(whole.message.reasoning) <= bool(whole.reasoning_tokens)
    assert whole.reasoning_tokens <= whole.completion_tokens


@pytest.mark.parametrize("outputs", ["token_ids", "logprobs"])
def test_the_marks_are_thinking_and_a_beginning_of_one_is_not(outputs: str) -> None:
    pieces = ["<", "think", ">", "a", "</", "think>", "\n", "b", "</think>"]
    thinking = OutputFormat(None, "think").thinking_tokens("", lambda token: pieces[token].encode())
    assert thinking is not None
    decided = []
    for number in range(len(pieces)):
        value: Any = [number] if outputs == "token_ids" else [{str(number): {"decoded_token": "?"}}]
        thinking.add({outputs: value})
        decided.append(len(thinking.flags))
    assert decided == [0, 0, 3, 4, 5, 6, 6, 8, 9]
    assert list(thinking.flags) == [1] * 6 + [0] * 3
    assert thinking.count == 6


def test_without_a_tokenizer_the_engine_says_what_a_token_is() -> None:
    thinking, unknown = [OutputFormat(None, "think").thinking_tokens("<think>", None) for _ in range(2)]
    assert thinking is not None
    assert unknown is not None
    for text in ("a", "</think>", "b"):
        thinking.add({"logprobs": [{"7": {"decoded_token": text}}]})
    assert (list(thinking.flags), thinking.is_exact) == ([1, 1, 0], True)
    unknown.add({"token_ids": [7]})
    assert not unknown.is_exact
