"""The requests for chat completions, tools left out. Pure."""

from bench.parity.sample import Ids, Sample
from bench.parity.shape import (
    ABSENT_FIELD,
    CHAT,
    CITY,
    COUNTED,
    EMOJI,
    ENOUGH,
    FRANCE,
    SEA,
    STREAM,
    Body,
    Group,
    Shape,
    shapes_of,
    user,
)

_BASE: Body = {"messages": user(SEA)}
_LOGPROBS: Body = {"logprobs": True}
_CAPITAL: Body = {
    "messages": user("The capital of France, as JSON."),
    "response_format": {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}},
    "max_tokens": ENOUGH,
}
_CONTINUED: Body = {
    "messages": [*user(FRANCE), {"role": "assistant", "content": "The capital of"}],
    "continue_final_message": True,
    "add_generation_prompt": False,
}


def chat_shapes(sample: Sample) -> list[Shape]:
    groups = {
        Group.REQUESTS: _requests(sample),
        Group.SAMPLING: _sampling(sample),
        Group.STREAMING: _streaming(sample),
        Group.STRUCTURED: _structured(),
        Group.LOGPROBS: _logprobs(sample),
    }
    if sample.ids is not None:
        groups[Group.SAMPLING] |= _sampling_of_ids(sample.ids)
    asked = [shape for group, requests in groups.items() for shape in shapes_of(group, CHAT, _BASE, requests)]
    return [*asked, *shapes_of(Group.ERRORS, CHAT, _BASE, _errors(sample), refused=True), *_broken()]


def _requests(sample: Sample) -> dict[str, Body]:
    requests: dict[str, Body] = {
        "plain": {},
        "ends by itself": {"messages": user(FRANCE)},
        "system and developer": {
            "messages": [
                {"role": "system", "content": "You are terse."},
                {"role": "developer", "content": "Answer in one word."},
                *user(FRANCE),
            ]
        },
        "several turns": {
            "messages": [*user(FRANCE), {"role": "assistant", "content": "Paris."}, *user("And of Spain?")]
        },
        "content in parts": {
            "messages": user([{"type": "text", "text": "What is the capital"}, {"type": "text", "text": "of Spain?"}])
        },
        "emoji": {"messages": user(f"Repeat: {EMOJI}")},
        "Chinese": {"messages": user("用一句话介绍北京的历史。")},
        "Japanese": {"messages": user("日本語で短く挨拶してください。")},
        "Hindi": {"messages": user("नमस्ते, आप कैसे हैं?")},
        "max_completion_tokens": {"max_tokens": ABSENT_FIELD, "max_completion_tokens": 3},
        "no limit": {"max_tokens": ABSENT_FIELD, "stop": [sample.inside]},
        "continued": _CONTINUED,
        "continued and echoed": {**_CONTINUED, "echo": True},
        "no generation prompt": {"add_generation_prompt": False},
        "special tokens added": {"add_special_tokens": True},
        "special tokens shown": {"messages": user(FRANCE), "skip_special_tokens": False},
        "return_token_ids": {"return_token_ids": True},
        "return_prompt_text": {"return_prompt_text": True},
        "truncated prompt": {"truncate_prompt_tokens": 12},
        "prompt truncated on the right": {"truncate_prompt_tokens": 12, "truncation_side": "right"},
        "length": {"max_tokens": 1},
        "cache_salt and session_id": {"cache_salt": "salt", "session_id": "conversation"},
        "nulls": dict.fromkeys(("stop", "seed", "top_p", "n", "logit_bias", "response_format", "stream_options")),
        "a field that nobody knows": {"no_such_field": 1},
    }
    if sample.max_model_len is not None:
        beyond = {"max_tokens": sample.max_model_len, "stop": [sample.inside]}
        requests["limit above the rest of the context"] = beyond
    return requests


def _sampling(sample: Sample) -> dict[str, Body]:
    return {
        "stop string": {"stop": sample.inside},
        "stop strings": {"stop": ["never said", sample.across]},
        "stop string kept": {"stop": sample.inside, "include_stop_str_in_output": True},
        "min_tokens": {"messages": user(FRANCE), "min_tokens": 14, "max_tokens": 16},
        "ignore_eos": {"messages": user(FRANCE), "ignore_eos": True, "max_tokens": 16},
        "bad_words": {"bad_words": [sample.pieces[0].strip() or "the", sample.pieces[2].strip() or "sea"]},
        "penalties": {"frequency_penalty": 1.5, "presence_penalty": 0.5, "max_tokens": 20},
        "repetition_penalty": {"repetition_penalty": 1.8, "max_tokens": 20},
        "repetition_detection": {
            "structured_outputs": {"regex": "(no ){30}"},
            "repetition_detection": {"max_pattern_size": 4, "min_count": 3},
            "max_tokens": ENOUGH,
        },
        "top_k, top_p, min_p": {"top_k": 5, "top_p": 0.8, "min_p": 0.1},
        "seed": {"temperature": 0.8, "seed": 7},
        "n": {"n": 2},
        "n with a seed": {"n": 3, "seed": 5, "temperature": 1},
    }


def _sampling_of_ids(ids: Ids) -> dict[str, Body]:
    return {
        "stop token": {"stop_token_ids": [ids.chat[4]]},
        "stop token kept, streamed": {
            **STREAM,
            "stop_token_ids": [ids.chat[4]],
            "include_stop_str_in_output": True,
        },
        "logit_bias": {"logit_bias": {str(ids.chat[0]): -100, str(ids.chat[1]): 5}},
        "allowed_token_ids": {"allowed_token_ids": sorted(set(ids.chat))},
    }


