"""The engine's log probabilities in OpenAI's two shapes."""

import itertools
from collections.abc import Sequence
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.output.logprobs import ChatLogprobs, CompletionLogprobs, Position, TokenBytes
from gateway.tokenizer import ModelTokenizer
from tests.support import tokenizers as kinds

# An elephant, in two tokens of two bytes each.
ELEPHANT = {1: b"a", 2: b"\xf0\x9f", 3: b"\x90\x98", 4: b"b", 5: b" the", 6: b"</s>"}


def position(*entries: tuple[int, float, int | None, str | None]) -> dict[str, dict[str, Any]]:
    """One position, as the backend writes it: the sampled token's entry first."""
    written = {str(i): {"logprob": lp, "rank": rank, "decoded_token": text} for i, lp, rank, text in entries}
    read: dict[str, dict[str, Any]] = orjson.loads(orjson.dumps(written))
    return read


def sampled(*ids: int, text: str | None = None) -> list[Position]:
    return [position((token_id, -0.5, 1, text)) for token_id in ids]


def chat(positions: Sequence[Position], top: int = 0, token_bytes: TokenBytes = None, **how: bool) -> list[Any]:
    return ChatLogprobs(token_bytes, top, **how).content(positions)


RANKED = position((7, -3.0, 4, "sampled"), (8, -0.1, 1, "best"), (9, -1.0, 2, "second"), (10, -2.0, 3, "third"))


def tokens_of(entry: dict[str, Any]) -> list[str]:
    return [top["token"] for top in entry["top_logprobs"]]


def test_the_sampled_token_is_the_first_whatever_its_rank() -> None:
    (entry,) = chat([RANKED], 3)
    assert (entry["token"], entry["logprob"]) == ("sampled", -3.0)
    assert tokens_of(entry) == ["best", "second", "third"]
    assert set(entry) == {"token", "logprob", "bytes", "top_logprobs"}
    assert set(entry["top_logprobs"][0]) == {"token", "logprob", "bytes"}


@pytest.mark.parametrize(
    ("top", "tokens"),
    [
        (0, []),
        (1, ["best"]),
        (2, ["best", "second"]),
        (4, ["best", "second", "third", "sampled"]),
        (-1, ["best", "second", "third", "sampled"]),
    ],
)
def test_never_more_than_asked(top: int, tokens: list[str]) -> None:
    (entry,) = chat([RANKED], top)
    assert tokens_of(entry) == tokens


@given(
    ranks=st.lists(st.integers(1, 30), min_size=1, max_size=8, unique=True), top=st.integers(-1, 20), first=st.data()
)
def test_the_alternatives_are_the_best_ranked_ones_in_order(ranks: list[int], top: int, first: st.DataObject) -> None:
    ranks.insert(0, ranks.pop(first.draw(st.integers(0, len(ranks) - 1))))
    (entry,) = chat([position(*((rank, -float(rank), rank, str(rank)) for rank in ranks))], top)
    assert tokens_of(entry) == [str(rank) for rank in sorted(ranks) if top == -1 or rank <= top]
    assert entry["token"] == str(ranks[0])


def test_named_tokens_all_come_back_as_the_engine_gives_them() -> None:
    named = position((7, -3.0, 9, "x"), (8, -7.0, 1, "y"), (9, -5.0, 2, "z"))
    (entry,) = chat([named], 0, every=True)
    assert tokens_of(entry) == ["x", "y", "z"]
    added = CompletionLogprobs(None, 0, every=True).add([named])
    assert added["top_logprobs"] == [{"x": -3.0, "y": -7.0, "z": -5.0}]


def test_a_token_without_a_rank_is_no_alternative_unless_all_are_wanted() -> None:
    given_no_rank = position((7, -3.0, None, "x"), (8, -0.1, 1, "y"))
    assert tokens_of(chat([given_no_rank], 5)[0]) == ["y"]
    assert tokens_of(chat([given_no_rank], -1)[0]) == ["y", "x"]


