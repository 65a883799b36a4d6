"""What a request is to the comparison, and what the requests are made of. Pure; the requests themselves are in
`chat_shapes`, `text_shapes` and `tool_shapes`."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"

FRANCE = "What is the capital of France?"
SEA = "Write two sentences about the sea."
SNOW = "It was a cold winter morning and the snow"
# Tokens of these texts are parts of characters in most vocabularies.
EMOJI = "👩‍🚀🪐 नमस्ते 汉字"
# Tokens of an answer.
SHORT = 8
# Room for the constraint's whole text, however many tokens that is.
ENOUGH = 80
# Takes a field away from a request; None is JSON's null.
ABSENT_FIELD = object()

Body = dict[str, Any]

CITY: Body = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "people": {"type": "integer", "maximum": 99}},
    "required": ["city", "people"],
    "additionalProperties": False,
}
STREAM: Body = {"stream": True}
COUNTED: Body = {"stream": True, "stream_options": {"include_usage": True}}


class Group(StrEnum):
    """What a request is about."""

    REQUESTS = "request shapes"
    SAMPLING = "sampling"
    STREAMING = "streaming"
    STRUCTURED = "structured output"
    TOOLS = "tools"
    LOGPROBS = "logprobs"
    ERRORS = "errors"


@dataclass(frozen=True)
class Shape:
    """One request. `refused`: it has to be answered with 4xx instead of 200; None where the model or the server's
    settings decide it. `raw` is what is sent instead of the body."""

    name: str
    path: str
    body: Body
    group: Group
    refused: bool | None = False
    raw: bytes | None = None


def user(text: Any) -> list[Body]:
    return [{"role": "user", "content": text}]


def shapes_of(
    group: Group, path: str, base: Body, requests: Mapping[str, Body], *, refused: bool | None = False
) -> list[Shape]:
    """`requests` are what each adds to the greedy and short `base`."""
    kind = "chat" if path == CHAT else "text"
    greedy = {"temperature": 0, "max_tokens": SHORT}
    made = []
    for name, changes in requests.items():
        body = {key: value for key, value in (base | greedy | changes).items() if value is not ABSENT_FIELD}
        made.append(Shape(f"{kind}: {name}", path, body, group, refused))
    return made
