"""The requests: every shape of a chat or text completion, and what both servers have to refuse.

A value that must be telling for the model at hand (a stop string, a token to ban) is taken from what the model says
without it, the `Sample`. Whatever is not about sampling is greedy, so that both servers have to say the same. Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"

FRANCE = "What is the capital of France?"
SEA = "Write two sentences about the sea."
SNOW = "It was a cold winter morning and the snow"
# Tokens of these texts are parts of characters in most vocabularies.
EMOJI = "👩‍🚀🪐 नमस्ते 汉字"
# Tokens of an answer.
_SHORT = 8
# Room for the constraint's whole text, however many tokens that is.
_ENOUGH = 80
# Takes a field away from a request; None is JSON's null.
_ABSENT = object()

Body = dict[str, Any]


@dataclass(frozen=True)
class Sample:
    """What the model says greedily: `chat` to SEA, as text, token ids and the tokens' texts, and `text` after SNOW.

    `snow` and `rain` are token ids of two prompts. `vocabulary` is a number that no token id reaches.
    """

    chat: str
    chat_ids: Sequence[int]
    pieces: Sequence[str]
    text: str
    snow: Sequence[int]
    rain: Sequence[int]
    max_model_len: int
    vocabulary: int = 2**30

    @property
    def inside(self) -> str:
        """A text from inside a token of the chat answer, so that neither of its ends is the token's."""
        long = [piece for piece in self.pieces[2:] if len(piece) > 3 and piece in self.chat]
        return long[0][1:-1] if long else self.chat[3:6]

    @property
    def across(self) -> str:
        """A text of the chat answer that begins in one token and ends in the next."""
        pairs = zip(self.pieces[3:], self.pieces[4:], strict=False)
        texts = (one[-1:] + other[:2] for one, other in pairs if one and other)
        return next((text for text in texts if text in self.chat), self.chat[4:8])


@dataclass(frozen=True)
class Shape:
    """One request. `refused`: it has to be answered with 4xx instead of 200; None where the model decides it."""

    name: str
    path: str
    body: Body
    refused: bool | None = False


def user(text: Any) -> list[Body]:
    return [{"role": "user", "content": text}]


def sample_requests() -> dict[str, tuple[str, Body]]:
    """What is asked of the model to make a `Sample`."""
    greedy = {"temperature": 0, "max_tokens": _SHORT, "logprobs": True, "return_token_ids": True}
    return {
        "chat": (CHAT, {"messages": user(SEA), **greedy}),
        "text": (COMPLETIONS, {"prompt": SNOW, **greedy, "logprobs": 0}),
        "snow": ("/tokenize", {"prompt": SNOW}),
        "rain": ("/tokenize", {"prompt": "Rain"}),
    }


def make_sample(answers: Mapping[str, Any]) -> Sample:
    """From the bodies of the answers to `sample_requests`."""
    chat, text = answers["chat"]["choices"][0], answers["text"]["choices"][0]
    return Sample(
        chat=chat["message"]["content"],
        chat_ids=chat["token_ids"],
        pieces=[entry["token"] for entry in chat["logprobs"]["content"]],
        text=text["text"],
        snow=answers["snow"]["tokens"],
        rain=answers["rain"]["tokens"],
        max_model_len=answers["snow"]["max_model_len"],
    )


def shapes(sample: Sample) -> list[Shape]:
    """All requests, without the model's name. Greedy and short unless the shape is about that."""
    return [*_chat(sample), *_chat_refused(sample), *_completions(sample), *_completions_refused(sample)]


def _of(path: str, base: Body, requests: Mapping[str, Body], *, refused: bool | None = False) -> list[Shape]:
    kind = "chat" if path == CHAT else "text"
    greedy = {"temperature": 0, "max_tokens": _SHORT}
    made = []
    for name, changes in requests.items():
        body = {key: value for key, value in (base | greedy | changes).items() if value is not _ABSENT}
        made.append(Shape(f"{kind}: {name}", path, body, refused))
    return made


_CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "people": {"type": "integer", "maximum": 99}},
    "required": ["city", "people"],
    "additionalProperties": False,
}
_LOGPROBS = {"logprobs": True}
_STREAM = {"stream": True}
_COUNTED: Body = {"stream": True, "stream_options": {"include_usage": True}}
_BEGUN = [*user(FRANCE), {"role": "assistant", "content": "The capital of"}]


def _chat(sample: Sample) -> list[Shape]:
    first, second = sample.chat_ids[0], sample.chat_ids[1]
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
        "stream": _STREAM,
        "stream with usage": _COUNTED,
        "stream with running usage": {
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        },
        "stream of Hindi with usage": {**_COUNTED, "structured_outputs": {"choice": [EMOJI]}, "max_tokens": _ENOUGH},
        "stream interval": {**_COUNTED, "stream_interval": 4},
        "max_completion_tokens": {"max_tokens": _ABSENT, "max_completion_tokens": 3},
        "no limit": {"max_tokens": _ABSENT, "stop": [sample.inside]},
        "limit above the rest of the context": {"max_tokens": sample.max_model_len, "stop": [sample.inside]},
        "stop string": {"stop": sample.inside},
        "stop strings": {"stop": ["never said", sample.across]},
        "stop across tokens, streamed": {**_COUNTED, "stop": sample.across},
        "stop string kept": {"stop": sample.inside, "include_stop_str_in_output": True},
        "stop string with logprobs": {"stop": sample.across, **_LOGPROBS, "top_logprobs": 1},
        "stop token": {"stop_token_ids": [sample.chat_ids[4]]},
        "stop token kept, streamed": {
            **_STREAM,
            "stop_token_ids": [sample.chat_ids[4]],
            "include_stop_str_in_output": True,
        },
        "min_tokens": {"messages": user(FRANCE), "min_tokens": 14, "max_tokens": 16},
        "ignore_eos": {"messages": user(FRANCE), "ignore_eos": True, "max_tokens": 16},
        "logit_bias": {"logit_bias": {str(first): -100, str(second): 5}},
        "bad_words": {"bad_words": [sample.pieces[0].strip() or "the", sample.pieces[2].strip() or "sea"]},
        "allowed_token_ids": {"allowed_token_ids": sorted(set(sample.chat_ids))},
        "penalties": {"frequency_penalty": 1.5, "presence_penalty": 0.5, "max_tokens": 20},
        "repetition_penalty": {"repetition_penalty": 1.8, "max_tokens": 20},
        "repetition_detection": {
            "structured_outputs": {"regex": "(no ){30}"},
            "repetition_detection": {"max_pattern_size": 4, "min_count": 3},
            "max_tokens": _ENOUGH,
        },
        "top_k, top_p, min_p": {"top_k": 5, "top_p": 0.8, "min_p": 0.1},
        "seed": {"temperature": 0.8, "seed": 7},
        "logprobs": _LOGPROBS,
        "top_logprobs 0": {**_LOGPROBS, "top_logprobs": 0},
        "top_logprobs 1": {**_LOGPROBS, "top_logprobs": 1},
        "top_logprobs 5, streamed": {**_LOGPROBS, **_COUNTED, "top_logprobs": 5},
        "logprobs of parts of characters": {
            **_LOGPROBS,
            "top_logprobs": 2,
            "structured_outputs": {"choice": [EMOJI]},
            "max_tokens": _ENOUGH,
        },
        "logprobs of a sampled token": {**_LOGPROBS, "top_logprobs": 2, "temperature": 1.5, "seed": 11},
        "logprobs as token ids": {**_LOGPROBS, "top_logprobs": 2, "return_tokens_as_token_ids": True},
        "prompt_logprobs": {"prompt_logprobs": 1, "max_tokens": 4},
        "n": {"n": 2},
        "n with a seed": {"n": 3, "seed": 5, "temperature": 1},
        "n with logprobs, streamed": {"n": 2, **_COUNTED, **_LOGPROBS, "top_logprobs": 1, "max_tokens": 8},
        "json_schema": {
            "messages": user("The capital of France, as JSON."),
            "response_format": {"type": "json_schema", "json_schema": {"name": "city", "schema": _CITY}},
            "max_tokens": _ENOUGH,
        },
        "json_schema, streamed": {
            **_COUNTED,
            "messages": user("The capital of France, as JSON."),
            "response_format": {"type": "json_schema", "json_schema": {"name": "city", "schema": _CITY}},
            "max_tokens": _ENOUGH,
        },
        "json_object": {"response_format": {"type": "json_object"}},
        "regex": {"structured_outputs": {"regex": "[0-9]{2}:[0-9]{2}"}},
        "choice": {"structured_outputs": {"choice": ["Paris", "Madrid", "Rome"]}},
        "choice by its old name": {"guided_choice": ["Paris", "Madrid", "Rome"]},
        "grammar": {"structured_outputs": {"grammar": 'start: "yes" | "no" | "maybe" " so"'}},
        "choice with logprobs": {**_LOGPROBS, "top_logprobs": 3, "structured_outputs": {"choice": ["qqq", "zzz"]}},
        "continued": {"messages": _BEGUN, "continue_final_message": True, "add_generation_prompt": False},
        "continued and echoed": {
            "messages": _BEGUN,
            "continue_final_message": True,
            "add_generation_prompt": False,
            "echo": True,
        },
        "echoed in a stream": {
            **_STREAM,
            "messages": _BEGUN,
            "continue_final_message": True,
            "add_generation_prompt": False,
            "echo": True,
        },
        "no generation prompt": {"add_generation_prompt": False},
        "special tokens added": {"add_special_tokens": True},
        "special tokens shown": {"messages": user(FRANCE), "skip_special_tokens": False},
        "return_token_ids": {"return_token_ids": True},
        "return_token_ids, streamed": {"return_token_ids": True, **_COUNTED},
        "return_prompt_text": {"return_prompt_text": True},
        "truncated prompt": {"truncate_prompt_tokens": 12},
        "prompt truncated on the right": {"truncate_prompt_tokens": 12, "truncation_side": "right"},
        "length": {"max_tokens": 1},
        "cache_salt and session_id": {"cache_salt": "salt", "session_id": "conversation"},
        "nulls": dict.fromkeys(("stop", "seed", "top_p", "n", "logit_bias", "response_format", "stream_options")),
        "a field that nobody knows": {"no_such_field": 1},
    }
    return _of(CHAT, {"messages": user(SEA)}, requests)


