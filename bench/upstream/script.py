"""What the byte source says: the bytes of every answer, made ahead. Pure.

Token number k of an answer is a blank and k in decimal digits, cut and padded to the model's `text_bytes`, so that a
token that is lost, doubled or out of its place is seen in the text.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import orjson

from bench.mock_engine import models
from bench.mock_engine.own import OwnBackend

SERVER_VERSION = "2.65.0"
CHAT_PATH = "/v1/chat/completions"
_DONE = b"data: [DONE]\n\n"
_CREATED = 1_700_000_000
_ID = "chatcmpl-00000000000000000000000000000000"


@dataclass(frozen=True, slots=True)
class Model:
    """One model of the source. An answer has as many tokens as its request's max_tokens says, `most_tokens` at most.

    `text_bytes` is the length of a token's text, 2 at least; `tokens_per_second` is what each stream gets, 0: all of an
    answer leaves at once.
    """

    name: str
    most_tokens: int = 1024
    text_bytes: int = 5
    tokens_per_second: float = 0.0


def answer_text(model: Model, tokens: int) -> str:
    """What an answer of so many tokens says."""
    return "".join(_token_text(model, number) for number in range(tokens))


def script(served: Sequence[Model]) -> bytes:
    """The standard input of `upstream.cpp`. OpenAI's route is that of the first model, and below `/NAME` of each."""
    entries = [
        _answer("GET", "/v2", _json({"name": "triton", "version": SERVER_VERSION, "extensions": []})),
        _answer("GET", "/v2/health/live", b""),
        _answer("GET", "/v2/health/ready", b""),
        _answer("GET", "/health", b""),
        _answer("GET", "/v1/models", _json(_model_list(served))),
        _answer("POST", "/v2/repository/index", _json(_index(served))),
    ]
    for model in served:
        place, about = f"/v2/models/{model.name}", models.ServedModel(model.name)
        entries += [
            _answer("GET", f"{place}/ready", b""),
            _answer("GET", place, _json(models.metadata(about, OwnBackend()))),
            _answer("GET", f"{place}/config", _json(models.config(about, OwnBackend()))),
            _stream(f"{place}/generate_stream", model, _triton_event),
            _stream(f"/{model.name}{CHAT_PATH}", model, _chat_event),
        ]
    entries.append(_stream(CHAT_PATH, served[0], _chat_event))
    return b"".join([*entries, b"end\n"])


def _answer(method: str, path: str, body: bytes) -> bytes:
    kind = "application/json" if body else "text/plain"
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    return f"answer {method} {path} {len(head) + len(body)}\n".encode() + head + body


_Event = Callable[[Model, int | None, int], list[bytes]]
"""The event of token `number` (None: what precedes the first), and what follows it where it is the last of `tokens`
tokens; 0: others follow."""


def _stream(path: str, model: Model, event: _Event) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
    before = head + _chunks(event(model, None, 0))
    interval = round(1_000_000 / model.tokens_per_second) if model.tokens_per_second else 0
    parts = [f"stream {path} {interval} {model.most_tokens} {len(before)}\n".encode(), before]
    for number in range(model.most_tokens):
        following = _chunks(event(model, number, 0))
        last = _chunks(event(model, number, number + 1)) + b"0\r\n\r\n"
        parts += [f"{len(following)} {len(last)}\n".encode(), following, last]
    return b"".join(parts)


def _chunks(events: Sequence[bytes]) -> bytes:
    return b"".join(b"%x\r\n" % len(event) + event + b"\r\n" for event in events)


def _triton_event(model: Model, number: int | None, tokens: int) -> list[bytes]:
    """As Triton writes it: members in the order of their names."""
    response = {
        "finish_reason": "length" if tokens else "None",
        "model_name": model.name,
        "model_version": "1",
        "num_input_tokens": 1,
        "num_output_tokens": 0 if number is None else 1,
        "text_output": "" if number is None else _token_text(model, number),
    }
    return [b"data: " + _json(response) + b"\n\n"]


def _chat_event(model: Model, number: int | None, tokens: int) -> list[bytes]:
    """As vLLM's server writes it."""
    delta = {"role": "assistant", "content": ""} if number is None else {"content": _token_text(model, number)}
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": "length" if tokens else None}
    head = {"id": _ID, "object": "chat.completion.chunk", "created": _CREATED, "model": model.name}
    event = b"data: " + _json(head | {"choices": [choice]}) + b"\n\n"
    return [event, _DONE] if tokens else [event]


def _token_text(model: Model, number: int) -> str:
    digits = model.text_bytes - 1
    return f" {number % 10**digits:0{digits}d}"


def _index(served: Sequence[Model]) -> list[dict[str, str]]:
    return [{"name": model.name, "version": "1", "state": "READY"} for model in served]


def _model_list(served: Sequence[Model]) -> dict[str, object]:
    data = [{"id": model.name, "object": "model", "created": _CREATED, "owned_by": "bench"} for model in served]
    return {"object": "list", "data": data}


def _json(value: object) -> bytes:
    return orjson.dumps(value)
