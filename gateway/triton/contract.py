"""The contract with a vLLM backend inside Triton: request bodies, responses, error texts, capabilities.

Everything that the gateway knows of Triton's tensors stands here, for this project's backend (OURS) and
for NVIDIA's stock one (STOCK). Pure: values in, values out. The other half of the contract is
`vllm_backend/contract.py`.
"""

import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, TypeAlias

import orjson

from gateway.openai.errors import ApiError, bad_request, internal_error, unavailable
from gateway.openai.json_text import dumps
from gateway.openai.pieces import PIECE, from_json
from gateway.openai.writing import array, escaped, string, written

# Triton's release 26.01 is server version 2.65; a minor version is a month.
_OLDEST_STOCK = (2, 65)
_OLDEST_STOCK_RELEASE = "26.01"


_NOTHING: Mapping[str, Any] = {}
_MARK, _PARAMETERS_MARK = secrets.token_hex(16), secrets.token_hex(16)
"""What no request holds."""


class Backend(StrEnum):
    OURS = "ours"
    STOCK = "stock"


class ModelContract(NamedTuple):
    """What a ready model takes: which backend serves it, and the names of its inputs. Compared for every request."""

    backend: Backend
    inputs: frozenset[str]


Prompt: TypeAlias = str | Sequence[int]
"""A text or token ids."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """A prompt of megabytes as JSON, made in pieces and once for all choices. Its length is that of the prompt."""

    json: bytes
    is_text: bool
    length: int

    @classmethod
    def of(cls, prompt: Prompt) -> "Encoded":
        if isinstance(prompt, str):
            return cls(string(prompt), is_text=True, length=len(prompt))
        return cls(array(prompt), is_text=False, length=len(prompt))

    def __len__(self) -> int:
        return self.length


class Written(NamedTuple):
    """A parameter of megabytes as JSON, made in pieces and once for all choices."""

    pieces: tuple[str, ...]

    @classmethod
    def of(cls, value: Any) -> "Written":
        return cls(tuple(written(value)))


def is_text(prompt: Prompt | Encoded) -> bool:
    return prompt.is_text if isinstance(prompt, Encoded) else isinstance(prompt, str)


class GenerateRequest(NamedTuple):
    """One generation, as it is asked of a backend.

    `sampling` holds `max_tokens`, None for the rest of the context, and what is large `Written`; `constraint` is vLLM's
    `structured_outputs` object; `inputs` are further inputs by name; `outputs` are the outputs that are wanted
    whose text is JSON: logprobs, and of our backend prompt_logprobs, token_ids, prompt_token_ids and stop_reason;
    `request_id` stands in the backend's log.
    """

    prompt: Prompt | Encoded
    sampling: Mapping[str, Any]
    constraint: Mapping[str, Any] | None = None
    add_special_tokens: bool = False
    inputs: Mapping[str, Any] = _NOTHING
    outputs: tuple[str, ...] = ()
    request_id: str = ""


class Delta(NamedTuple):
    """One Triton response: what it adds to the answer. Counts are in tokens; `outputs` are the values of the JSON
    outputs that were asked for."""

    text: str
    finish_reason: str | None
    prompt_tokens: int
    new_tokens: int
    outputs: Mapping[str, Any] = _NOTHING


class Unread:
    """An output whose JSON text is large, to be read beside the event loop."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __len__(self) -> int:
        return len(self._text)

    def read(self) -> Any:
        """In pieces, between which other threads get the interpreter. Raises a 500."""
        try:
            return from_json(self._text.encode(), is_limited=False)
        except ValueError:
            raise no_response() from None


def no_response() -> ApiError:
    """For an event that the contract does not know."""
    return internal_error("its stream holds an event that is no response")


class UpstreamError(Exception):
    """An error text that Triton or the model answered, as it came."""


def contract_of(metadata: Mapping[str, Any]) -> ModelContract:
    """What a model takes, from Triton's metadata: an optional input is the only capability that the metadata can
    show."""
    names = frozenset(str(tensor.get("name")) for tensor in metadata.get("inputs", ()))
    return ModelContract(Backend.OURS if "send_admission" in names else Backend.STOCK, names)


def is_not_vllm(model: ModelContract) -> str | None:
    """Why a model of another backend, such as TensorRT-LLM, cannot be served, in one sentence, or None."""
    for name in ("text_input", "sampling_parameters"):
        if name not in model.inputs:
            return f"its backend is not vLLM, since it has no input {name!r}; other backends are not supported"
    return None