def _chat_refused(sample: Sample) -> list[Shape]:
    requests: dict[str, Body] = {
        "prompt too long": {"messages": user("1 " * sample.max_model_len)},
        "max_tokens above the context": {"max_tokens": sample.max_model_len + 1},
        "unknown model": {"model": "no such model"},
        "max_tokens 0": {"max_tokens": 0},
        "no messages": {"messages": []},
        "temperature below 0": {"temperature": -1},
        "top_p above 1": {"top_p": 2},
        "n 0": {"n": 0},
        "empty stop": {"stop": ""},
        "top_logprobs without logprobs": {"top_logprobs": 2},
        "top_logprobs below 0": {**_LOGPROBS, "top_logprobs": -5},
        "more top_logprobs than the engine gives": {**_LOGPROBS, "top_logprobs": 1000},
        "stream_options without stream": {"stream_options": {"include_usage": True}},
        "running usage alone": {"stream": True, "stream_options": {"continuous_usage_stats": True}},
        "prompt_logprobs in a stream": {**_STREAM, "prompt_logprobs": 1},
        "min_tokens above max_tokens": {"min_tokens": 17},
        "no token allowed": {"allowed_token_ids": []},
        "unknown token allowed": {"allowed_token_ids": [sample.vocabulary]},
        "bias of an unknown token": {"logit_bias": {str(sample.vocabulary): 1}},
        "broken regex": {"structured_outputs": {"regex": "("}},
        "two constraints": {"structured_outputs": {"regex": "a", "choice": ["a"]}},
        "json_schema without a schema": {"response_format": {"type": "json_schema"}},
        "priority": {"priority": 1},
        "logprobs of given tokens": {"logprobs": True, "logprob_token_ids": list(sample.chat_ids[:2])},
        "two limits": {"max_completion_tokens": 3},
    }
    return _of(CHAT, {"messages": user(SEA)}, requests, refused=True)


