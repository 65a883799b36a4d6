"""Builds the file of a catalogue from a text file and a tokenizer. Reads and writes files; prints nothing."""

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from logits_processors import tokens
from logits_processors._native import LONGEST_ENTRY, CatalogBuilder, CatalogError

SUFFIX = ".catalog"

_AT_A_TIME = 50_000
"""Lines that are encoded together."""

_AHEAD = 2
"""How often: while one thread makes lists of its tokens, which needs the GIL, another one's are found."""

_SAMPLE = 1_000
"""Entries that are decoded again, to see whether they come back as the same text."""


class BuildError(Exception):
    """What is wrong with the input, in one sentence."""


@dataclass(frozen=True)
class Built:
    """What became of the lines of a text file."""

    entries: int
    size: int
    """Of the file, in bytes."""
    duplicates: int
    empty_lines: int
    altered: tuple[str, str] | None
    """One of the first entries, and what the tokenizer makes of its tokens, if those are not the same."""


class _Lines(NamedTuple):
    """Lines that were read together. `numbers` counts them from 1, in the file."""

    numbers: list[int]
    texts: list[str]
    empty: int
    part: float
    """Which part of the file has been read, from 0 to 1."""


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer of a model's folder, as the engine loads it. Raises BuildError."""
    if not folder.is_dir():
        raise BuildError(f"{folder} is not a folder; give that of the model, with its tokenizer.json.")
    # It says at its import that torch is missing, which nothing here needs.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise BuildError("transformers is not installed; run this where the engine's packages are.") from None
    try:
        return tokens.backend_of(AutoTokenizer.from_pretrained(folder, local_files_only=True))
    except Exception as error:
        raise BuildError(
            f"The tokenizer in {folder} cannot be loaded; its tokenizer.json and tokenizer_config.json are needed."
        ) from error


def build(source: Path, backend: Any, target: Path, progress: Callable[[int, float], object]) -> Built:
    """Writes the catalogue `target` of the lines of `source`, by the tokenizer `backend` of the tokenizers library.

    `progress` gets the number of lines so far and the read part of the file, from 0 to 1. Raises BuildError.
    """
    if target.suffix != SUFFIX:
        raise BuildError(f"The name of a catalogue ends in {SUFFIX}; {target.name} does not.")
    if not target.parent.is_dir():
        raise BuildError(f"{target.parent} is not a folder; make it, or write the catalogue elsewhere.")
    plain = tokens.plain(backend)
    builder = CatalogBuilder(tokens.vocabulary_size(backend), tokens.fingerprint(backend))
    total, empty_lines, altered = 0, 0, None
    for lines, encoded in _encoded(source, plain):
        for number, ids in zip(lines.numbers, encoded, strict=True):
            if not 0 < len(ids) <= LONGEST_ENTRY:
                raise BuildError(
                    f"{source}, line {number}: an entry has 1 to {LONGEST_ENTRY} tokens, this one has {len(ids)}."
                )
        builder.add(encoded)
        if total == 0:
            altered = _first_altered(plain, lines.texts[:_SAMPLE], encoded)
        total += len(lines.texts)
        empty_lines += lines.empty
        progress(total, lines.part)
    if total == 0:
        raise BuildError(f"{source} has no entries; it must have one a line.")
    try:
        entries = builder.write(str(target))
    except CatalogError as error:
        raise BuildError(f"{target} {error}.") from error
    return Built(entries, target.stat().st_size, total - entries, empty_lines, altered)


def _encoded(source: Path, plain: Any) -> Iterator[tuple[_Lines, list[list[int]]]]:
    """The lines with their tokens. The next ones are encoded, without the GIL, while the caller handles these."""
    with ThreadPoolExecutor(_AHEAD) as ahead:
        running: deque[tuple[_Lines, Future[list[list[int]]]]] = deque()
        for lines in _lines(source):
            running.append((lines, ahead.submit(tokens.encode, plain, lines.texts)))
            if len(running) > _AHEAD:
                first, encoded = running.popleft()
                yield first, encoded.result()
        for first, encoded in running:
            yield first, encoded.result()


def _lines(source: Path) -> Iterator[_Lines]:
    """The lines that are not empty, some at a time."""
    try:
        with source.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            lines = _Lines([], [], 0, 0)
            read = 0
            for number, line in enumerate(file, 1):
                read += len(line)
                try:
                    text = line.rstrip(b"\r\n").decode()
                except UnicodeDecodeError:
                    raise BuildError(f"{source}, line {number}: is not UTF-8.") from None
                if text:
                    lines.numbers.append(number)
                    lines.texts.append(text)
                else:
                    lines = lines._replace(empty=lines.empty + 1)
                if len(lines.texts) == _AT_A_TIME:
                    yield lines._replace(part=read / size)
                    lines = _Lines([], [], 0, 0)
            if lines.texts or lines.empty:
                yield lines._replace(part=1)
    except OSError as error:
        raise BuildError(f"{source} cannot be read: {error.strerror}.") from error


def _first_altered(plain: Any, texts: list[str], encoded: list[list[int]]) -> tuple[str, str] | None:
    for text, ids in zip(texts, encoded, strict=False):
        if (decoded := plain.decode(ids, skip_special_tokens=False)) != text:
            return text, decoded
    return None
