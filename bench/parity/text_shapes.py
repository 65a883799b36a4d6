"""The requests for text completions. Pure."""

from bench.parity.sample import Ids, Sample
from bench.parity.shape import (
    ABSENT_FIELD,
    CITY,
    COMPLETIONS,
    COUNTED,
    EMOJI,
    ENOUGH,
    SNOW,
    STREAM,
    Body,
    Group,
    Shape,
    shapes_of,
)

_BASE: Body = {"prompt": SNOW}


def text_shapes(sample: Sample) -> list[Shape]:
    """None where there are no text completions."""
    if sample.text is None:
        return []
    groups: dict[Group, dict[str, Body]] = {
        Group.REQUESTS: _requests() | (_requests_of_ids(sample.ids) if sample.ids is not None else {}),
        Group.SAMPLING: {
            "stop string": {"stop": sample.text[5:8]},
            "n": {"n": 2, "prompt": [SNOW, "Rain"], "max_tokens": 6},
            "n with a seed": {"n": 2, "seed": 3, "temperature": 1},
        },
        Group.STREAMING: _streaming(),
        Group.STRUCTURED: {
            "response_format": {
                "response_format": {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}},
                "max_tokens": ENOUGH,
            },
        },
        Group.LOGPROBS: _logprobs(sample.text),
    }
    asked = [shape for group, requests in groups.items() for shape in shapes_of(group, COMPLETIONS, _BASE, requests)]
    refused = shapes_of(Group.ERRORS, COMPLETIONS, _BASE, _errors(sample), refused=True)
    # A tokenizer that adds a BOS makes it a prompt.
    empty = shapes_of(Group.ERRORS, COMPLETIONS, _BASE, {"empty prompt": {"prompt": ""}}, refused=None)
    return [*asked, *refused, *empty]


def _requests() -> dict[str, Body]:
    return {
        "plain": {},
        "limit by default": {"max_tokens": ABSENT_FIELD},
        "several prompts": {"prompt": [SNOW, "Rain"]},
        "echo": {"echo": True},
        "echo with token ids": {"echo": True, "return_token_ids": True},
        "echo alone": {"echo": True, "max_tokens": 0},
        "return_token_ids": {"return_token_ids": True, "prompt": [SNOW, "Rain"]},
        "no special tokens": {"add_special_tokens": False},
        "truncated prompt": {"truncate_prompt_tokens": 3},
    }


def _requests_of_ids(ids: Ids) -> dict[str, Body]:
    return {
        "token ids": {"prompt": ids.snow},
        "several prompts as token ids": {"prompt": [ids.rain, ids.snow]},
        "echo of token ids": {"echo": True, "prompt": ids.snow},
    }


def _streaming() -> dict[str, Body]:
    return {
        "stream": STREAM,
        "stream with usage": COUNTED,
        "several prompts, streamed": {**COUNTED, "prompt": [SNOW, "Rain"], "n": 2, "max_tokens": 6},
        "echo, streamed": {"echo": True, **COUNTED},
        "return_token_ids, streamed": {"return_token_ids": True, **STREAM},
    }


def _logprobs(said: str) -> dict[str, Body]:
    return {
        "logprobs 0": {"logprobs": 0},
        "logprobs 1": {"logprobs": 1},
        "logprobs 5, streamed": {"logprobs": 5, **COUNTED},
        "logprobs of parts of characters": {
            "logprobs": 1,
            "structured_outputs": {"choice": [EMOJI]},
            "max_tokens": ENOUGH,
        },
        "logprobs with a stop string, streamed": {"logprobs": 1, "stop": said[5:8], **COUNTED},
        "logprobs of special tokens": {"logprobs": 0, "prompt": "The end.", "ignore_eos": True},
        "logprobs as token ids": {"logprobs": 1, "return_tokens_as_token_ids": True},
        "prompt_logprobs": {"prompt_logprobs": 1, "max_tokens": 4},
        "echo with logprobs": {"echo": True, "logprobs": 1},
        "echo with logprobs, streamed": {"echo": True, "logprobs": 1, **COUNTED},
        "echo alone with logprobs": {"echo": True, "max_tokens": 0, "logprobs": 2},
        "echo of several prompts": {"echo": True, "prompt": [SNOW, "Rain"], "logprobs": 0, "max_tokens": 4},
        "echo with logprobs of parts of characters": {"echo": True, "prompt": EMOJI, "logprobs": 1},
    }


def _errors(sample: Sample) -> dict[str, Body]:
    requests: dict[str, Body] = {
        "unknown model": {"model": "no such model"},
        "suffix": {"suffix": "the end"},
        "best_of": {"best_of": 2},
        "no prompt": {"prompt": ABSENT_FIELD},
        "max_tokens 0": {"max_tokens": 0},
        "logprobs below 0": {"logprobs": -5},
    }
    if sample.ids is not None:
        requests["unknown token"] = {"prompt": [sample.ids.unknown]}
        if sample.max_model_len is not None:
            requests["prompt too long"] = {"prompt": [sample.ids.snow[0]] * (sample.max_model_len + 1)}
    return requests
