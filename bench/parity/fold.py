"""A streamed answer folded into the whole answer that it tells, and what only a stream has: its format. Pure."""

import json
from collections.abc import Callable, Sequence
from typing import Any

JSON = dict[str, Any]

# Of an event's line: what may stand before the colon. All but data are noted, as a client may not expect them.
_DATA = "data: "
_DONE = "[DONE]"
# Texts that grow; other strings are said once.
_GROWING = frozenset({"content", "text", "reasoning", "reasoning_content", "arguments", "refusal"})


def folded(text: str) -> JSON:
    """`text` is the body of the answer. Raises ValueError, KeyError or TypeError for what is no such stream."""
    blocks = [block for block in text.split("\n\n") if block]
    data = [block.removeprefix(_DATA) for block in blocks if block.startswith(_DATA)]
    events: list[JSON] = [json.loads(one) for one in data if one != _DONE]
    whole: JSON = {"done": data.count(_DONE) if data[-1] == _DONE else 0}
    whole["stream"] = stream_format(events, [block for block in blocks if not block.startswith(_DATA)])
    choices: dict[int, JSON] = {}
    running: list[JSON] = []
    for event in events:
        usage = event.get("usage")
        if event.get("choices") and usage is not None:
            running.append(usage)
        for part in event.get("choices", []):
            _add(choices.setdefault(part["index"], {}), part)
        rest = {name: value for name, value in event.items() if name != "choices" and value is not None}
        whole |= rest
    if "object" in whole:
        whole["object"] = whole["object"].removesuffix(".chunk")
    if running:
        whole["running_usage"] = {"first": running[0], "last": running[-1]}
    whole["choices"] = [choices[index] for index in sorted(choices)]
    return whole


def stream_format(events: Sequence[JSON], other: Sequence[str]) -> JSON:
    """What a client may depend on beside the answer itself.

    `role`, `finish_reason`: in which event of each choice they stand, "first", "last" or a list of numbers;
    `usage`: whether it comes in an event of its own behind all others; `constant`: the members that are the same in
    every event; `objects`: the events' types; `other`: lines that are not data.
    """
    parts: dict[int, list[JSON]] = {}
    for event in events:
        for part in event.get("choices", []):
            parts.setdefault(part["index"], []).append(part)
    with_usage = [number for number, event in enumerate(events) if event.get("usage") is not None]
    usage = "none" if not with_usage else "in events with choices"
    if with_usage == [len(events) - 1] and not events[-1].get("choices"):
        usage = "in an event of its own, the last"
    elif with_usage and not events[-1].get("choices"):
        usage = "in all events" if len(with_usage) == len(events) else "in some events and the last"
    return {
        "role": _where(parts, lambda part: part.get("delta", {}).get("role") is not None),
        "finish_reason": _where(parts, lambda part: part.get("finish_reason") is not None),
        "usage": usage,
        "constant": [
            name for name in ("id", "created", "model") if len({repr(event.get(name)) for event in events}) == 1
        ],
        "objects": sorted({str(event.get("object")) for event in events}),
        "other": sorted({line.partition(":")[0] or "comment" for block in other for line in block.splitlines()}),
    }


def _where(parts: dict[int, list[JSON]], holds: Callable[[JSON], bool]) -> str | list[int]:
    """In which events of every choice; where the choices are not alike, those of the first that is not."""
    found: str | list[int] = "nowhere"
    for events in parts.values():
        numbers = [number for number, part in enumerate(events) if holds(part)]
        if not numbers:
            continue
        if numbers == [0] and len(events) > 1:
            found = "first"
        elif numbers == [len(events) - 1]:
            found = "last"
        else:
            return numbers
    return found


def _add(choice: JSON, part: JSON) -> None:
    """Adds an event's part to its choice: texts and lists grow, everything else is set once."""
    for name, value in part.items():
        target = "message" if name == "delta" else name
        if value is None:
            continue
        known = choice.get(target)
        if target == "tool_calls":
            _add_calls(choice.setdefault(target, []), value)
        elif isinstance(value, dict):
            _add(choice.setdefault(target, {}), value)
        elif known is not None and (isinstance(value, list) or target in _GROWING):
            choice[target] = known + value
        else:
            choice[target] = value


def _add_calls(calls: list[JSON], parts: Sequence[JSON]) -> None:
    """Calls are parts of a list whose places the parts name; a whole answer has no such numbers."""
    for part in parts:
        while len(calls) <= part["index"]:
            calls.append({})
        _add(calls[part["index"]], {name: value for name, value in part.items() if name != "index"})
