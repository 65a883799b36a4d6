"""Builds the file of a catalogue from a text file and a tokenizer. Reads and writes files; prints nothing."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from logits_processors import tokens
from logits_processors._native import LONGEST_ENTRY, CatalogBuilder, CatalogError

SUFFIX = ".catalog"

_AT_A_TIME = 10_000
"""Lines that are encoded together: what that takes in memory should not leave the caches."""

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
    """Lines that were read together, without the empty ones."""

    first: int
    """The number of the first one that was read, from 1."""
    texts: list[str]
    all_texts: list[str]
    """With the empty ones."""
    part: float
    """Which part of the file has been read, from 0 to 1."""

    def number_of(self, index: int) -> int:
        """Of a text, in the file."""
        numbers = [number for number, text in enumerate(self.all_texts, self.first) if text]
        return numbers[index]


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
    joined = tokens.Joined(backend)
    builder = CatalogBuilder(tokens.vocabulary_size(backend), tokens.fingerprint(backend))
    total, empty_lines, altered = 0, 0, None
    for lines, encoded in _encoded(source, joined):
        if (added := builder.add_joined(encoded, joined.end)) < len(lines.texts):
            (length,) = islice(map(len, _split(encoded, joined.end)), added, added + 1)
            place = f"{source}, line {lines.number_of(added)}"
            raise BuildError(f"{place}: an entry has 1 to {LONGEST_ENTRY} tokens, this one has {length}.")
        if total == 0:
            altered = _first_altered(tokens.plain(backend), lines.texts[:_SAMPLE], _split(encoded, joined.end))
        total += len(lines.texts)
        empty_lines += len(lines.all_texts) - len(lines.texts)
        progress(total, lines.part)
    if total == 0:
        raise BuildError(f"{source} has no entries; it must have one a line.")
    try:
        entries = builder.write(str(target))
    except CatalogError as error:
        raise BuildError(f"{target} {error}.") from error
    return Built(entries, target.stat().st_size, total - entries, empty_lines, altered)


def _encoded(source: Path, joined: tokens.Joined) -> Iterator[tuple[_Lines, list[int]]]:
    """The lines with their tokens. The next ones are encoded, without the GIL, while the caller handles these."""
    processors = sorted(os.sched_getaffinity(0))
    # They wait for each other's GIL now and then; where they are woken, two may be left on one processor.
    free = iter(processors)
    with _own_threads(), ThreadPoolExecutor(len(processors), initializer=lambda: _run_on(next(free))) as pool:
        running: deque[tuple[_Lines, Future[list[int]]]] = deque()
        for lines in _lines(source):
            running.append((lines, pool.submit(joined.encode, lines.texts)))
            if len(running) > 2 * len(processors):
                first, encoded = running.popleft()
                yield first, encoded.result()
        for first, encoded in running:
            yield first, encoded.result()


def _run_on(processor: int) -> None:
    """This thread, alone."""
    with suppress(OSError):
        os.sched_setaffinity(0, {processor})


@contextmanager
def _own_threads() -> Iterator[None]:
    """The tokenizers library does all in the thread that calls it. Its own threads would wait for each other between
    two calls, and for the one that makes Python's objects of what they found."""
    name = "TOKENIZERS_PARALLELISM"
    before = os.environ.get(name)
    os.environ[name] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _lines(source: Path) -> Iterator[_Lines]:
    """The lines, some at a time."""
    try:
        with source.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            first, read = 1, 0
            while raw := b"".join(islice(file, _AT_A_TIME)):
                read += len(raw)
                try:
                    text = raw.decode()
                except UnicodeDecodeError as error:
                    number = first + raw.count(b"\n", 0, error.start)
                    raise BuildError(f"{source}, line {number}: is not UTF-8.") from None
                all_texts = [line.rstrip("\r") for line in text.removesuffix("\n").split("\n")]
                yield _Lines(first, [line for line in all_texts if line], all_texts, read / size)
                first += len(all_texts)
    except OSError as error:
        raise BuildError(f"{source} cannot be read: {error.strerror}.") from error


def _split(encoded: list[int], end: int) -> Iterator[list[int]]:
    """The tokens of each text."""
    start = 0
    while start < len(encoded):
        stop = encoded.index(end, start)
        yield encoded[start:stop]
        start = stop + 1


def _first_altered(plain: Any, texts: list[str], encoded: Iterable[list[int]]) -> tuple[str, str] | None:
    for text, ids in zip(texts, encoded, strict=False):
        if (decoded := plain.decode(ids, skip_special_tokens=False)) != text:
            return text, decoded
    return None
