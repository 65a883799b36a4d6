"""The backend's outputs beyond the stock contract, and the inputs that change a prompt, on a real tritonserver with
real vLLM."""

import json
from typing import Any

import pytest

from tests.support.backend import Backend, Event, sampling, text_of

TEXT = "One two three four five six"


def prompt_ids(backend: Backend, **inputs: Any) -> list[int]:
    answer = backend.generate(**inputs, return_prompt_token_ids=True, sampling_parameters=sampling(max_tokens=1))
    ids: list[int] = json.loads(answer["prompt_token_ids"])
    return ids


def ended(backend: Backend, **parameters: Any) -> tuple[str, Any, int]:
    """How an answer ends: finish reason, stop reason, tokens."""
    answer = backend.generate(
        text_input="Hello",
        exclude_input_in_output=True,
        return_finish_reason=True,
        return_stop_reason=True,
        return_num_output_tokens=True,
        sampling_parameters=sampling(**parameters),
    )
    return answer["finish_reason"], json.loads(answer["stop_reason"]), answer["num_output_tokens"]


def parsed(events: list[Event], name: str) -> list[Any]:
    return [json.loads(event[name]) for event in events]


def test_every_position_of_the_prompt_has_its_logprobs(backend: Backend) -> None:
    ids = prompt_ids(backend, text_input=TEXT)
    answer = backend.generate(
        text_input=TEXT, return_prompt_logprobs=True, sampling_parameters=sampling(max_tokens=1, prompt_logprobs=2)
    )
    first, *rest = json.loads(answer["prompt_logprobs"])
    assert first is None
    # The prompt's own token is the first key, whatever its rank, and the two best ones follow.
    assert [int(next(iter(position))) for position in rest] == ids[1:]
    assert max(next(iter(position.values()))["rank"] for position in rest) > 2
    for position in rest:
        assert {1, 2} <= {entry["rank"] for entry in position.values()}
    assert "".join(next(iter(position.values()))["decoded_token"] for position in rest) == TEXT


def test_logprobs_of_the_prompt_are_those_that_the_tokens_would_have_been_sampled_with(backend: Backend) -> None:
    ids = prompt_ids(backend, text_input=TEXT)
    whole = backend.generate(
        input_ids=ids, return_prompt_logprobs=True, sampling_parameters=sampling(max_tokens=1, prompt_logprobs=0)
    )
    positions = json.loads(whole["prompt_logprobs"])
    for place in range(1, len(ids)):
        answer = backend.generate(
            input_ids=ids[:place],
            return_logprobs=True,
            sampling_parameters=sampling(max_tokens=1, logprobs=0, allowed_token_ids=[ids[place]]),
        )
        (sampled,) = json.loads(answer["logprobs"])
        assert sampled.keys() == positions[place].keys() == {str(ids[place])}
        (expected,), (got,) = sampled.values(), positions[place].values()
        assert got["logprob"] == pytest.approx(expected["logprob"], abs=1e-3)
        assert got["decoded_token"] == expected["decoded_token"]


def test_what_is_told_of_a_prompt_is_told_once(backend: Backend) -> None:
    wanted: dict[str, Any] = {
        "text_input": TEXT,
        "return_prompt_logprobs": True,
        "return_prompt_token_ids": True,
        "sampling_parameters": sampling(max_tokens=4, prompt_logprobs=0, ignore_eos=True),
    }
    ids = prompt_ids(backend, text_input=TEXT)
    events = backend.stream(send_admission=True, **wanted)
    assert len(events) > 2
    nothing = [None] * (len(events) - 1)
    assert parsed(events, "prompt_token_ids") == [ids, *nothing]
    none, logprobs, *more = parsed(events, "prompt_logprobs")
    assert [none, *more] == nothing
    assert len(logprobs) == len(ids)
    # Without the admission both come with the first tokens.
    first, *_ = backend.stream(**wanted)
    assert json.loads(first["prompt_token_ids"]) == ids
    assert json.loads(first["prompt_logprobs"]) == logprobs


def test_a_prompt_of_one_token_has_no_logprobs(backend: Backend) -> None:
    answer = backend.generate(
        input_ids=[5], return_prompt_logprobs=True, sampling_parameters=sampling(max_tokens=1, prompt_logprobs=1)
    )
    assert json.loads(answer["prompt_logprobs"]) == [None]


def test_without_the_parameter_the_prompts_logprobs_are_null(backend: Backend) -> None:
    assert backend.generate(text_input=TEXT, return_prompt_logprobs=True)["prompt_logprobs"] == "null"


def test_the_tokens_of_a_stream_add_up(backend: Backend) -> None:
    wanted = sampling(max_tokens=30, temperature=0, logprobs=0, ignore_eos=True)
    flags = {"return_token_ids": True, "return_logprobs": True}
    whole = backend.generate(text_input="Hello", sampling_parameters=wanted, **flags)
    events = backend.stream(text_input="Hello", sampling_parameters=wanted, send_admission=True, **flags)
    tokens = [token for part in parsed(events, "token_ids") for token in part]
    assert parsed(events, "token_ids")[0] == []
    assert tokens == json.loads(whole["token_ids"])
    assert tokens == [int(next(iter(position))) for position in json.loads(whole["logprobs"])]


