"""Tiny random models whose vocabularies have marks as tokens. One of them thinks: its marks are `<think>` and
`</think>`, and its chat template opens the thinking unless the request turns that off with `enable_thinking`."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

OPENING, CLOSING = "<think>", "</think>"

_GENERATION_PROMPT = "{{- '<|start|>assistant\\n' }}"


def make(target: Path, tiny: Path) -> Path:
    """Writes the model that thinks to the folder `target`, as a copy of the tiny random model in `tiny`."""
    with_marks(target, tiny, (OPENING, CLOSING))
    template = target / "chat_template.jinja"
    text = template.read_text()
    assert _GENERATION_PROMPT in text
    opened = "{%- if enable_thinking is defined and not enable_thinking %}{{- '<think>\\n\\n</think>\\n\\n' }}"
    opened += "{%- else %}{{- '<think>\\n' }}{%- endif %}"
    template.write_text(text.replace(_GENERATION_PROMPT, _GENERATION_PROMPT + opened))
    return target


def with_marks(target: Path, tiny: Path, marks: Sequence[str]) -> Path:
    """Writes a copy of the tiny random model whose vocabulary has these marks."""
    shutil.copytree(tiny, target)
    path = target / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    vocabulary: dict[str, int] = tokenizer["model"]["vocab"]
    # The marks take the ids of the tokens that were merged last: the model has no row of weights for a new one. Of
    # those that some other token is merged from, there are none among the last few.
    del tokenizer["model"]["merges"][-len(marks) :]
    for mark, (token, number) in zip(marks, sorted(vocabulary.items(), key=_id)[-len(marks) :], strict=True):
        del vocabulary[token]
        tokenizer["added_tokens"].append(
            {"id": number, "content": mark, "special": False, "normalized": False}
            | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
        )
    path.write_text(json.dumps(tokenizer))
    return target


def token_of(model: Path, mark: str) -> int:
    """The id of a mark."""
    (number,) = Tokenizer.from_file(str(model / "tokenizer.json")).encode(mark, add_special_tokens=False).ids
    return int(number)


def _id(entry: tuple[str, int]) -> int:
    return entry[1]
