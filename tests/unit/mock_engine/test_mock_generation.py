"""The mock model as a pure function: text, stops, limits, counts, logprobs."""

import itertools

import pytest

from bench.mock_engine.generation import Delta, generate
from bench.mock_engine.sampling import SamplingParams
from bench.mock_engine.tokens import BOS, EOS, PieceTokenizer, pieces, token_id

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
    assert last == Delta(text="", token_ids=[EOS], finish_reason="stop")


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
        assert sorted([entry["rank"], *(other["rank"] for _, other in others)]) == [1, 2, 3]
        by_rank = sorted(position.values(), key=lambda entry: entry["rank"])
        logprobs = [entry["logprob"] for entry in by_rank]
        assert logprobs == sorted(logprobs, reverse=True)
        assert logprobs[0] < 0
        total += entry["logprob"]
        assert delta.cumulative_logprob == pytest.approx(total)
    assert ranks == {1, 2, 3}


def test_a_sampled_token_below_the_top_comes_on_top_of_them() -> None:
    positions = [delta.logprobs[0] for delta in deltas(logprobs=1, ignore_eos=True, max_tokens=100) if delta.logprobs]
    sizes = {next(iter(position.values()))["rank"]: len(position) for position in positions}
    assert sizes == {1: 1, 2: 2, 3: 2}
    zero = [delta.logprobs[0] for delta in deltas(logprobs=0, ignore_eos=True, max_tokens=100) if delta.logprobs]
    assert {len(position) for position in zero} == {1}


def test_greedy_tokens_have_rank_1() -> None:
    for delta in deltas(temperature=0, logprobs=0, max_tokens=50):
        assert delta.logprobs is not None
        assert next(iter(delta.logprobs[0].values()))["rank"] == 1


def test_tokens_are_pieces_of_at_most_three_bytes() -> None:
    text = "Hello there, 12345  and\n日😀!"
    assert b"".join(pieces(text.encode())) == text.encode()
    assert pieces(b" hello 42") == [b" he", b"llo", b" 42"]
    assert PieceTokenizer().encode("ab", add_special_tokens=True) == [BOS, token_id(b"ab")]
    ids = {token_id(piece) for piece in (b"a", b"\x00a", b"\x00\x00a", b"aa", b"aaa")}
    assert len(ids) == 5
