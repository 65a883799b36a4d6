"""The mock model as a pure function: text, stops, limits, counts, logprobs."""

import itertools
from typing import Any

import pytest

from bench.mock_engine.generation import Delta, generate
from bench.mock_engine.logprobs import prompt_logprobs
from bench.mock_engine.sampling import SamplingParams
from bench.mock_engine.tokens import BOS, EOS, PieceTokenizer, piece, pieces, token_id

PROMPT = PieceTokenizer().encode("Tell me about rivers.", add_special_tokens=True)
CONTEXT = 4096


def deltas(
    text: str | None = None, context: int = CONTEXT, prompt: list[int] = PROMPT, **sampling: object
) -> list[Delta]:
    params = SamplingParams.of({"max_tokens": None} | sampling, None)
    return list(generate(prompt, params, context, text))


def answer(text: str | None = None, **arguments: object) -> tuple[str, str | None]:
    all_deltas = deltas(text, **arguments)  # type: ignore[arg-type]
    assert all(delta.finish_reason is None for delta in all_deltas[:-1])
    return "".join(delta.text for delta in all_deltas), all_deltas[-1].finish_reason


def test_the_same_request_gives_the_same_answer() -> None:
    assert deltas(temperature=0.7, seed=3, logprobs=2) == deltas(temperature=0.7, seed=3, logprobs=2)


def test_an_answer_is_plain_words() -> None:
    text, finish = answer()
    assert finish == "stop"
    assert 20 <= len(text.split()) <= 60
    assert text.replace(" ", "").replace(".", "").isalpha()


def test_what_shapes_the_choice_of_tokens_changes_the_text() -> None:
    base = answer(seed=1)
    for change in ({"seed": 2}, {"temperature": 0.5}, {"top_p": 0.5}, {"presence_penalty": 1.0}, {"bad_words": ["x"]}):
        assert answer(**({"seed": 1} | change)) != base
    assert answer(seed=1, prompt=[*PROMPT, 5]) != base


def test_a_greedy_answer_does_not_depend_on_what_only_sampling_needs() -> None:
    assert answer(temperature=0, seed=1, top_p=0.5) == answer(temperature=0, seed=2, top_k=5)


def test_only_tokens_that_are_left_are_said() -> None:
    allowed = [token_id(b"ab"), token_id(b"c")]
    free, _ = answer(max_tokens=9)
    assert set(answer(max_tokens=9, allowed_token_ids=allowed)[0]) == {"a", "b", "c"}
    assert answer(max_tokens=2, logit_bias={allowed[0]: 100, 5: -100}) == ("abab", "length")
    assert answer(max_tokens=9, logit_bias={allowed[0]: 99}) != ("ab" * 9, "length")
    assert free not in (answer(max_tokens=9, allowed_token_ids=allowed)[0], "")


def test_the_end_may_be_the_only_token_left() -> None:
    assert answer(allowed_token_ids=[EOS]) == ("", "stop")
    assert answer(allowed_token_ids=[EOS], ignore_eos=True, max_tokens=2) == ("", "length")
    written_out = answer(allowed_token_ids=[EOS], ignore_eos=True, max_tokens=2, skip_special_tokens=False)
    assert written_out == ("</s></s>", "length")
    late = deltas(logit_bias={EOS: 100}, min_tokens=3)
    assert ([delta.token_ids == [EOS] for delta in late], late[-1].finish_reason) == ([False] * 3 + [True], "stop")


@pytest.mark.parametrize("limit", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1}, {"temperature": 0}])
def test_a_limit_that_leaves_one_token_leaves_the_likeliest(limit: dict[str, float]) -> None:
    def ranks(**sampling: Any) -> set[int]:
        found = deltas(max_tokens=30, logprobs=1, **sampling)
        return {entries[str(d.token_ids[0])]["rank"] for d in found for entries in d.logprobs or ()}

    assert ranks(**limit) == {1}
    assert ranks(top_k=2, top_p=0.5, min_p=0.5) > {1}


def test_a_limit_gives_the_beginning_of_the_same_text() -> None:
    text, _ = answer()
    for limit in (1, 5, 30):
        shorter = deltas(max_tokens=limit)
        assert [len(delta.token_ids) for delta in shorter] == [1] * limit
        assert shorter[-1].finish_reason == "length"
        assert text.startswith("".join(delta.text for delta in shorter))


def test_an_absent_limit_is_16() -> None:
    params = SamplingParams.of({}, None)
    assert len(list(generate(PROMPT, params, CONTEXT))) == 16