def _streaming(sample: Sample) -> dict[str, Body]:
    return {
        "stream": STREAM,
        "stream with usage": COUNTED,
        "stream with running usage": {
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        },
        "stream of Hindi with usage": {**COUNTED, "structured_outputs": {"choice": [EMOJI]}, "max_tokens": ENOUGH},
        "stream interval": {**COUNTED, "stream_interval": 4},
        "stop across tokens, streamed": {**COUNTED, "stop": sample.across},
        "n, streamed": {**COUNTED, "n": 2},
        "echoed in a stream": {**_CONTINUED, **STREAM, "echo": True},
        "return_token_ids, streamed": {"return_token_ids": True, **COUNTED},
    }


def _structured() -> dict[str, Body]:
    return {
        "json_schema": _CAPITAL,
        "json_schema, streamed": {**COUNTED, **_CAPITAL},
        "json_object": {"response_format": {"type": "json_object"}},
        "response_format text": {"response_format": {"type": "text"}},
        "json": {"structured_outputs": {"json": CITY}, "max_tokens": ENOUGH},
        "regex": {"structured_outputs": {"regex": "[0-9]{2}:[0-9]{2}"}},
        "choice": {"structured_outputs": {"choice": ["Paris", "Madrid", "Rome"]}},
        "choice by its old name": {"guided_choice": ["Paris", "Madrid", "Rome"]},
        "grammar": {"structured_outputs": {"grammar": 'start: "yes" | "no" | "maybe" " so"'}},
    }


def _logprobs(sample: Sample) -> dict[str, Body]:
    return {
        "logprobs": _LOGPROBS,
        "top_logprobs 0": {**_LOGPROBS, "top_logprobs": 0},
        "top_logprobs 1": {**_LOGPROBS, "top_logprobs": 1},
        "top_logprobs 5, streamed": {**_LOGPROBS, **COUNTED, "top_logprobs": 5},
        "logprobs of parts of characters": {
            **_LOGPROBS,
            "top_logprobs": 2,
            "structured_outputs": {"choice": [EMOJI]},
            "max_tokens": ENOUGH,
        },
        "logprobs of a sampled token": {**_LOGPROBS, "top_logprobs": 2, "temperature": 1.5, "seed": 11},
        "logprobs as token ids": {**_LOGPROBS, "top_logprobs": 2, "return_tokens_as_token_ids": True},
        "logprobs beside a stop string": {"stop": sample.across, **_LOGPROBS, "top_logprobs": 1},
        "logprobs beside a choice": {**_LOGPROBS, "top_logprobs": 3, "structured_outputs": {"choice": ["qqq", "zzz"]}},
        "prompt_logprobs": {"prompt_logprobs": 1, "max_tokens": 4},
        "n with logprobs, streamed": {"n": 2, **COUNTED, **_LOGPROBS, "top_logprobs": 1, "max_tokens": 8},
    }


def _errors(sample: Sample) -> dict[str, Body]:
    requests: dict[str, Body] = {
        "unknown model": {"model": "no such model"},
        "max_tokens 0": {"max_tokens": 0},
        "max_tokens in quotes": {"max_tokens": "many"},
        "no messages": {"messages": []},
        "messages left out": {"messages": ABSENT_FIELD},
        "unknown role": {"messages": [{"role": "narrator", "content": SEA}]},
        "temperature below 0": {"temperature": -1},
        "top_p above 1": {"top_p": 2},
        "n 0": {"n": 0},
        "empty stop": {"stop": ""},
        "top_logprobs without logprobs": {"top_logprobs": 2},
        "top_logprobs below 0": {**_LOGPROBS, "top_logprobs": -5},
        "more top_logprobs than the engine gives": {**_LOGPROBS, "top_logprobs": 1000},
        "stream_options without stream": {"stream_options": {"include_usage": True}},
        "running usage alone": {"stream": True, "stream_options": {"continuous_usage_stats": True}},
        "prompt_logprobs in a stream": {**STREAM, "prompt_logprobs": 1},
        "min_tokens above max_tokens": {"min_tokens": 17},
        "no token allowed": {"allowed_token_ids": []},
        "broken regex": {"structured_outputs": {"regex": "("}},
        "two constraints": {"structured_outputs": {"regex": "a", "choice": ["a"]}},
        "json_schema without a schema": {"response_format": {"type": "json_schema"}},
        "priority": {"priority": 1},
        "two limits": {"max_completion_tokens": 3},
    }
    if sample.ids is not None:
        requests |= {
            "unknown token allowed": {"allowed_token_ids": [sample.ids.unknown]},
            "bias of an unknown token": {"logit_bias": {str(sample.ids.unknown): 1}},
            "logprobs of given tokens": {"logprobs": True, "logprob_token_ids": list(sample.ids.chat[:2])},
        }
    if sample.max_model_len is not None:
        requests |= {
            "prompt too long": {"messages": user("1 " * sample.max_model_len)},
            "max_tokens above the context": {"max_tokens": sample.max_model_len + 1},
        }
    return requests


def _broken() -> list[Shape]:
    """What no client library sends."""
    bodies = {"no JSON": b"{", "a list": b"[]", "no body": b""}
    sent = [Shape(f"chat: {name}", CHAT, {}, Group.ERRORS, True, raw) for name, raw in bodies.items()]
    return [*sent, Shape("an unknown path", "/v1/nothing", {}, Group.ERRORS, True, b"{}")]
