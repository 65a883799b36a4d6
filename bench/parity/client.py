"""One request to one server, and its answer as a tree: what both servers, streaming or not, have in common."""

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

JSON = dict[str, Any]

# Seconds without a byte from the server.
_TIMEOUT = 300
# Differ between any two answers; ids are compared by nobody.
_INCIDENTAL = frozenset({"id", "created", "system_fingerprint"})


class Unreachable(Exception):
    """A server does not answer, or with something else than this API."""


@dataclass(frozen=True)
class Answer:
    """`tree`: the answer's JSON without nulls and without what differs anyway; a stream is folded into the whole answer
    that it tells. Of a refusal the tree has only the status, and `message` is its sentence."""

    status: int
    tree: JSON = field(default_factory=dict)
    message: str = ""


def ask(url: str, path: str, body: Mapping[str, Any]) -> Answer:
    """POST `body` to `url` + `path`. Raises Unreachable where no answer of this API comes."""
    status, content_type, text = _exchange(url, path, json.dumps(body).encode())
    if status != 200:
        return Answer(status, {"status": status}, _message(text))
    try:
        tree = _folded(text) if content_type.startswith("text/event-stream") else json.loads(text)
    except (ValueError, KeyError, TypeError) as problem:
        raise Unreachable(f"{url}{path} gave no answer of this API: {problem!r} in {text[:200]!r}") from problem
    return Answer(status, {"status": status, **_without_nulls(tree)})


def fetch(url: str, path: str, body: Mapping[str, Any]) -> Any:
    """The JSON that answers `body`. Raises Unreachable where it is refused."""
    status, _, text = _exchange(url, path, json.dumps(body).encode())
    if status != 200:
        raise Unreachable(f"{url}{path} answered {status}: {_message(text)}")
    return json.loads(text)


def _exchange(url: str, path: str, body: bytes) -> tuple[int, str, str]:
    request = urllib.request.Request(url.rstrip("/") + path, data=body, headers={"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as response:
            return response.status, response.headers.get("content-type", ""), response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers.get("content-type", ""), error.read().decode(errors="replace")
    except (OSError, ValueError, http.client.HTTPException) as problem:
        raise Unreachable(f"{url} does not answer: {problem}") from problem


def _message(text: str) -> str:
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return text


def _without_nulls(value: Any) -> Any:
    """`null` is the same as absent in an object; in a list it holds a place."""
    if isinstance(value, dict):
        return {k: _without_nulls(v) for k, v in value.items() if v is not None and k not in _INCIDENTAL}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


def _folded(text: str) -> JSON:
    """The whole answer that a stream tells, and what only a stream has: how it ended, and its running usage."""
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    events = [json.loads(line) for line in lines if line != "[DONE]"]
    whole: JSON = {"done": lines.count("[DONE]") if lines[-1] == "[DONE]" else 0}
    choices: dict[int, JSON] = {}
    running: list[JSON] = []
    for event in events:
        usage = event.pop("usage", None)
        if event.get("choices") and usage is not None:
            running.append(usage)
        for part in event.pop("choices", []):
            _add(choices.setdefault(part["index"], {}), part)
        if usage is not None:
            whole["usage"] = usage
        whole |= {name: value for name, value in event.items() if value is not None}
    if "object" in whole:
        whole["object"] = whole["object"].removesuffix(".chunk")
    if running:
        whole["running_usage"] = {"first": running[0], "last": running[-1]}
    whole["choices"] = [choices[index] for index in sorted(choices)]
    return whole


def _add(choice: JSON, part: JSON) -> None:
    """Adds an event's part to its choice: texts and lists grow, everything else is set once."""
    for name, value in part.items():
        target = "message" if name == "delta" else name
        if value is None:
            continue
        known = choice.get(target)
        if isinstance(value, dict):
            _add(choice.setdefault(target, {}), value)
        elif known is not None and (isinstance(value, list) or target in ("content", "text", "reasoning")):
            choice[target] = known + value
        else:
            choice[target] = value
