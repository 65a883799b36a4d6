"""What each backend accepts, what it refuses, and in which words."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.mock_engine.running import MockEngineError, running_mock_engine

from .conftest import Answer, Client

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
NO_PARAMETERS = "Error generating stream: 'NoneType' object has no attribute 'lora_name'"


def error_of(answer: Answer) -> str:
    assert answer.status == 400
    (event,) = answer.events
    assert event.keys() == {"error"}
    error: str = event["error"]
    return error


# This project's backend


def test_admission_comes_first_and_is_empty(own: Client) -> None:
    admission, first, *_ = own.stream(send_admission=True, sampling={"max_tokens": 3}).events
    assert (admission["text_output"], admission["finish_reason"], admission["num_output_tokens"]) == ("", "None", 0)
    assert admission["num_input_tokens"] == first["num_input_tokens"] > 0
    assert first["num_output_tokens"] == 1
    assert own.stream(sampling={"max_tokens": 3}).events[0] == first


def test_counts_and_finish_reason(own: Client) -> None:
    events = own.stream(sampling={"max_tokens": 7}).events
    assert sum(event["num_output_tokens"] for event in events) == 7
    assert [event["finish_reason"] for event in events] == ["None"] * 6 + ["length"]


def test_only_outputs_that_were_asked_for(own: Client) -> None:
    answer = own.ask("POST", "/v2/models/m/generate", {"text_input": "Hello", "exclude_input_in_output": True})
    assert json.loads(answer.content).keys() == {"model_name", "model_version", "text_output"}


def test_the_prompt_precedes_an_answer_that_does_not_exclude_it(either: Client) -> None:
    def text(**inputs: Any) -> str:
        answer = either.ask("POST", "/v2/models/m/generate", {"text_input": "Hello"} | inputs)
        output: str = json.loads(answer.content)["text_output"]
        return output

    assert text() == text(exclude_input_in_output=False) == "Hello" + text(exclude_input_in_output=True)


def test_an_absent_limit_is_16_tokens(either: Client) -> None:
    assert sum(event["num_output_tokens"] for event in either.stream().events) == 16


def test_a_null_limit_is_the_rest_of_the_context(own: Client) -> None:
    events = own.stream(sampling={"max_tokens": None, "ignore_eos": True}).events
    assert sum(event["num_output_tokens"] for event in events) == 4096 - events[0]["num_input_tokens"]
    assert events[-1]["finish_reason"] == "length"


@pytest.mark.parametrize("as_text", [False, True])
def test_structured_outputs_as_object_and_as_text(own: Client, as_text: bool) -> None:
    constraint = {"json": SCHEMA}
    sampling = {"max_tokens": None, "structured_outputs": json.dumps(constraint) if as_text else constraint}
    assert isinstance(json.loads(own.stream(sampling=sampling).text)["a"], int)


def test_token_ids_as_prompt(own: Client) -> None:
    by_text = own.stream("Hello there")
    ids = own.engine.requests()[-1]["first_prompt_token_ids"]
    by_ids = own.stream(input_ids=ids, text_input=None)
    assert by_ids.text == by_text.text
    assert by_ids.events[0]["num_input_tokens"] == len(ids)


def test_special_tokens_can_be_left_out(own: Client) -> None:
    with_bos, without = own.stream(), own.stream(add_special_tokens=False)
    assert with_bos.events[0]["num_input_tokens"] == without.events[0]["num_input_tokens"] + 1


def test_logit_bias_works(own: Client) -> None:
    assert own.stream(sampling={"logit_bias": {"5": 1.5}}).status == 200


def test_null_counts_as_absent(own: Client) -> None:
    assert own.stream(sampling={"temperature": None, "stop": None, "seed": None}).text == own.stream().text


@pytest.mark.parametrize(
    ("sampling", "begins"),
    [
        ({"guided_json": {}}, "INVALID_ARG sampling_parameters.guided_json: "),
        ({"guided_decoding": {}}, "INVALID_ARG sampling_parameters.guided_decoding: "),
        ({"best_of": 2}, "INVALID_ARG sampling_parameters.best_of: "),
        ({"temperature": 2.5}, "INVALID_ARG sampling_parameters.temperature: must be a number from 0 to 2, not 2.5."),
        ({"temperature": "hot"}, "INVALID_ARG sampling_parameters.temperature: "),
        ({"ignore_eos": "false"}, "INVALID_ARG sampling_parameters.ignore_eos: must be true or false"),
        ({"top_p": 0}, "INVALID_ARG sampling_parameters.top_p: "),
        ({"max_tokens": 0}, "INVALID_ARG sampling_parameters.max_tokens: "),
        ({"max_tokens": True}, "INVALID_ARG sampling_parameters.max_tokens: "),
        ({"min_tokens": 5, "max_tokens": 4}, "INVALID_ARG sampling_parameters.min_tokens: "),
        ({"stop": ""}, "INVALID_ARG sampling_parameters.stop: "),
        ({"n": 2}, "INVALID_ARG sampling_parameters.n: "),
        ({"lora_name": "x"}, "INVALID_ARG sampling_parameters.lora_name: not supported yet."),
        (
            {"prompt_logprobs": 1},
            "INVALID_ARG sampling_parameters.prompt_logprobs: needs return_prompt_logprobs, which is not true.",
        ),
        ({"watermarking": True}, "INVALID_ARG sampling_parameters.watermarking: "),
        (
            {"repetition_detection": {"max_pattern_size": 2}},
            "INVALID_ARG sampling_parameters.repetition_detection: min_count must be >= 2",
        ),
        (
            {"repetition_detection": {"size": 2}},
            "INVALID_ARG sampling_parameters.repetition_detection: must be an object",
        ),
        (
            {"logprobs": 3, "logprob_token_ids": [1]},
            "INVALID_ARG sampling_parameters.logprob_token_ids: When both logprobs and logprob_token_ids are set",
        ),
        (
            {"logprobs": 21},
            "INVALID_ARG sampling_parameters.logprobs: Requested sample logprobs of 21, which is greater",
        ),
        ({"logit_bias": {"x": 1}}, "INVALID_ARG sampling_parameters.logit_bias: "),
        ({"structured_outputs": {}}, "INVALID_ARG sampling_parameters.structured_outputs: "),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "INVALID_ARG sampling_parameters.structured_outputs: "),
        ({"structured_outputs": {"choice": []}}, "INVALID_ARG sampling_parameters.structured_outputs: "),
        (
            {"structured_outputs": {"json": {"type": "nope"}}},
            "INVALID_ARG sampling_parameters.structured_outputs: Grammar error: Invalid type: nope",
        ),
        ([], "INVALID_ARG sampling_parameters: "),
    ],
)
def test_our_refusals_name_the_place(own: Client, sampling: Any, begins: str) -> None:
    text = json.dumps(sampling)
    assert error_of(own.stream(send_admission=True, sampling_parameters=text)).startswith(begins)


@pytest.mark.parametrize(
    ("inputs", "begins"),
    [
        ({"image": ["x"]}, "INVALID_ARG image: not supported yet."),
        ({"embedding_request": "{}"}, "INVALID_ARG embedding_request: not supported yet."),
        ({"text_input": None}, "INVALID_ARG text_input: "),
        ({"input_ids": [1]}, "INVALID_ARG input_ids: "),
        ({"text_input": "", "add_special_tokens": False}, "INVALID_ARG prompt: The decoder prompt cannot be empty"),
        ({"exclude_input_in_output": False}, "INVALID_ARG exclude_input_in_output: "),
        ({"sampling_parameters": "{"}, "INVALID_ARG sampling_parameters: is not valid JSON: "),
        ({"priority": 1}, "INVALID_ARG priority: must be 0 or absent: the engine's scheduling_policy is fcfs."),
        ({"truncate_prompt_tokens": 0}, "INVALID_ARG truncate_prompt_tokens: must be -1 or at least 1, not 0."),
        ({"truncate_prompt_tokens": -2}, "INVALID_ARG truncate_prompt_tokens: "),
        (
            {"truncate_prompt_tokens": 4097},
            "INVALID_ARG truncate_prompt_tokens: truncate_prompt_tokens=4097 cannot be greater than max_total_tokens",
        ),
        ({"truncation_side": "left"}, "INVALID_ARG truncation_side: needs truncate_prompt_tokens, which is absent."),
        ({"truncate_prompt_tokens": 2, "truncation_side": "middle"}, "INVALID_ARG truncation_side: "),
        ({"cache_salt": ""}, "INVALID_ARG cache_salt: "),
        ({"cache_salt": "x" * 129}, "INVALID_ARG cache_salt: "),
        ({"cache_salt": "a/b"}, "INVALID_ARG cache_salt: "),
        ({"session_id": ""}, "INVALID_ARG session_id: "),
        ({"session_id": "x" * 1025}, "INVALID_ARG session_id: "),
        (
            {
                "return_prompt_logprobs": True,
                "sampling_parameters": '{"prompt_logprobs": 1, "skip_reading_prefix_cache": false}',
            },
            "INVALID_ARG sampling_parameters.skip_reading_prefix_cache: ",
        ),
        (
            {"return_prompt_logprobs": True, "sampling_parameters": '{"prompt_logprobs": 21}'},
            "INVALID_ARG sampling_parameters.prompt_logprobs: Requested prompt logprobs of 21",
        ),
    ],
)
def test_our_refusals_of_inputs(own: Client, inputs: dict[str, Any], begins: str) -> None:
    assert error_of(own.stream(**inputs)).startswith(begins)


def test_a_priority_beyond_32_bits_is_another_one(own: Client) -> None:
    """Triton's JSON takes it so; the real server was seen to."""
    assert own.stream(priority=2**32).status == 200
    assert error_of(own.stream(priority=2**32 + 1)).startswith("INVALID_ARG priority: ")
    assert json.loads(own.ask("POST", "/v2/models/m/generate", {"text_input": "a", "priority": 2**63}).body) == {
        "error": "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer"
    }


