"""The backend's contract on a real tritonserver with real vLLM: what a valid request gets."""

import json
import math
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.backend import Backend, sampling, text_of

EVERYTHING = {
    "return_finish_reason": True,
    "return_num_input_tokens": True,
    "return_num_output_tokens": True,
    "return_cumulative_logprob": True,
    "return_logprobs": True,
}
SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}


def test_sixteen_tokens_and_the_prompt_unless_said_otherwise(backend: Backend) -> None:
    answer = backend.generate(
        text_input="Hello",
        sampling_parameters=sampling(ignore_eos=True),
        return_num_output_tokens=True,
        return_finish_reason=True,
    )
    assert answer["text_output"].startswith("Hello")
    assert answer["num_output_tokens"] == 16
    assert answer["finish_reason"] == "length"


def test_without_sampling_parameters(backend: Backend) -> None:
    assert backend.generate(text_input="Hello")["text_output"].startswith("Hello")


def test_the_prompt_can_be_left_out(backend: Backend) -> None:
    wanted = sampling(temperature=0, max_tokens=8)
    whole = backend.generate(text_input="Hello", sampling_parameters=wanted)["text_output"]
    answer = backend.generate(text_input="Hello", sampling_parameters=wanted, exclude_input_in_output=True)
    assert whole == "Hello" + answer["text_output"]


def test_only_what_is_asked_for_is_sent(backend: Backend) -> None:
    assert set(backend.generate(text_input="a")) == {"model_name", "model_version", "text_output"}


@pytest.mark.parametrize("parameters", [{"temperature": 0}, {"temperature": 1.5, "seed": 7}])
def test_a_stream_adds_up_to_the_answer(backend: Backend, parameters: dict[str, Any]) -> None:
    wanted = sampling(max_tokens=40, logprobs=2, ignore_eos=True, **parameters)
    whole = backend.generate(text_input="Hello", sampling_parameters=wanted, exclude_input_in_output=True, **EVERYTHING)
    events = backend.stream(text_input="Hello", sampling_parameters=wanted, **EVERYTHING)
    assert len(events) > 1
    assert text_of(events) == whole["text_output"]
    assert [event["finish_reason"] for event in events] == ["None"] * (len(events) - 1) + ["length"]
    assert sum(event["num_output_tokens"] for event in events) == whole["num_output_tokens"] == 40
    assert {event["num_input_tokens"] for event in events} == {whole["num_input_tokens"]}
    positions = [position for event in events for position in json.loads(event["logprobs"])]
    assert positions == json.loads(whole["logprobs"])
    assert len(positions) == 40
    # The first key of each is the token that was sampled, whatever its rank; the sum is over these.
    sampled = [next(iter(position.values())) for position in positions]
    assert math.isclose(sum(entry["logprob"] for entry in sampled), whole["cumulative_logprob"], rel_tol=1e-3)
    assert events[-1]["cumulative_logprob"] == pytest.approx(whole["cumulative_logprob"])
    ranks = {entry["rank"] for entry in sampled}
    assert ranks == {1} if parameters["temperature"] == 0 else max(ranks) > 1
    assert set(sampled[0]) == {"logprob", "rank", "decoded_token"}


def test_the_sum_of_logprobs_without_the_tokens_own(backend: Backend) -> None:
    answer = backend.generate(text_input="a", return_cumulative_logprob=True, return_logprobs=True)
    assert answer["cumulative_logprob"] < 0
    assert answer["logprobs"] == "null"


def test_the_admission_comes_first_and_is_empty(backend: Backend) -> None:
    wanted = sampling(max_tokens=3, logprobs=0, ignore_eos=True)
    first, *rest = backend.stream(text_input="Hello", send_admission=True, sampling_parameters=wanted, **EVERYTHING)
    assert first["text_output"] == ""
    assert first["finish_reason"] == "None"
    assert first["num_output_tokens"] == 0
    assert first["num_input_tokens"] == rest[0]["num_input_tokens"] > 0
    assert first["cumulative_logprob"] == 0
    assert json.loads(first["logprobs"]) == []
    assert sum(event["num_output_tokens"] for event in rest) == 3