def test_the_bytes_of_a_part_of_a_character_are_exact() -> None:
    # The engine's own text for them: nothing, then the whole character.
    positions = [position((2, -0.5, 1, ""), (3, -1.0, 2, "\ufffd")), position((3, -0.5, 1, "🐘"))]
    first, second = chat(positions, 2, ELEPHANT.get)
    assert bytes(first["bytes"] + second["bytes"]) == "🐘".encode()
    assert first["bytes"] == [0xF0, 0x9F]
    assert [top["bytes"] for top in first["top_logprobs"]] == [[0xF0, 0x9F], [0x90, 0x98]]


def test_without_a_tokenizer_bytes_are_those_of_the_text_where_it_is_known() -> None:
    texts = ["é", "", "\ufffd", None]
    entries = chat([position((i, -0.5, 1, text)) for i, text in enumerate(texts)])
    assert [entry["bytes"] for entry in entries] == [[0xC3, 0xA9], None, None, None]


def test_a_token_that_the_tokenizer_cannot_spell_has_the_bytes_of_its_text() -> None:
    (entry,) = chat([position((99, -0.5, 1, "é"))], 0, ELEPHANT.get)
    assert entry["bytes"] == [0xC3, 0xA9]


@pytest.mark.parametrize(
    ("token_id", "token_bytes", "token"),
    [
        (5, ELEPHANT.get, " the"),
        (2, ELEPHANT.get, "\ufffd"),
        (99, ELEPHANT.get, "token_id:99"),
        (5, None, "token_id:5"),
    ],
)
def test_a_token_without_a_text(token_id: int, token_bytes: TokenBytes, token: str) -> None:
    (entry,) = chat(sampled(token_id), 1, token_bytes)
    assert entry["token"] == token
    assert tokens_of(entry) == [token]


def test_tokens_by_their_ids() -> None:
    (entry,) = chat([RANKED], 1, lambda token_id: b"%d" % token_id, as_token_ids=True)
    assert (entry["token"], tokens_of(entry)) == ("token_id:7", ["token_id:8"])
    assert entry["bytes"] == list(b"7")
    added = CompletionLogprobs(ELEPHANT.get, 0, as_token_ids=True).add(sampled(1, 2, 3, 4))
    assert added["tokens"] == ["token_id:1", "token_id:2", "token_id:3", "token_id:4"]
    # Of the answer's text, not of these names.
    assert added["text_offset"] == [0, 1, 1, 2]


@pytest.mark.parametrize("nothing", [None, {}])
def test_a_position_without_anything(nothing: Position) -> None:
    assert chat([nothing], 2) == [{"token": "", "logprob": -9999.0, "bytes": None, "top_logprobs": []}]
    added = CompletionLogprobs(ELEPHANT.get, 2).add([nothing, *sampled(4)], [1, 4])
    assert added == {
        "text_offset": [0, 1],
        "token_logprobs": [None, -0.5],
        "tokens": ["a", "b"],
        "top_logprobs": [None, {"b": -0.5}],
    }
    assert CompletionLogprobs(ELEPHANT.get, 2).add([nothing])["tokens"] == [""]


def test_no_logprob_is_below_what_json_can_say() -> None:
    lowest: Any = {"1": {"logprob": float("-inf"), "rank": 1, "decoded_token": "a"}}
    unknown: Any = {"1": {"logprob": None, "rank": 1, "decoded_token": "a"}}
    for one in (lowest, unknown):
        (entry,) = chat([one], 1)
        assert (entry["logprob"], entry["top_logprobs"][0]["logprob"]) == (-9999.0, -9999.0)
        assert CompletionLogprobs(None, 1).add([one])["token_logprobs"] == [-9999.0]


@pytest.mark.parametrize(
    ("top", "best"),
    [
        (0, {"sampled": -3.0}),
        (2, {"sampled": -3.0, "best": -0.1, "second": -1.0}),
        (4, {"sampled": -3.0, "best": -0.1, "second": -1.0, "third": -2.0}),
        (-1, {"sampled": -3.0, "best": -0.1, "second": -1.0, "third": -2.0}),
    ],
)
def test_completions_give_the_sampled_token_and_the_best_ones(top: int, best: dict[str, float]) -> None:
    added = CompletionLogprobs(None, top).add([RANKED])
    assert list(added["top_logprobs"][0].items()) == list(best.items())
    assert (added["tokens"], added["token_logprobs"]) == (["sampled"], [-3.0])