def stock_is_too_old(server_version: str) -> str | None:
    """Why a server's stock backend cannot be used, in one sentence, or None.

    Before 26.01 the stock backend takes `guided_decoding` where newer ones take `structured_outputs`
    (releases before 25.11), or predates the contract that was tested.
    """
    found = re.match(r"(\d+)\.(\d+)", server_version)
    if found and (int(found[1]), int(found[2])) >= _OLDEST_STOCK:
        return None
    return (
        f"Triton {server_version} with the stock vLLM backend is older than release {_OLDEST_STOCK_RELEASE} "
        f"(server {_OLDEST_STOCK[0]}.{_OLDEST_STOCK[1]}), the oldest that is supported; upgrade it, install this "
        "project's vllm_backend, or set accept_old_triton."
    )


def request_body(backend: Backend, request: GenerateRequest, context_len: int | None) -> bytes:
    """The body of `POST /v2/models/M/generate_stream`. `context_len` is the context length in tokens or an upper
    bound of it, None where unknown."""
    parameters = dict(request.sampling)
    prompt, of_text = request.prompt, is_text(request.prompt)
    inputs: dict[str, Any] = {
        "id": request.request_id,
        "text_input" if of_text else "input_ids": _MARK if isinstance(prompt, Encoded) else prompt,
        "stream": True,
        "exclude_input_in_output": True,
        "return_finish_reason": True,
        "return_num_input_tokens": True,
        "return_num_output_tokens": True,
    }
    for output in request.outputs:
        inputs[f"return_{output}"] = True
    inputs.update(request.inputs)
    if backend is Backend.OURS:
        inputs["send_admission"] = True
        if of_text:
            inputs["add_special_tokens"] = request.add_special_tokens
        if request.constraint is not None:
            parameters["structured_outputs"] = request.constraint
    else:
        if parameters["max_tokens"] is None:
            if context_len is None:
                raise bad_request(
                    "max_tokens is required for this model: its context length is not known to the gateway "
                    "(setting max_model_len).",
                    param="max_tokens",
                )
            # The engine ends a request at the end of its context whatever the limit; absent would mean 16.
            parameters["max_tokens"] = context_len
        if request.constraint is not None:
            # The stock backend wants JSON inside the JSON, and nothing but a string.
            parameters["structured_outputs"] = dumps(request.constraint).decode()
    is_large = any(type(value) is Written for value in parameters.values())
    inputs["sampling_parameters"] = _PARAMETERS_MARK if is_large else dumps(parameters).decode()
    body = orjson.dumps(inputs)
    # What is large is copied once.
    parts: list[bytes] = []
    if isinstance(prompt, Encoded):
        ahead, body = body.split(b'"%b"' % _MARK.encode())
        parts += (ahead, prompt.json)
    if is_large:
        ahead, body = body.split(b'"%b"' % _PARAMETERS_MARK.encode())
        parts += (ahead, *escaped(_members(parameters)))
    return b"".join((*parts, body)) if parts else body


def _members(parameters: Mapping[str, Any]) -> Iterator[str]:
    """The pieces of their JSON."""
    for number, (name, value) in enumerate(parameters.items()):
        yield f"{',' if number else '{'}{orjson.dumps(name).decode()}:"
        yield from value.pieces if type(value) is Written else (dumps(value).decode(),)
    yield "}"


class BodyParts(NamedTuple):
    """`request_body` of requests that differ in their ids and prompts alone, in three parts around these."""

    begin: bytes
    middle: bytes
    end: bytes

    @classmethod
    def of(cls, backend: Backend, request: GenerateRequest, context_len: int | None) -> "BodyParts":
        """Raises as `request_body`; the id and the prompt of `request` are not looked at."""
        body = request_body(backend, request._replace(request_id=_MARK, prompt=_MARK), context_len)
        begin, middle, end = body.split(b'"%b"' % _MARK.encode())
        return cls(begin, middle, end)

    def body(self, request_id: str, prompt: str) -> bytes:
        return b"".join((self.begin, orjson.dumps(request_id), self.middle, orjson.dumps(prompt), self.end))