def test_no_admission_unless_asked_for(backend: Backend) -> None:
    events = backend.stream(
        text_input="Hello", sampling_parameters=sampling(max_tokens=2, ignore_eos=True), return_num_output_tokens=True
    )
    assert all(event["num_output_tokens"] > 0 for event in events)


def test_one_beginning_of_sequence(backend: Backend) -> None:
    """The tokenizer of the tiny model adds a BOS, as those of Llama models do."""

    def prompt_tokens(**inputs: Any) -> int:
        answer = backend.generate(
            **inputs, sampling_parameters=sampling(max_tokens=1), return_num_input_tokens=True, stream=False
        )
        count = answer["num_input_tokens"]
        assert isinstance(count, int)
        return count

    with_bos = prompt_tokens(text_input="Hello")
    assert prompt_tokens(text_input="Hello", add_special_tokens=True) == with_bos
    assert prompt_tokens(text_input="Hello", add_special_tokens=False) == with_bos - 1
    # A rendered prompt holds the BOS as text: with the tokenizer's own it would be there twice.
    assert prompt_tokens(text_input="<s>Hello", add_special_tokens=False) == with_bos
    assert prompt_tokens(text_input="<s>Hello") == with_bos + 1


def test_token_ids_in_place_of_text(backend: Backend) -> None:
    ids = list(range(5, 25))
    answer = backend.generate(input_ids=ids, sampling_parameters=sampling(max_tokens=4), return_num_input_tokens=True)
    assert answer["num_input_tokens"] == len(ids)
    streamed = backend.stream(input_ids=ids, sampling_parameters=sampling(max_tokens=4, temperature=0))
    assert text_of(streamed) == text_of(
        [backend.generate(input_ids=ids, sampling_parameters=sampling(max_tokens=4, temperature=0))]
    )


def test_null_max_tokens_is_the_rest_of_the_context(backend: Backend) -> None:
    answer = backend.generate(
        input_ids=[5] * 4085,
        sampling_parameters=sampling(max_tokens=None, ignore_eos=True),
        return_num_output_tokens=True,
        return_finish_reason=True,
    )
    assert answer["num_output_tokens"] == 4096 - 4085
    assert answer["finish_reason"] == "length"


def test_a_prompt_that_leaves_room_for_one_token(backend: Backend) -> None:
    answer = backend.generate(input_ids=[5] * 4095, return_num_output_tokens=True)
    assert answer["num_output_tokens"] == 1


@pytest.mark.parametrize("as_text", [True, False])
def test_a_constraint_as_an_object_and_as_text(backend: Backend, as_text: bool) -> None:
    constraint = {"json": SCHEMA}
    answer = backend.generate(
        text_input="Hello",
        exclude_input_in_output=True,
        sampling_parameters=sampling(
            max_tokens=40, structured_outputs=json.dumps(constraint) if as_text else constraint
        ),
    )
    assert json.loads(answer["text_output"]) in ({"a": 1}, {"a": 2})


@pytest.mark.parametrize(
    ("constraint", "possible"),
    [
        ({"choice": ["yes", "no"]}, {"yes", "no"}),
        ({"regex": "a[bc]d"}, {"abd", "acd"}),
        ({"grammar": 'root ::= "x" | "y"'}, {"x", "y"}),
        ({"json": json.dumps({"const": 5})}, {"5"}),
    ],
)
def test_every_kind_of_constraint(backend: Backend, constraint: dict[str, Any], possible: set[str]) -> None:
    answer = backend.generate(
        text_input="Hello",
        exclude_input_in_output=True,
        sampling_parameters=sampling(max_tokens=20, structured_outputs=constraint),
    )
    assert answer["text_output"] in possible


def test_any_json_object(backend: Backend) -> None:
    answer = backend.generate(
        text_input="Hello",
        exclude_input_in_output=True,
        return_finish_reason=True,
        sampling_parameters=sampling(max_tokens=10, structured_outputs={"json_object": True}),
    )
    assert answer["text_output"].startswith("{")