def test_the_context_ends_an_answer() -> None:
    all_deltas = deltas(context=len(PROMPT) + 10, ignore_eos=True)
    assert (len(all_deltas), all_deltas[-1].finish_reason) == (10, "length")


def test_the_end_token_is_counted_but_is_no_text() -> None:
    last = deltas("abc")[-1]
    assert last == Delta(text="", token_ids=[EOS], finish_reason="stop", stop_reason=None)


def test_ignore_eos_runs_to_the_limit() -> None:
    all_deltas = deltas(ignore_eos=True, max_tokens=500)
    assert (len(all_deltas), all_deltas[-1].finish_reason) == (500, "length")


def test_min_tokens_puts_the_end_off() -> None:
    all_deltas = deltas(min_tokens=400)
    assert len(all_deltas) > 400
    assert all_deltas[-1].finish_reason == "stop"


@pytest.mark.parametrize("stop", ["ghi", ["xyz", "ghi"], ["i jk", "ghi"]])
def test_a_stop_string_cuts_the_text(stop: object) -> None:
    assert answer("abc def ghi jkl", stop=stop) == ("abc def ", "stop")


def test_a_stop_string_may_be_kept() -> None:
    assert answer("abc def ghi jkl", stop="ghi", include_stop_str_in_output=True) == ("abc def ghi", "stop")


def test_nothing_of_a_stop_string_leaves_before_it_is_complete() -> None:
    streamed = list(itertools.accumulate(delta.text for delta in deltas("abcdefghijklmnop", stop="hijkl")))
    assert all("h" not in text for text in streamed)
    assert streamed[-1] == "abcdefg"


def test_what_was_held_back_leaves_at_the_end() -> None:
    assert answer("abcdefgh", stop="hxxxxx") == ("abcdefgh", "stop")
    assert answer("abcdefgh", stop="hxxxxx", max_tokens=2) == ("abcdef", "length")


def test_stop_strings_below_min_tokens_are_passed_over() -> None:
    # The tokens are " abc" cut into pieces of three bytes: the second "abc" comes after four tokens.
    assert answer("abcdefabcdef", stop="abc") == ("", "stop")
    assert answer("abcdefabcdef", stop="abc", min_tokens=2) == ("abcdef", "stop")


def test_a_stop_token_ends_the_answer_without_its_text() -> None:
    stop = token_id(b"def")
    assert answer("abcdefghi", stop_token_ids=[stop]) == ("abc", "stop")
    assert answer("abcdefghi", stop_token_ids=[stop], include_stop_str_in_output=True) == ("abcdef", "stop")
    assert answer("abcdefghidef", stop_token_ids=[stop], min_tokens=2) == ("abcdefghi", "stop")


def test_a_character_may_span_tokens() -> None:
    all_deltas = deltas("日😀é")
    assert "".join(delta.text for delta in all_deltas) == "日😀é"
    assert "" in [delta.text for delta in all_deltas[:-1]]


def test_logprobs_begin_with_the_sampled_token() -> None:
    all_deltas = deltas(logprobs=3, ignore_eos=True, max_tokens=100)
    ranks = set()
    total = 0.0
    for delta in all_deltas:
        assert delta.logprobs is not None
        (position,) = delta.logprobs
        (sampled, entry), *others = position.items()
        assert sampled == str(delta.token_ids[0])
        assert entry["decoded_token"] == delta.text
        ranks.add(entry["rank"])
        assert {entry["rank"], *(other["rank"] for _, other in others)} == {entry["rank"], 1, 2, 3}
        assert len(position) == (3 if entry["rank"] <= 3 else 4)
        by_rank = sorted(position.values(), key=lambda entry: entry["rank"])
        logprobs = [entry["logprob"] for entry in by_rank]
        assert logprobs == sorted(logprobs, reverse=True)
        assert logprobs[0] < 0
        total += entry["logprob"]
        assert delta.cumulative_logprob == pytest.approx(total)
    assert ranks == {1, 2, 3, 6}


def test_a_sampled_token_below_the_top_comes_on_top_of_them() -> None:
    positions = [delta.logprobs[0] for delta in deltas(logprobs=1, ignore_eos=True, max_tokens=100) if delta.logprobs]
    sizes = {next(iter(position.values()))["rank"]: len(position) for position in positions}
    assert sizes == {1: 1, 2: 2, 3: 2, 4: 2}
    zero = [delta.logprobs[0] for delta in deltas(logprobs=0, ignore_eos=True, max_tokens=100) if delta.logprobs]
    assert {len(position) for position in zero} == {1}