def test_of_two_tokens_that_read_alike_the_sampled_one_and_then_the_better_one_counts() -> None:
    alike = position((1, -3.0, 3, "x"), (2, -1.0, 1, "x"), (3, -2.0, 2, "y"), (4, -4.0, 4, "y"))
    assert CompletionLogprobs(None, 4).add([alike])["top_logprobs"] == [{"x": -3.0, "y": -2.0}]


def test_each_token_of_a_character_has_the_characters_offset() -> None:
    reader = CompletionLogprobs(ELEPHANT.get, 0, offset=10)
    # In two deltas, in the middle of a character.
    assert reader.add(sampled(1, 2))["text_offset"] == [10, 11]
    assert reader.add(sampled(3, 4, 5, 4))["text_offset"] == [11, 12, 13, 17]


def test_without_a_tokenizer_offsets_follow_the_engines_texts() -> None:
    positions = [position((i, -0.5, 1, text)) for i, text in enumerate(["a", "", "🐘", "b"])]
    assert CompletionLogprobs(None, 0).add(positions)["text_offset"] == [0, 1, 1, 2]


def test_a_token_that_the_text_leaves_out_has_no_width() -> None:
    ids = (1, 6, 4)
    assert CompletionLogprobs(ELEPHANT.get, 0, left_out={6}).add(sampled(*ids))["text_offset"] == [0, 1, 1]
    assert CompletionLogprobs(ELEPHANT.get, 0).add(sampled(*ids))["text_offset"] == [0, 1, 5]


def test_bytes_that_are_no_text_count_as_they_are_shown() -> None:
    # "a", half a character, "b": the half is shown as one replacement character.
    assert CompletionLogprobs(ELEPHANT.get, 0).add(sampled(1, 2, 4, 4))["text_offset"] == [0, 1, 2, 3]
    # The second half alone: each byte of it.
    assert CompletionLogprobs(ELEPHANT.get, 0).add(sampled(3, 3, 4))["text_offset"] == [0, 2, 4]


def test_a_prompts_first_token_has_no_blank_before_it() -> None:
    first = {5: b"the"}.get
    reader = CompletionLogprobs(ELEPHANT.get, 0, left_out={6}, first_token_bytes=first)
    assert reader.add([None, *sampled(5, 5, 4)], [6, 5, 5, 4])["text_offset"] == [0, 0, 3, 7]
    assert CompletionLogprobs(ELEPHANT.get, 0).add(sampled(5, 5, 4))["text_offset"] == [0, 4, 8]


BYTE_LEVEL = ModelTokenizer(kinds.byte_level())


@given(text=st.text(), cuts=st.lists(st.integers(0, 100)))
def test_offsets_lead_to_the_characters_of_a_text_however_it_is_cut(text: str, cuts: list[int]) -> None:
    ids = BYTE_LEVEL.encode(text, add_special_tokens=False)
    reader = CompletionLogprobs(BYTE_LEVEL.token_bytes, 0)
    places = [0, *sorted(cut % (len(ids) + 1) for cut in cuts), len(ids)]
    offsets = [
        offset
        for begin, end in itertools.pairwise(places)
        for offset in reader.add(sampled(*ids[begin:end]))["text_offset"]
    ]
    # The character of a token is the one whose bytes hold the token's first.
    owner = [index for index, character in enumerate(text) for _ in character.encode()]
    place = 0
    for token_id, offset in zip(ids, offsets, strict=True):
        assert offset == owner[place]
        place += len(BYTE_LEVEL.token_bytes(token_id) or b"")


@given(ids=st.lists(st.integers(3, BYTE_LEVEL.vocabulary_size - 1)))
def test_offsets_of_bytes_that_are_no_text_never_leave_the_text(ids: list[int]) -> None:
    after = 3
    (*offsets, end) = CompletionLogprobs(BYTE_LEVEL.token_bytes, 0).add(sampled(*ids, after))["text_offset"]
    text = BYTE_LEVEL.decode([*ids, after], skip_special_tokens=False)
    assert offsets == sorted(offsets)
    # The last token is a character that no other goes on into.
    assert end == len(text) - 1