def test_a_priority_where_the_engine_schedules_by_it() -> None:
    with running_mock_engine(models=("m",), token_interval_ms=0, scheduling_policy="priority") as engine:
        assert Client(engine).stream(priority=-3).status == 200
        (request,) = engine.requests()
    assert request["inputs"]["priority"] == -3


@pytest.fixture(scope="module")
def thinker() -> Iterator[Client]:
    with running_mock_engine(models=("m",), token_interval_ms=0, reasoning_parser="deepseek_r1") as engine:
        yield Client(engine)


CONSTRAINED = {"max_tokens": None, "structured_outputs": {"json": SCHEMA}}


@pytest.mark.parametrize(
    ("prompt", "inputs"),
    [
        ("Hello<think>", {"reasoning_ended": False}),
        ("<think></think>", {"reasoning_ended": False}),
        ("Hello<think>", {}),
        ("Hello", {}),
        ("<think></think>Hello<think>", {}),
    ],
)
def test_a_constraint_begins_behind_the_reasoning(thinker: Client, prompt: str, inputs: dict[str, bool]) -> None:
    answer = thinker.stream(prompt, CONSTRAINED, **inputs)
    thinking, end, rest = answer.text.partition("</think>")
    assert end
    assert len(thinking.split()) >= 5
    assert isinstance(json.loads(rest)["a"], int)
    assert answer.events[-1]["finish_reason"] == "stop"
    assert thinker.engine.requests()[-1]["inputs"].get("reasoning_ended") == inputs.get("reasoning_ended")
    # The thinking counts.
    assert thinking.startswith(thinker.stream(prompt, CONSTRAINED | {"max_tokens": 3}, **inputs).text)


