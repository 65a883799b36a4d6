"""What is asked: requests by their kind, made ahead so that asking costs nothing, with what a right answer is. Pure.

The two kinds of work that a server has are apart: reading long prompts (preprocess) and writing long answers (decode).
"""

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import orjson

CHAT_PATH = "/v1/chat/completions"
COMPLETIONS_PATH = "/v1/completions"

_TEXT = """
the of and to in is it for on with as are this that by from be was or an at which one have not all they can more when
who will would about other out into time has new some people could them than first been its two may also over after
back work year where must before through between life being under place large small number water house world light
sound river table paper stone garden window letter winter summer morning question answer
"""
_WORDS = _TEXT.split()


class Format(StrEnum):
    """How an answer is written."""

    CHAT = "chat"
    """A stream of chat completion chunks."""
    COMPLETION = "completion"
    """A stream of text completions."""
    TRITON = "triton"
    """Triton's generate_stream, as a vLLM backend answers it."""
    WHOLE = "whole"
    """One body; it is not looked at."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What is known of a right answer; None: not known. `tokens` are by the server's usage, where it tells it; `chunks`
    are the events that carry something of the answer. `schema`: the text is JSON that obeys it."""

    text: str | None = None
    tokens: int | None = None
    chunks: int | None = None
    finish_reason: str | None = None
    schema: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """One request, ready to be sent. `kind` is what reports tell it apart by."""

    kind: str
    path: str
    body: bytes
    format: Format = Format.CHAT
    expected: Expected = Expected()


@dataclass(frozen=True)
class Workload:
    """A pool of requests, asked in turn. Its size is how many different prompts a server sees: what is more than its
    prefix cache holds is computed each time."""

    name: str
    requests: Sequence[Request]

    def __iter__(self) -> Iterator[Request]:
        """Without end."""
        return itertools.cycle(self.requests)


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of one kind of request. `prompt_bytes` is the text of all `messages` together, a token being about four
    bytes of it; with `ignore_eos` (vLLM's field) an answer has exactly `answer_tokens` tokens."""

    prompt_bytes: int
    answer_tokens: int
    messages: int = 2
    ignore_eos: bool = False


PREPROCESS = Shape(prompt_bytes=16_000, answer_tokens=1)
DECODE = Shape(prompt_bytes=200, answer_tokens=256)
STRUCTURED = Shape(prompt_bytes=400, answer_tokens=256)

SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Berlin", "Lagos", "Lima", "Osaka"]},
        "warm": {"type": "boolean"},
        "month": {"type": "integer", "minimum": 1, "maximum": 12},
        "rain": {"type": "array", "items": {"enum": ["none", "some", "much"]}, "minItems": 2, "maxItems": 4},
    },
    "required": ["city", "warm", "month", "rain"],
    "additionalProperties": False,
}
"""Of a structured request: every answer by it is short."""

NAMES = ("preprocess", "decode", "mixed", "structured")


def workload(name: str, model: str, *, shapes: Mapping[str, Shape] | None = None, prompts: int = 64) -> Workload:
    """One of NAMES; `shapes` by kind (preprocess, decode, structured) in place of the usual ones. `mixed` is preprocess
    and decode in turn. The same arguments give the same requests."""
    usual = {"preprocess": PREPROCESS, "decode": DECODE, "structured": STRUCTURED} | dict(shapes or {})
    kinds = ("preprocess", "decode") if name == "mixed" else (name,)
    requests = [
        chat_request(kind, model, usual[kind], number, SCHEMA if kind == "structured" else None)
        for number in range(prompts)
        for kind in kinds
    ]
    return Workload(name, requests)


def chat_request(
    kind: str, model: str, shape: Shape, number: int, schema: Mapping[str, Any] | None = None, *, usage: bool = True
) -> Request:
    """A streamed chat request; `number` makes its prompt different from all others, from its first words on. `usage`
    asks for the counts of tokens at the end."""
    body: dict[str, Any] = {"model": model, "messages": messages(shape, number), "stream": True}
    if usage:
        body["stream_options"] = {"include_usage": True}
    if shape.ignore_eos:
        body["ignore_eos"] = True
    if schema is not None:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    body["max_tokens"] = shape.answer_tokens
    tokens = shape.answer_tokens if shape.ignore_eos and usage else None
    return Request(kind, CHAT_PATH, orjson.dumps(body), Format.CHAT, Expected(tokens=tokens, schema=schema))


def messages(shape: Shape, number: int) -> list[dict[str, str]]:
    """The messages of prompt `number`: a system message first where there are several, the last one the user's."""
    choose = random.Random(number)
    each = max(shape.prompt_bytes // shape.messages, 1)
    texts = [_text(choose, f"{number}.{at} ", each) for at in range(shape.messages)]
    roles = [("user", "assistant")[(shape.messages - at) % 2 == 0] for at in range(shape.messages)]
    if shape.messages > 1:
        roles[0] = "system"
    return [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]


def _text(choose: random.Random, begin: str, size: int) -> str:
    """Words of a language model's daily bread; `size` bytes, all ASCII."""
    words = [begin]
    length = len(begin)
    while length < size:
        words.append(choose.choice(_WORDS))
        length += len(words[-1]) + 1
    return " ".join(words)[:size]
