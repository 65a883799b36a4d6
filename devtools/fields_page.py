"""docs/fields.md as text: what is said of all fields, and a table for each request type and fate, made from the rows of
`gateway.openai.fields`.

Pure but for `python -m devtools.fields_page`, which writes the page; it needs the gateway's packages.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from devtools.paths import ROOT
from gateway.openai.fields import CHAT, COMPLETION, DETOKENIZE, TOKENIZE, Fate, Field

FILE = ROOT / "docs" / "fields.md"

REQUESTS: Mapping[str, Mapping[str, Field]] = {
    "POST /v1/chat/completions": CHAT,
    "POST /v1/completions": COMPLETION,
    "POST /tokenize": TOKENIZE,
    "POST /detokenize": DETOKENIZE,
}

_HEAD = """\
# Request fields

What becomes of every field of OpenAI's requests and of vLLM's extensions. Nothing that is known is accepted and
dropped:

- **Forwarded**: it reaches the engine, as a sampling parameter of vLLM or as an input of the backend.
- **Done by the gateway**, which sends the engine what that takes.
- **Refused**: 400, and `error.param` is the field. What is *not supported yet* is refused in the same way.
- **Ignored with a warning**: only where it cannot change the answer; the header `x-gateway-warning` names it.

[`gateway/openai/fields.py`](../gateway/openai/fields.py) is the table that the gateway itself reads; `./dev docs`
writes this page from it. [`python -m gateway check`](gateway.md#check-a-deployment) shows what works on a deployment
of yours.
"""

_RULES = """\
## Of all fields

- `null` is the same as absent.
- A field that no API knows is ignored and named in `x-gateway-warning`, in a message too; with the setting
  `strict_fields` it is a 400 unless it stands in a message. An unknown member of `stream_options` or
  `repetition_detection`, and a body with more than 200 unknown fields, are a 400 always.
- Types are JSON's: `"0.5"` is no number and `"false"` no boolean. A wrong type, a value out of bounds and a key that
  stands twice are a 400 with the place, such as `messages[0].content`.
- A *harmless* value asks for nothing, so it is accepted wherever the field itself cannot be.
- A field that has *no effect* beside what else the request holds is named in `x-gateway-warning`. With
  `max_tokens: 0` (completions with `echo`) nothing is generated: what concerns the answer's tokens is named there too.
- What the model's chat template does not read has no effect there and is named in `x-gateway-warning`: `documents`,
  `reasoning_effort`, a member of `chat_template_kwargs`, a message's `name`, `tool_calls` or `reasoning_content`.
  `tools` that the model is free to call are a 400 there.
- Where `tool_choice` binds the answer to be a call, another constraint beside it (`response_format`) has no effect and
  is named in the same header, as OpenAI has it.
- A sampling parameter that the request leaves out is the model's own (`generation_config.json`), else the engine's.
- *Backend* says where a field works: with `ours`, this project's [`vllm_backend`](../vllm_backend/README.md), or with
  `both`, NVIDIA's stock one too. Elsewhere it is a 400; with an older one of ours that lacks it, too. A table without
  that column is true of both.
"""

_EXTENSIONS = """\
## What an answer holds beside OpenAI's members

vLLM's names and places. In a stream, what is said of the prompt stands in the first chunk, of each choice for
completions.

| member | where | when |
| --- | --- | --- |
| `stop_reason` | choice; in a stream with the `finish_reason` | `stop`, `stop_token_ids` or `repetition_detection` is \
given, with our backend: the stop string or token id that ended the answer, or `"repetition_detected"` |
| `token_ids` | choice; in a stream those of the chunk | `return_token_ids` |
| `prompt_token_ids` | chat: the answer; completions: choice | `return_token_ids` |
| `prompt_logprobs` | chat: the answer; completions: choice | `prompt_logprobs`, not in a stream: for each token of \
the prompt an object of token ids to `logprob`, `rank` and `decoded_token`, its own first; `null` for the first |
| `prompt_text` | the answer to a chat | `return_prompt_text` |
| `reasoning_content` | message; in a stream the delta | the model has a `reasoning_parser` and thinks; its tokens are \
`usage.completion_tokens_details.reasoning_tokens` |

`finish_reason` is `stop`, `length`, `tool_calls` ([tools and reasoning](tools.md)) or, for `repetition_detection`,
`repetition`.
"""

_Cell = Callable[[Field], str]


def page() -> str:
    """The whole page."""
    links = " · ".join(f"[{title}](#{_anchor(title)})" for title in REQUESTS)
    sections = [_HEAD, f"{links}\n", _RULES, _EXTENSIONS]
    sections += [_request(title, table) for title, table in REQUESTS.items()]
    return "\n".join(sections)


def _anchor(title: str) -> str:
    """The fragment that GitHub gives a heading."""
    return "".join(c for c in title.lower().replace(" ", "-") if c.isalnum() or c in "-_")


def _request(title: str, table: Mapping[str, Field]) -> str:
    parts = [f"## {title}\n"]
    for heading, belongs, columns in _GROUPS:
        rows = [field for field in table.values() if belongs(field)]
        if rows:
            parts.append(f"### {heading}\n\n{_table(rows, columns)}")
    return "\n".join(parts)


def _table(rows: Sequence[Field], columns: Mapping[str, _Cell]) -> str:
    shown = dict(columns)
    if len({_backend(row) for row in rows}) == 1:
        shown.pop("backend", None)
    lines = [list(shown), ["---"] * len(shown), *([cell(row) for cell in shown.values()] for row in rows)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _name(field: Field) -> str:
    return f"`{field.name}`"


def _origin(field: Field) -> str:
    return field.origin.value


def _becomes(field: Field) -> str:
    return f"parameter `{field.key}`" if field.key is not None else f"input `{field.input}`"


def _backend(field: Field) -> str:
    return "both" if field.stock else "ours"


def _note(field: Field) -> str:
    harmless = f" Harmless: {_values(field.harmless)}." if field.harmless else ""
    idle = f" No effect where {field.idle}." if field.idle else ""
    return field.note.replace("|", "\\|") + harmless + idle


def _ignored_values(field: Field) -> str:
    return "any" if field.only is None else _values(field.only)


def _values(values: Iterable[Any]) -> str:
    return ", ".join(f"`{json.dumps(value)}`" for value in values)


_ASKED: Mapping[str, _Cell] = {"field": _name, "from": _origin}
_REFUSED = {**_ASKED, "note": _note}
# Heading, which rows, and the columns of each.
_GROUPS: tuple[tuple[str, Callable[[Field], bool], Mapping[str, _Cell]], ...] = (
    (
        "Forwarded",
        lambda field: field.fate is Fate.FORWARDED,
        {**_ASKED, "becomes the engine's": _becomes, "backend": _backend, "note": _note},
    ),
    ("Done by the gateway", lambda field: field.fate is Fate.DONE, {**_ASKED, "backend": _backend, "note": _note}),
    ("Not supported yet", lambda field: field.fate is Fate.REFUSED and field.later, _REFUSED),
    ("Refused", lambda field: field.fate is Fate.REFUSED and not field.later, _REFUSED),
    (
        "Ignored with a warning",
        lambda field: field.fate is Fate.IGNORED,
        {"field": _name, "values": _ignored_values, "note": _note},
    ),
)

if __name__ == "__main__":
    FILE.write_text(page(), encoding="utf-8")