@pytest.mark.parametrize(
    ("prompt", "inputs"), [("Hello<think>", {"reasoning_ended": True}), ("<think></think>", {}), ("</think>", {})]
)
def test_a_constraint_holds_from_the_first_token(thinker: Client, prompt: str, inputs: dict[str, bool]) -> None:
    assert isinstance(json.loads(thinker.stream(prompt, CONSTRAINED, **inputs).text)["a"], int)


def test_where_the_reasoning_ends_matters_to_a_constraint_alone(thinker: Client) -> None:
    assert thinker.stream(reasoning_ended=False).text == thinker.stream().text


def test_an_engine_without_a_reasoning_parser(own: Client) -> None:
    assert error_of(own.stream(sampling=CONSTRAINED, reasoning_ended=False)).startswith(
        "INVALID_ARG reasoning_ended: must be true or absent with a structured output: "
    )
    for inputs in ({}, {"reasoning_ended": True}):
        assert isinstance(json.loads(own.stream("Hello<think>", CONSTRAINED, **inputs).text)["a"], int)
    assert own.stream(reasoning_ended=False).status == 200


def test_an_older_backend_lacks_inputs_and_parameters() -> None:
    with running_mock_engine(without=["priority", "min_p"], models=["m"]) as engine:
        client = Client(engine)
        metadata = json.loads(client.ask("GET", "/v2/models/m").content)
        names = {tensor["name"] for tensor in metadata["inputs"]}
        assert "priority" not in names
        assert "session_id" in names
        # As any key that is no input of the model.
        assert client.stream(priority=5).status == 200
        assert error_of(client.stream(sampling={"min_p": 0.5})) == (
            "INVALID_ARG sampling_parameters.min_p: is not a sampling parameter of this backend."
        )