def test_a_stop_string(backend: Backend) -> None:
    wanted: dict[str, Any] = {"max_tokens": 20, "structured_outputs": {"regex": "abcdefgh"}}
    answer = backend.generate(
        text_input="Hello",
        exclude_input_in_output=True,
        return_finish_reason=True,
        sampling_parameters=sampling(stop="def", **wanted),
    )
    assert (answer["text_output"], answer["finish_reason"]) == ("abc", "stop")
    events = backend.stream(text_input="Hello", sampling_parameters=sampling(stop=["zz", "def"], **wanted))
    assert text_of(events) == "abc"


def test_logit_bias_by_token_id(backend: Backend) -> None:
    answer = backend.generate(
        text_input="Hello",
        return_logprobs=True,
        sampling_parameters=sampling(max_tokens=3, logprobs=0, logit_bias={"77": 100}),
    )
    assert [next(iter(position)) for position in json.loads(answer["logprobs"])] == ["77"] * 3


def test_null_is_as_if_absent(backend: Backend) -> None:
    same = {"max_tokens": 8, "temperature": 0}
    with_nulls = sampling(**same, seed=None, stop=None, structured_outputs=None, top_k=None, logit_bias=None)
    assert backend.generate(text_input="a", sampling_parameters=with_nulls) == backend.generate(
        text_input="a", sampling_parameters=sampling(**same)
    )


def test_the_metadata_shows_whose_backend_it_is(backend: Backend) -> None:
    inputs = {tensor["name"]: (tensor["datatype"], tensor["shape"]) for tensor in backend.metadata["inputs"]}
    assert inputs["send_admission"] == ("BOOL", [1])
    assert inputs["add_special_tokens"] == ("BOOL", [1])
    assert inputs["input_ids"] == ("INT64", [-1])


def test_sixty_four_streams_at_a_time(backend: Backend) -> None:
    """Each gets its own tokens, all of them and in order."""

    def wanted(number: int) -> dict[str, Any]:
        return {
            "text_input": f"Stream number {number}",
            "sampling_parameters": sampling(max_tokens=30, seed=number, ignore_eos=True),
        }

    with ThreadPoolExecutor(64) as threads:
        streams = list(
            threads.map(
                lambda number: backend.stream(
                    **wanted(number), send_admission=True, return_num_output_tokens=True, return_finish_reason=True
                ),
                range(64),
            )
        )
    for events in streams:
        assert events[0]["num_output_tokens"] == 0
        assert sum(event["num_output_tokens"] for event in events) == 30
        assert [event["finish_reason"] for event in events].index("length") == len(events) - 1
    assert len({text_of(events) for events in streams}) == 64
    for number in (0, 31, 63):
        alone = backend.generate(**wanted(number), exclude_input_in_output=True)
        assert text_of(streams[number]) == alone["text_output"]


def test_nothing_stays_open(backend: Backend) -> None:
    """After 500 requests of all kinds, one that is cancelled counts what is open beside it: nothing."""

    def one(number: int) -> None:
        match number % 5:
            case 0:
                backend.refusal(text_input="a", sampling_parameters=sampling(temperature=3))
            case 1:
                backend.refusal(text_input="a", sampling_parameters=sampling(structured_outputs={"json": {"type": 1}}))
            case 2:
                with backend.open(
                    text_input="a", send_admission=True, sampling_parameters=sampling(max_tokens=2000)
                ) as events:
                    next(events)
            case 3:
                backend.stream(text_input="a", sampling_parameters=sampling(max_tokens=2))
            case _:
                backend.generate(text_input="a", sampling_parameters=sampling(max_tokens=1))

    with ThreadPoolExecutor(16) as threads:
        list(threads.map(one, range(500)))
    name = "the last of five hundred"
    with backend.open(
        id=name, text_input="a", send_admission=True, sampling_parameters=sampling(max_tokens=4000, ignore_eos=True)
    ) as events:
        next(events)
        # By then it is seen that those cancelled just before are gone.
        time.sleep(0.5)
    line = backend.wait_for_log(f"request '{name}' cancelled by its client")
    assert "open: 0 in the backend, 0 in the engine" in line