def test_what_ended_an_answer(backend: Backend) -> None:
    letters: dict[str, Any] = {"max_tokens": 20, "structured_outputs": {"regex": "abcdefgh"}}
    assert ended(backend, **letters)[:2] == ("stop", None)
    assert ended(backend, stop=["zz", "def"], **letters)[:2] == ("stop", "def")
    assert ended(backend, max_tokens=2, ignore_eos=True) == ("length", None, 2)
    # Token 77 and nothing else.
    assert ended(backend, logit_bias={"77": 100}, stop_token_ids=[77]) == ("stop", 77, 1)


def test_a_repetition_ends_an_answer(backend: Backend) -> None:
    repetition = {"max_pattern_size": 2, "min_count": 4}
    same = {"logit_bias": {"77": 100}, "max_tokens": 30, "repetition_detection": repetition}
    assert ended(backend, **same) == ("repetition", "repetition_detected", 4)
    assert ended(backend, **same, min_tokens=9) == ("repetition", "repetition_detected", 9)
    events = backend.stream(
        text_input="Hello", sampling_parameters=sampling(**same), return_finish_reason=True, return_stop_reason=True
    )
    assert events[-1]["finish_reason"] == "repetition"
    assert parsed(events, "stop_reason") == [None] * (len(events) - 1) + ["repetition_detected"]


def test_tokens_that_are_parts_of_a_character(backend: Backend) -> None:
    """What the engine tells of them: nothing, until one completes the character."""
    answer = backend.generate(
        text_input="Hello",
        exclude_input_in_output=True,
        return_logprobs=True,
        sampling_parameters=sampling(max_tokens=20, logprobs=0, structured_outputs={"regex": "🌊"}),
    )
    assert answer["text_output"] == "🌊"
    *parts, last, _end = [next(iter(position.values())) for position in json.loads(answer["logprobs"])]
    assert parts
    assert {part["decoded_token"] for part in parts} == {""}
    assert last["decoded_token"] == "🌊"


@pytest.mark.parametrize(
    ("tokens", "side", "of_text", "of_ids"),
    [
        (3, "left", "last", "last"),
        (3, "right", "first", "first"),
        # Where the tokenizer cuts by itself, it keeps its BOS.
        (3, None, "BOS and last", "last"),
        (1000, "left", "all", "all"),
        (-1, None, "all", "all"),
    ],
)
def test_a_prompt_is_truncated(backend: Backend, tokens: int, side: str | None, of_text: str, of_ids: str) -> None:
    ids = prompt_ids(backend, text_input=TEXT)
    kept = {"last": ids[-3:], "first": ids[:3], "BOS and last": [ids[0], *ids[-2:]], "all": ids}
    how: dict[str, Any] = {"truncate_prompt_tokens": tokens} | ({"truncation_side": side} if side else {})
    assert prompt_ids(backend, text_input=TEXT, **how) == kept[of_text]
    assert prompt_ids(backend, input_ids=ids, **how) == kept[of_ids]


@pytest.mark.parametrize("side", [None, "left", "right"])
@pytest.mark.parametrize("prompt", [{"text_input": "word " * 20_000}, {"input_ids": list(range(5, 905)) * 7}])
def test_a_prompt_is_truncated_so_that_one_token_fits(
    backend: Backend, prompt: dict[str, Any], side: str | None
) -> None:
    how: dict[str, Any] = {"truncate_prompt_tokens": -1} | ({"truncation_side": side} if side else {})
    answer = backend.generate(**prompt, **how, return_num_input_tokens=True, return_num_output_tokens=True)
    assert (answer["num_input_tokens"], answer["num_output_tokens"]) == (4095, 1)


def test_a_text_of_megabytes_is_truncated(backend: Backend) -> None:
    end = " what stands at the very end of it all"
    how: dict[str, Any] = {"truncate_prompt_tokens": 5}
    alone = prompt_ids(backend, text_input=end, **how)
    assert len(alone) == 5
    assert prompt_ids(backend, text_input="word " * 3_000_000 + end, **how) == alone


def test_salt_session_reasoning_and_watermark_do_not_change_an_answer(backend: Backend) -> None:
    greedy = {"max_tokens": 8, "temperature": 0}
    plain = text_of([backend.generate(text_input=TEXT, sampling_parameters=sampling(**greedy))])
    unread = ({"cache_salt": "Sälz"}, {"session_id": "s" * 1024}, {"priority": 0})
    # Where a constraint begins, where there is none.
    for more in (*unread, {"reasoning_ended": False}, {"reasoning_ended": True}):
        assert text_of([backend.generate(text_input=TEXT, sampling_parameters=sampling(**greedy), **more)]) == plain
    unmarked = sampling(**greedy, watermarking=False)
    assert text_of([backend.generate(text_input=TEXT, sampling_parameters=unmarked)]) == plain