def _completions(sample: Sample) -> list[Shape]:
    requests: dict[str, Body] = {
        "plain": {},
        "limit by default": {"max_tokens": _ABSENT},
        "several prompts": {"prompt": [SNOW, "Rain"]},
        "token ids": {"prompt": sample.snow},
        "several prompts as token ids": {"prompt": [sample.rain, sample.snow]},
        "stream": _STREAM,
        "stream with usage": _COUNTED,
        "several prompts, streamed": {**_COUNTED, "prompt": [SNOW, "Rain"], "n": 2, "max_tokens": 6},
        "n": {"n": 2, "prompt": [SNOW, "Rain"], "max_tokens": 6},
        "n with a seed": {"n": 2, "seed": 3, "temperature": 1},
        "stop string": {"stop": sample.text[5:8]},
        "echo": {"echo": True},
        "echo of token ids": {"echo": True, "prompt": sample.snow},
        "echo, streamed": {"echo": True, **_COUNTED},
        "echo with token ids": {"echo": True, "return_token_ids": True},
        "echo with logprobs": {"echo": True, "logprobs": 1},
        "echo with logprobs, streamed": {"echo": True, "logprobs": 1, **_COUNTED},
        "echo alone": {"echo": True, "max_tokens": 0},
        "echo alone with logprobs": {"echo": True, "max_tokens": 0, "logprobs": 2},
        "echo of several prompts": {"echo": True, "prompt": [SNOW, "Rain"], "logprobs": 0, "max_tokens": 4},
        "echo with logprobs of parts of characters": {"echo": True, "prompt": EMOJI, "logprobs": 1},
        "logprobs 0": {"logprobs": 0},
        "logprobs 1": {"logprobs": 1},
        "logprobs 5, streamed": {"logprobs": 5, **_COUNTED},
        "logprobs of parts of characters": {
            "logprobs": 1,
            "structured_outputs": {"choice": [EMOJI]},
            "max_tokens": _ENOUGH,
        },
        "logprobs with a stop string, streamed": {"logprobs": 1, "stop": sample.text[5:8], **_COUNTED},
        "logprobs of special tokens": {"logprobs": 0, "prompt": "The end.", "ignore_eos": True},
        "logprobs as token ids": {"logprobs": 1, "return_tokens_as_token_ids": True},
        "prompt_logprobs": {"prompt_logprobs": 1, "max_tokens": 4},
        "return_token_ids": {"return_token_ids": True, "prompt": [SNOW, "Rain"]},
        "return_token_ids, streamed": {"return_token_ids": True, **_STREAM},
        "no special tokens": {"add_special_tokens": False},
        "truncated prompt": {"truncate_prompt_tokens": 3},
        "response_format": {
            "response_format": {"type": "json_schema", "json_schema": {"name": "city", "schema": _CITY}},
            "max_tokens": _ENOUGH,
        },
    }
    return _of(COMPLETIONS, {"prompt": SNOW}, requests)


def _completions_refused(sample: Sample) -> list[Shape]:
    requests: dict[str, Body] = {
        "prompt too long": {"prompt": [sample.snow[0]] * (sample.max_model_len + 1)},
        "unknown model": {"model": "no such model"},
        "unknown token": {"prompt": [sample.vocabulary]},
        "suffix": {"suffix": "the end"},
        "best_of": {"best_of": 2},
        "no prompt": {"prompt": _ABSENT},
        "max_tokens 0": {"max_tokens": 0},
        "logprobs below 0": {"logprobs": -5},
    }
    with_bos: dict[str, Body] = {"empty prompt": {"prompt": ""}}
    return [
        *_of(COMPLETIONS, {"prompt": SNOW}, requests, refused=True),
        *_of(COMPLETIONS, {}, with_bos, refused=None),
    ]