def parse_response(payload: bytes, outputs: Sequence[str] = ()) -> Delta:
    """One event of the stream; `outputs` are the JSON outputs that were asked for. Raises `UpstreamError` with the
    text of an error event, `ValueError` for anything that is no response of a vLLM backend."""
    response = orjson.loads(payload)
    text = response.get("text_output")
    if text is None:
        raise UpstreamError(str(response.get("error", "the event holds neither text_output nor error")))
    reason = response.get("finish_reason")
    prompt_tokens, new_tokens = response.get("num_input_tokens", 0), response.get("num_output_tokens", 0)
    if type(text) is not str or type(prompt_tokens) is not int or type(new_tokens) is not int:
        raise ValueError("a response holds a value of the wrong type")
    values = {name: _output(name, response.get(name)) for name in outputs} if outputs else _NOTHING
    return Delta(text, None if reason is None or reason == "None" else str(reason), prompt_tokens, new_tokens, values)


def _output(name: str, text: Any) -> Any:
    # The one that comes for thousands of tokens at once.
    if name == "prompt_logprobs" and isinstance(text, str) and len(text) > PIECE:
        return Unread(text)
    return orjson.loads(text or b"null")


def refusal_text(body: bytes) -> str:
    """The error in the body of an answer whose status is not 200.

    Triton's own refusals are JSON; a model's refusal of a stream is one server-sent event, in a 400 all the same.
    """
    payload = body.strip().removeprefix(b"data:")
    try:
        return str(orjson.loads(payload)["error"])
    except (ValueError, KeyError, TypeError):
        return payload[:500].decode("utf-8", "replace")


_NOT_A_PARAMETER = "is not a sampling parameter"
_OURS_ERROR = re.compile(r"(INVALID_ARG|UNAVAILABLE|INTERNAL)(?: ([^\s:]+))?: (.*)", re.DOTALL)
# Triton's own words for a Python backend whose process has died.
_STUB_IS_GONE = re.compile(r"Stub process '[^']*' is not healthy")
_IS_TOO_LONG = re.compile("context|maximum model length")
_TOO_LONG = re.compile(r".{0,60}maximum (?:context|model) length.*", re.IGNORECASE)
# What the stock backend says of a client's own mistake; any other text may hold paths and addresses.
_STOCK_CLIENT_FAULT = re.compile(r"(Grammar error|Invalid grammar|The provided JSON schema)\b.*")


def error_from(text: str, backend: Backend, places: Mapping[str, str]) -> ApiError:
    """An upstream error text → what the client sees.

    `places` maps the contract's names of inputs and sampling parameters to the client's, where they differ;
    it holds `prompt`. Only this project's backend says whose fault it was (Triton's HTTP turns every code into 400), so
    its prefix is trusted from it alone.
    """
    if backend is Backend.OURS:
        found = _OURS_ERROR.search(text)
        if found is None and _STUB_IS_GONE.search(text):
            return unavailable("The engine is not running.")
        if found is None:
            return internal_error("the inference server refused the request for a reason that it did not name")
        code, place, sentence = found.groups()
        if code == "INVALID_ARG":
            param = _client_param(place, places)
            message = f"{param}: {sentence}" if param and not sentence.startswith(param) else sentence
            if place == "prompt" and _IS_TOO_LONG.search(sentence):
                error_code = "context_length_exceeded"
            elif _NOT_A_PARAMETER in sentence:
                # Of an older backend: a newer one takes what the gateway sends.
                error_code = "unsupported_parameter"
            else:
                error_code = "invalid_value"
            return bad_request(message, param, error_code)
        if code == "UNAVAILABLE":
            return unavailable(sentence)
        return internal_error(sentence)
    text = text.removeprefix("Error generating stream: ")
    if found := _TOO_LONG.match(text):
        return bad_request(found[0], places["prompt"], "context_length_exceeded")
    if "EngineDead" in text or "engine core" in text.lower() or _STUB_IS_GONE.search(text):
        return unavailable("The engine is not running.")
    if found := _STOCK_CLIENT_FAULT.match(text):
        return bad_request(found[0], None, "invalid_value")
    return internal_error("the engine refused the request; the cause is in Triton's log")


def _client_param(place: str | None, places: Mapping[str, str]) -> str | None:
    """A place in the backend's inputs → the place in the client's request."""
    if place is None:
        return None
    name = "prompt" if place in ("text_input", "input_ids") else place.removeprefix("sampling_parameters.")
    steps = name.split(".")
    for known in range(len(steps), 0, -1):
        if (clients := places.get(".".join(steps[:known]))) is not None:
            return ".".join([clients, *steps[known:]])
    return name