@pytest.mark.parametrize(
    ("tokens", "side", "of_text", "of_ids"),
    [
        (3, "right", "first", "first"),
        (3, "left", "last", "last"),
        # Where the tokenizer cuts by itself, it keeps its BOS.
        (3, None, "BOS and last", "last"),
        (99, None, "all", "all"),
        (-1, "left", "all", "all"),
    ],
)
def test_a_prompt_is_truncated(own: Client, tokens: int, side: str | None, of_text: str, of_ids: str) -> None:
    def ids_of(**inputs: Any) -> list[int]:
        own.stream("One two three four.", **inputs)
        ids: list[int] = own.engine.requests()[-1]["first_prompt_token_ids"]
        return ids

    ids = ids_of()
    kept = {"last": ids[-3:], "first": ids[:3], "BOS and last": [ids[0], *ids[-2:]], "all": ids}
    how = {"truncate_prompt_tokens": tokens, "truncation_side": side}
    assert ids_of(**how) == kept[of_text]
    assert ids_of(**how, text_input=None, input_ids=ids) == kept[of_ids]


def test_a_prompt_is_truncated_so_that_one_token_fits(own: Client) -> None:
    (event,) = own.stream("word " * 3000, truncate_prompt_tokens=-1).events
    assert (event["num_input_tokens"], event["num_output_tokens"]) == (4095, 1)


def test_the_new_outputs(own: Client) -> None:
    asked = dict.fromkeys(
        ("return_prompt_logprobs", "return_token_ids", "return_prompt_token_ids", "return_stop_reason"), True
    )
    own.engine.add_fault(text="abcdef end", next=1)
    admission, *events = own.stream(
        "Hi", {"prompt_logprobs": 1, "stop": "end"}, send_admission=True, add_special_tokens=False, **asked
    ).events
    names = [flag.removeprefix("return_") for flag in asked]
    (ids,) = [event["prompt_token_ids"] for event in (admission, *events) if event["prompt_token_ids"] != "null"]
    assert ids == admission["prompt_token_ids"]
    assert [admission[name] for name in names] == ["null", "[]", ids, "null"]
    assert len(json.loads(events[0]["prompt_logprobs"])) == len(json.loads(ids))
    assert {event["prompt_logprobs"] for event in events[1:]} == {"null"}
    assert [len(json.loads(event["token_ids"])) for event in events] == [1] * len(events)
    assert [json.loads(event["stop_reason"]) for event in events] == [None] * (len(events) - 1) + ["end"]
    assert own.stream("Hi", return_prompt_logprobs=True).events[0]["prompt_logprobs"] == "null"


def test_what_arrived_is_remembered_exactly(own: Client) -> None:
    own.stream(id="chatcmpl-1-0", input_ids=[5], text_input=None, cache_salt="s", session_id="u", unknown=7)
    (request,) = own.engine.requests()
    assert request["inputs"].items() >= {"cache_salt": "s", "session_id": "u"}.items()
    assert request["inputs"]["input_ids"] == [5]
    assert request["request_id"] == "chatcmpl-1-0"
    assert request["parameters"] == {"unknown": 7}


# The stock backend


@pytest.mark.parametrize(
    "sampling",
    [
        {"guided_json": {}},
        {"guided_decoding": {}},
        {"best_of": 2},
        {"temperature": None},
        {"max_tokens": None},
        {"seed": None},
        {"ignore_eos": [], "min_tokens": {}},
        {"max_tokens": 0},
        {"stop": ""},
        {"min_tokens": 5, "max_tokens": 4},
        {"min_tokens": 17},
        {"temperature": 2.5},
        {"top_p": 0},
        {"structured_outputs": {"json": SCHEMA}},
        {"structured_outputs": "{}"},
        {"structured_outputs": json.dumps({"json": SCHEMA, "regex": "a"})},
        [],
    ],
    ids=json.dumps,
)
def test_what_breaks_the_stock_backend(stock: Client, sampling: Any) -> None:
    assert error_of(stock.stream(sampling_parameters=json.dumps(sampling))) == NO_PARAMETERS


def test_stock_takes_structured_outputs_as_text(stock: Client) -> None:
    sampling = {"max_tokens": 100, "structured_outputs": json.dumps({"json": SCHEMA})}
    assert isinstance(json.loads(stock.stream(sampling=sampling).text)["a"], int)


def test_stock_casts(stock: Client) -> None:
    assert stock.stream(sampling={"temperature": "0.5", "max_tokens": "7"}).text == (
        stock.stream(sampling={"temperature": 0.5, "max_tokens": 7}).text
    )
    # The string "false" is true.
    events = stock.stream(sampling={"ignore_eos": "false", "max_tokens": 1000}).events
    assert (len(events), events[-1]["finish_reason"]) == (1000, "length")