def test_greedy_tokens_have_rank_1() -> None:
    for delta in deltas(temperature=0, logprobs=0, max_tokens=50):
        assert delta.logprobs is not None
        assert next(iter(delta.logprobs[0].values()))["rank"] == 1


@pytest.mark.parametrize(
    ("text", "decoded"),
    [
        # The tokens end after the third byte of the emoji, which has four.
        ("日😀", ["日", "", "😀", "</s>"]),
        # What precedes the beginning of a character in its token comes with the rest of the character.
        ("!😀", ["", "!😀", "</s>"]),
        # A token that ends well is taken as it is, even if it begins with the rest of a character.
        ("日😀!", ["日", "", "\ufffd!", "</s>"]),
    ],
)
def test_the_decoded_token_of_a_part_of_a_character(text: str, decoded: list[str]) -> None:
    positions = [delta.logprobs[0] for delta in deltas(text, logprobs=0) if delta.logprobs]
    assert [next(iter(position.values()))["decoded_token"] for position in positions] == decoded


def test_logprobs_of_listed_tokens() -> None:
    listed = [token_id(b"abc"), token_id(b"x"), token_id("😀".encode()[:3])]
    for delta in deltas(logprob_token_ids=listed, ignore_eos=True, max_tokens=30):
        assert delta.logprobs is not None
        (position,) = delta.logprobs
        assert list(position) == [str(token) for token in (*delta.token_ids, *listed)]
        assert [position[str(token)]["rank"] for token in listed] == [1, 2, 3]
        assert [position[str(token)]["decoded_token"] for token in listed] == ["abc", "x", ""]


def test_logprobs_of_the_prompt() -> None:
    ids = PieceTokenizer().encode("Hi 日😀!", add_special_tokens=True)
    positions = prompt_logprobs(ids, 2, PieceTokenizer().decode)
    assert positions[0] is None
    assert positions == prompt_logprobs(ids, 2, PieceTokenizer().decode)
    later = [position for position in positions if position]
    assert [next(iter(position)) for position in later] == [str(token) for token in ids[1:]]
    assert "".join(next(iter(position.values()))["decoded_token"] for position in later).startswith("Hi 日")
    for position in later:
        assert {1, 2} <= {entry["rank"] for entry in position.values()}


def test_a_repetition_ends_the_answer() -> None:
    # The tokens are "abc" and "def" in turn.
    def ended(count: int, size: int = 2, **sampling: int) -> tuple[int, str | None, object]:
        repetition = {"max_pattern_size": size, "min_count": count}
        all_deltas = deltas("abcdef" * 6, repetition_detection=repetition, **sampling)  # type: ignore[arg-type]
        return len(all_deltas), all_deltas[-1].finish_reason, all_deltas[-1].stop_reason

    assert ended(2) == (4, "repetition", "repetition_detected")
    assert ended(3) == (6, "repetition", "repetition_detected")
    assert ended(2, min_tokens=7) == (7, "repetition", "repetition_detected")
    assert ended(2, max_tokens=4) == (4, "length", None)
    assert ended(7) == (13, "stop", None)
    # However long a pattern may be, no more is compared than there is.
    assert ended(3, size=2**31 - 1) == (6, "repetition", "repetition_detected")


def test_what_stopped_the_answer() -> None:
    def reason(**sampling: object) -> object:
        return deltas("abc def ghi", **sampling)[-1].stop_reason  # type: ignore[arg-type]

    assert reason() is None
    assert reason(stop=["x", "ef", "f g"]) == "ef"
    assert reason(stop_token_ids=[token_id(b" gh")]) == token_id(b" gh")
    assert reason(max_tokens=1) is None


def test_tokens_are_pieces_of_at_most_three_bytes() -> None:
    text = "Hello there, 12345  and\n日😀!"
    assert b"".join(pieces(text.encode())) == text.encode()
    assert pieces(b" hello 42") == [b" he", b"llo", b" 42"]
    assert PieceTokenizer().encode("ab", add_special_tokens=True) == [BOS, token_id(b"ab")]
    ids = {token_id(piece) for piece in (b"a", b"\x00a", b"\x00\x00a", b"aa", b"aaa")}
    assert len(ids) == 5
    assert [piece(token_id(part)) for part in (b"a", b"\x00a", b"\xff\xff\xff")] == [b"a", b"\x00a", b"\xff\xff\xff"]
