"""One request to one server, and its answer as a tree: what both servers, streaming or not, have in common."""

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bench.parity.fold import folded
from bench.served import Unreachable

JSON = dict[str, Any]

# Seconds without a byte from the server.
_TIMEOUT = 300
# Differ between any two answers; ids are compared by nobody.
_INCIDENTAL = frozenset({"id", "created", "system_fingerprint"})


class Refused(Exception):
    """A request that only asks what the other requests need is refused."""


@dataclass(frozen=True)
class Server:
    """`url` without the path of the API; `model` as this server calls it; `key`: its API key, if it wants one."""

    url: str
    model: str
    key: str | None = None


@dataclass(frozen=True)
class Answer:
    """`tree`: the answer's JSON without nulls and without what differs anyway; a stream is folded into the whole answer
    that it tells. Of a refusal the tree has the status and what the error says beside its sentence, `message`."""

    status: int
    tree: JSON = field(default_factory=dict)
    message: str = ""


def ask(server: Server, path: str, body: Mapping[str, Any] | bytes) -> Answer:
    """POST `body` (bytes: as they are). Raises Unreachable where no answer of this API comes."""
    sent = body if isinstance(body, bytes) else json.dumps({"model": server.model, **body}).encode()
    status, content_type, text = _exchange(server, path, sent)
    if status != 200:
        message, rest = _error(text)
        return Answer(status, {"status": status, **_without_nulls(rest)}, message)
    try:
        tree = folded(text) if content_type.startswith("text/event-stream") else json.loads(text)
        return Answer(status, {"status": status, **_without_nulls(tree)})
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as problem:
        raise Unreachable(f"{server.url}{path} gave no answer of this API: {problem!r} in {text[:200]!r}") from problem


def fetch(server: Server, path: str, body: Mapping[str, Any]) -> JSON:
    """The JSON that answers `body`. Raises Refused with what the server says, or Unreachable."""
    status, _, text = _exchange(server, path, json.dumps({"model": server.model, **body}).encode())
    if status != 200:
        raise Refused(f"{server.url}{path} answered {status}: {_error(text)[0]}")
    return _object(server.url + path, text)


def _object(where: str, text: str) -> JSON:
    try:
        return dict(json.loads(text))
    except (ValueError, TypeError) as problem:
        raise Unreachable(f"{where} gave no answer of this API: {text[:200]!r}") from problem


def _exchange(server: Server, path: str, body: bytes) -> tuple[int, str, str]:
    headers = {"content-type": "application/json"}
    if server.key is not None:
        headers["authorization"] = f"Bearer {server.key}"
    try:
        request = urllib.request.Request(server.url.rstrip("/") + path, data=body, headers=headers)
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as response:
            return response.status, response.headers.get("content-type", ""), response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers.get("content-type", ""), error.read().decode(errors="replace")
    except (OSError, ValueError, http.client.HTTPException) as problem:
        reason = getattr(problem, "reason", problem)
        raise Unreachable(f"{server.url} does not answer: {reason}") from problem


def _error(text: str) -> tuple[str, JSON]:
    """The sentence of an error, and the rest of it below the member `error`; {} where it has not OpenAI's shape."""
    try:
        error = dict(json.loads(text)["error"])
        return str(error.pop("message")), {"error": error}
    except (ValueError, KeyError, TypeError):
        return text[:500], {}


def _without_nulls(value: Any) -> Any:
    """`null` is the same as absent in an object; in a list it holds a place."""
    if isinstance(value, dict):
        return {k: _without_nulls(v) for k, v in value.items() if v is not None and k not in _INCIDENTAL}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value
