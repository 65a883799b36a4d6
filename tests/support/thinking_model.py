"""A tiny random model that thinks: `<think>` and `</think>` are tokens of its vocabulary, and its chat template opens
the thinking unless the request turns that off with `enable_thinking`."""

import json
import shutil
from pathlib import Path

from tokenizers import Tokenizer

OPENING, CLOSING = "<think>", "</think>"

_GENERATION_PROMPT = "{{- '<|start|>assistant\\n' }}"


def make(target: Path, tiny: Path) -> Path:
    """Writes the model to the folder `target`, as a copy of the tiny random model in `tiny`."""
    shutil.copytree(tiny, target)
    path = target / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    vocabulary: dict[str, int] = tokenizer["model"]["vocab"]
    # The marks take the ids of the two tokens that were merged last, which no other token is merged from: the model
    # has no row of weights for a new one.
    del tokenizer["model"]["merges"][-2:]
    for mark, (token, number) in zip((OPENING, CLOSING), sorted(vocabulary.items(), key=_id)[-2:], strict=True):
        del vocabulary[token]
        tokenizer["added_tokens"].append(
            {"id": number, "content": mark, "special": False, "normalized": False}
            | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
        )
    path.write_text(json.dumps(tokenizer))
    template = target / "chat_template.jinja"
    text = template.read_text()
    assert _GENERATION_PROMPT in text
    opened = "{%- if enable_thinking is defined and not enable_thinking %}{{- '<think>\\n\\n</think>\\n\\n' }}"
    opened += "{%- else %}{{- '<think>\\n' }}{%- endif %}"
    template.write_text(text.replace(_GENERATION_PROMPT, _GENERATION_PROMPT + opened))
    return target


def token_of(model: Path, mark: str) -> int:
    """The id of a mark."""
    (number,) = Tokenizer.from_file(str(model / "tokenizer.json")).encode(mark, add_special_tokens=False).ids
    return int(number)


def _id(entry: tuple[str, int]) -> int:
    return entry[1]
