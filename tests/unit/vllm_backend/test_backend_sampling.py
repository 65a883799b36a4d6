"""Every rule of `sampling_parameters`: what is taken, how it reads, and the place and reason of each refusal."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vllm_backend.contract import InvalidArgument
from vllm_backend.sampling import constraint_kind, parse_sampling


def refusal(values: Any) -> str:
    text = values if isinstance(values, str) else json.dumps(values)
    with pytest.raises(InvalidArgument) as caught:
        parse_sampling(text)
    return caught.value.text


@pytest.mark.parametrize(
    ("key", "value", "argument"),
    [
        ("temperature", 0, 0.0),
        ("temperature", 2, 2.0),
        ("temperature", "0.5", 0.5),
        ("top_p", 1, 1.0),
        ("top_p", 1e-9, 1e-9),
        ("top_k", -1, -1),
        ("top_k", 40.0, 40),
        ("top_k", "7", 7),
        ("min_p", 1, 1.0),
        ("presence_penalty", -2, -2.0),
        ("frequency_penalty", 2, 2.0),
        ("repetition_penalty", 1.3, 1.3),
        ("seed", -1, -1),
        ("seed", 2**63 - 1, 2**63 - 1),
        ("max_tokens", 1, 1),
        ("max_tokens", None, None),
        ("min_tokens", 0, 0),
        ("n", 1, 1),
        ("stop", "END", ["END"]),
        ("stop", ["a", "b"], ["a", "b"]),
        ("stop", [], []),
        ("stop_token_ids", [0, 5], [0, 5]),
        ("stop_token_ids", [], []),
        ("allowed_token_ids", [3], [3]),
        ("bad_words", ["x"], ["x"]),
        ("logit_bias", {"5": -100, "17": 1.5}, {5: -100.0, 17: 1.5}),
        ("logprobs", 0, 0),
        ("logprobs", -1, -1),
        ("logprob_token_ids", [1, 2], [1, 2]),
        ("prompt_logprobs", 0, 0),
        ("prompt_logprobs", -1, -1),
        ("watermarking", True, True),
        ("ignore_eos", True, True),
        ("ignore_eos", 0, False),
        ("include_stop_str_in_output", True, True),
        ("detokenize", False, False),
        ("skip_special_tokens", False, False),
        ("spaces_between_special_tokens", False, False),
        ("skip_reading_prefix_cache", True, True),
        ("stream_interval", 4, 4),
        ("thinking_token_budget", -1, -1),
        ("repetition_detection", {"max_pattern_size": 3, "min_count": 2}, {"max_pattern_size": 3, "min_count": 2}),
        ("extra_args", {"a": [1, {"b": None}]}, {"a": [1, {"b": None}]}),
        ("structured_outputs", {"json": {"type": "object"}}, {"json": {"type": "object"}}),
        ("structured_outputs", {"json": '{"type": "object"}'}, {"json": '{"type": "object"}'}),
        ("structured_outputs", '{"choice": ["yes", "no"]}', {"choice": ["yes", "no"]}),
        ("structured_outputs", {"json": True}, {"json": "true"}),
        ("structured_outputs", {"regex": ""}, {"regex": ""}),
        ("structured_outputs", {"grammar": "root ::= 'a'", "json": None}, {"grammar": "root ::= 'a'"}),
        ("structured_outputs", {"json_object": True, "disable_any_whitespace": False}, {"json_object": True}),
        ("structured_outputs", {"structural_tag": "{}"}, {"structural_tag": "{}"}),
    ],
)
def test_values_are_read(key: str, value: Any, argument: Any) -> None:
    read = parse_sampling(json.dumps({key: value}))
    assert read == {key: argument}
    assert type(read[key]) is type(argument)


def test_a_null_is_as_if_absent_but_for_max_tokens() -> None:
    nulls = {"temperature": None, "stop": None, "seed": None, "structured_outputs": None, "max_tokens": None}
    assert parse_sampling(json.dumps(nulls)) == {"max_tokens": None}


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("temperature", 2.1, "must be a number from 0 to 2, not 2.1."),
        ("temperature", -0.1, "must be a number from 0 to 2, not -0.1."),
        ("temperature", "warm", 'must be a number from 0 to 2, not "warm".'),
        ("temperature", "nan", 'must be a number from 0 to 2, not "nan".'),
        ("temperature", True, "must be a number from 0 to 2, not true."),
        ("temperature", [1], "must be a number from 0 to 2, not [1]."),
        ("top_p", 0, "must be a number above 0 and at most 1, not 0."),
        ("top_p", 1.5, "must be a number above 0 and at most 1, not 1.5."),
        ("top_k", -2, "must be an integer of at least -1, not -2."),
        ("top_k", 1.5, "must be an integer of at least -1, not 1.5."),
        ("top_k", False, "must be an integer of at least -1, not false."),
        ("min_p", 2, "must be a number from 0 to 1, not 2."),
        ("presence_penalty", 2.5, "must be a number from -2 to 2, not 2.5."),
        ("frequency_penalty", -3, "must be a number from -2 to 2, not -3."),
        ("repetition_penalty", 0, "must be a number above 0, not 0."),
        (
            "seed",
            2**63,
            "must be an integer from -9223372036854775808 to 9223372036854775807, not 9223372036854775808.",
        ),
        ("max_tokens", 0, "must be an integer of at least 1, not 0."),
        ("max_tokens", "many", 'must be an integer of at least 1, not "many".'),
        ("min_tokens", -1, "must be an integer of at least 0, not -1."),
        ("n", 2, "must be 1: a request has one answer; send one request for each."),
        ("stop", "", 'must hold strings that are not empty, not "".'),
        ("stop", ["a", ""], 'must hold strings that are not empty, not "".'),
        ("stop", 5, "must be a string or a list of strings, not 5."),
        ("stop_token_ids", [1, "2"], 'must hold token ids, not "2".'),
        ("stop_token_ids", [-1], "must hold token ids, not -1."),
        ("stop_token_ids", 3, "must be a list of at least one token id, not 3."),
        ("allowed_token_ids", [], "must be a list of at least one token id, not []."),
        ("allowed_token_ids", [True], "must hold token ids, not true."),
        ("bad_words", [""], 'must hold strings that are not empty, not "".'),
        ("bad_words", "x", 'must be a list of strings, not "x".'),
        ("logit_bias", [1], "must be an object of token ids and biases, not [1]."),
        ("logit_bias", {"a": 1}, 'must have token ids as keys, not "a".'),
        ("logit_bias", {"-1": 1}, 'must have token ids as keys, not "-1".'),
        ("logit_bias", {" 1": 1}, 'must have token ids as keys, not " 1".'),
        ("logit_bias", {"1_0": 1}, 'must have token ids as keys, not "1_0".'),
        ("logit_bias", {"5": 101}, "the bias of token 5 must be a number from -100 to 100, not 101."),
        ("logprobs", -2, "must be an integer of at least -1, not -2."),
        ("logprobs", True, "must be an integer of at least -1, not true."),
        ("ignore_eos", "false", 'must be true or false, not "false".'),
        ("skip_special_tokens", 2, "must be true or false, not 2."),
        ("stream_interval", 0, "must be an integer of at least 1, not 0."),
        ("thinking_token_budget", -2, "must be an integer of at least -1, not -2."),
        (
            "repetition_detection",
            {"size": 3},
            'must be an object with the keys max_pattern_size, min_pattern_size, min_count, not {"size": 3}.',
        ),
        (
            "repetition_detection",
            {"min_count": -1},
            "its min_count must be an integer from 0 to 2147483647, not -1.",
        ),
        ("extra_args", "x", 'must be an object, not "x".'),
        (
            "extra_args",
            {"a": [2**64]},
            "must hold integers of at most 64 bits, not 18446744073709551616.",
        ),
        ("prompt_logprobs", -2, "must be an integer of at least -1, not -2."),
        ("watermarking", "yes", 'must be true or false, not "yes".'),
        ("lora_name", "x", "not supported yet."),
        ("guided_json", {}, "is not a sampling parameter of this backend."),
        ("best_of", 2, "is not a sampling parameter of this backend."),
        ("output_kind", 1, "is not a sampling parameter of this backend."),
        ("_backend", None, "is not a sampling parameter of this backend."),
    ],
)
def test_a_wrong_value_is_refused_by_its_key(key: str, value: Any, reason: str) -> None:
    assert refusal({key: value}) == f"INVALID_ARG sampling_parameters.{key}: {reason}"


ONE_OF = "json, regex, choice, grammar, json_object, structural_tag"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([], "must be an object, or the JSON text of one, not []."),
        ("[]", "must be an object, or the JSON text of one, not []."),
        ({}, f"must hold exactly one of {ONE_OF}: none is given."),
        ({"json": None}, f"must hold exactly one of {ONE_OF}: none is given."),
        ({"json": {}, "regex": "a"}, f"must hold exactly one of {ONE_OF}: not json and regex."),
        ({"jsonschema": {}}, f'has no key "jsonschema": give one of {ONE_OF}.'),
        ({"json": 5}, "json must be a JSON schema, not 5."),
        ({"json": " "}, 'json must be a JSON schema, not " ".'),
        ({"json_object": False}, "json_object must be true; leave structured_outputs out for free text."),
        ({"choice": []}, "choice must be a list of at least one string, not []."),
        ({"choice": ["a", 1]}, 'choice must be a list of at least one string, not ["a", 1].'),
        ({"regex": 1}, "regex must be a text that is not empty, not 1."),
        ({"grammar": " "}, 'grammar must be a text that is not empty, not " ".'),
        ({"structural_tag": {}}, "structural_tag must be a text that is not empty, not {}."),
        (
            {"regex": "a", "whitespace_pattern": " *"},
            "whitespace_pattern cannot be set for one request: set it in model.json's structured_outputs_config.",
        ),
    ],
)
def test_a_wrong_constraint_is_refused(value: Any, reason: str) -> None:
    assert refusal({"structured_outputs": value}) == f"INVALID_ARG sampling_parameters.structured_outputs: {reason}"


def test_a_constraint_that_is_not_json() -> None:
    assert refusal({"structured_outputs": "{"}).startswith(
        "INVALID_ARG sampling_parameters.structured_outputs: is not valid JSON: "
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is not valid JSON: "),
        ("{", "is not valid JSON: "),
        ('{"temperature": NaN}', "is not valid JSON: NaN is no JSON number."),
        ('{"temperature": -Infinity}', "is not valid JSON: -Infinity is no JSON number."),
        ("[]", "must be a JSON object, not []."),
        ("null", "must be a JSON object, not null."),
        ('{"stop": "\\ud800"}', "holds half of a surrogate pair."),
        ("[" * 100_000, "is nested too deeply."),
    ],
)
def test_what_is_no_json_object(text: str, reason: str) -> None:
    assert refusal(text).startswith(f"INVALID_ARG sampling_parameters: {reason}")


def test_a_whole_surrogate_pair_is_a_character() -> None:
    assert parse_sampling('{"stop": "\\ud83d\\ude00"}') == {"stop": ["😀"]}


def test_min_tokens_beyond_max_tokens() -> None:
    place = "INVALID_ARG sampling_parameters.min_tokens: "
    assert refusal({"min_tokens": 6, "max_tokens": 5}) == f"{place}must be at most max_tokens, which is 5, not 6."
    assert refusal({"min_tokens": 17}) == f"{place}must be at most max_tokens, which is 16, not 17."
    assert parse_sampling('{"min_tokens": 17, "max_tokens": null}') == {"min_tokens": 17, "max_tokens": None}


def test_stop_needs_detokenize() -> None:
    assert refusal({"stop": "a", "detokenize": False}) == (
        "INVALID_ARG sampling_parameters.stop: needs detokenize, which is false."
    )


def test_a_long_value_is_shown_in_part() -> None:
    assert len(refusal({"ignore_eos": "x" * 10_000})) < 200


def test_the_kind_of_a_constraint() -> None:
    assert constraint_kind(parse_sampling('{"structured_outputs": {"regex": "a"}}')) == "regex"
    assert constraint_kind({}) is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
keys = st.sampled_from(
    ["temperature", "top_k", "seed", "stop", "logit_bias", "structured_outputs", "extra_args", "ignore_eos", "other"]
)


# The first draw builds the strategy, which takes long on a busy machine.
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(keys, json_values, max_size=4))
def test_whatever_comes_is_read_or_refused(values: dict[str, Any]) -> None:
    text = json.dumps(values)
    try:
        parse_sampling(text)
    except InvalidArgument:
        said = refusal(text)
        assert said.startswith("INVALID_ARG sampling_parameters")
        assert "\n" not in said