@pytest.mark.parametrize(
    ("sampling", "error"),
    [
        ({"logit_bias": {"5": 1.0}}, "'<' not supported between instances of 'str' and 'int'"),
        ({"logprobs": 21}, "Requested sample logprobs of 21, which is greater than max allowed: 20"),
        ({"structured_outputs": json.dumps({"json": {"type": "nope"}})}, "Grammar error: Invalid type: nope"),
    ],
)
def test_stock_errors_all_begin_alike(stock: Client, sampling: Any, error: str) -> None:
    assert error_of(stock.stream(sampling=sampling)) == f"Error generating stream: {error}"


def test_stock_refuses_to_stream_the_prompt(stock: Client) -> None:
    error = error_of(stock.stream(exclude_input_in_output=False))
    assert error == "Error generating stream: When streaming, `exclude_input_in_output` = False is not allowed."


def test_stock_sends_no_admission(stock: Client) -> None:
    # To it the key is an unknown request parameter.
    assert stock.stream(send_admission=True).events[0]["num_output_tokens"] == 1


def test_stock_has_only_the_stock_inputs(stock: Client) -> None:
    metadata = json.loads(stock.ask("GET", "/v2/models/m").body)
    assert [tensor["name"] for tensor in metadata["inputs"]] == [
        "text_input",
        "image",
        "stream",
        "sampling_parameters",
        "exclude_input_in_output",
        "return_finish_reason",
        "return_cumulative_logprob",
        "return_logprobs",
        "return_num_input_tokens",
        "return_num_output_tokens",
        "embedding_request",
    ]
    stock.stream(priority=1, cache_salt="s", return_token_ids=True)
    (request,) = stock.engine.requests()
    assert request["parameters"] == {"priority": 1, "cache_salt": "s", "return_token_ids": True}
    assert not request["inputs"].keys() & request["parameters"].keys()


# Prompts that are too long


def test_a_prompt_that_is_too_long(either: Client) -> None:
    begin = {True: "INVALID_ARG prompt: ", False: "Error generating stream: "}[
        "send_admission" in str(either.ask("GET", "/v2/models/m").body)
    ]
    assert error_of(either.stream("word " * 2400)) == (
        f"{begin}This model's maximum context length is 4096 tokens. However, your prompt contains at least 4097 input "
        "tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input prompt."
    )
    assert error_of(either.stream("word " * 30000)).startswith(
        f"{begin}This model's maximum context length is 4096 tokens. However, your prompt contains 150000 characters"
    )
    assert error_of(either.stream("a" + " a" * 4094)).startswith(
        f"{begin}The decoder prompt (length 4096) plus the number of"
    )
    assert either.stream("a" + " a" * 4093).events[-1]["finish_reason"] == "length"


# Model repositories


def test_models_of_a_repository(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, "<s>": 1, "hello": 2, "world": 3}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    for name, engine_args in (("m", {"model": "weights", "max_model_len": 20}), ("bare", {"model": "some/name"})):
        version = tmp_path / name / "1"
        version.mkdir(parents=True)
        (tmp_path / name / "config.pbtxt").write_text('backend: "vllm"')
        (version / "model.json").write_text(json.dumps(engine_args))
    (tmp_path / "m" / "1" / "weights").mkdir()
    tokenizer.save(str(tmp_path / "m" / "1" / "weights" / "tokenizer.json"))

    with running_mock_engine(model_repository=tmp_path, models=("m",), token_interval_ms=0) as engine:
        client = Client(engine)
        assert json.loads(client.ask("POST", "/v2/repository/index").body) == [
            {"name": "bare"},
            {"name": "m", "version": "1", "state": "READY"},
        ]
        answer = client.stream("hello world", {"max_tokens": None, "ignore_eos": True})
        (request,) = engine.requests()
        assert request["first_prompt_token_ids"] == [1, 2, 3]
        assert answer.events[0]["num_input_tokens"] == 3
        assert sum(event["num_output_tokens"] for event in answer.events) == 17
        assert client.stream("hello " * 20).status == 400
        assert client.stream("hello " * 20 + "world", truncate_prompt_tokens=3).status == 200
        assert engine.requests()[-1]["first_prompt_token_ids"] == [1, 2, 3]


def test_a_model_that_the_repository_lacks(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with (
        pytest.raises(MockEngineError, match="exit code 2"),
        running_mock_engine(model_repository=tmp_path, models=("nope",)),
    ):
        pass
    assert capfd.readouterr().err == "the model repository has no model 'nope', it has: none.\n"
