"""Catalogues: what is built holds exactly what was given, small; what is not whole is not opened; the command."""

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logits_processors import tokens
from logits_processors._native import LONGEST_ENTRY, Catalog, CatalogBuilder, CatalogError
from logits_processors.catalogs import BuildError, build, load_tokenizer

_FINGERPRINT = bytes(range(32))

Entries = list[list[int]]


def write(path: Path, entries: Entries, vocabulary: int = 300) -> Catalog:
    builder = CatalogBuilder(vocabulary, _FINGERPRINT)
    builder.add(entries)
    builder.write(str(path))
    return Catalog(str(path))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("catalogs") / "one.catalog"


_tokens = st.integers(0, 5) | st.integers(0, 299)


@given(st.lists(st.lists(_tokens, min_size=1, max_size=8), min_size=1, max_size=40))
def test_it_holds_the_entries_and_nothing_else(path: Path, entries: Entries) -> None:
    catalog = write(path, entries)
    whole = {tuple(entry) for entry in entries}
    assert catalog.entries == len(whole)
    assert (catalog.vocabulary, catalog.fingerprint, catalog.size) == (300, _FINGERPRINT, path.stat().st_size)
    longer, shorter = [[*entry, 1] for entry in entries], [entry[:-1] for entry in entries]
    for candidate in [*entries, *longer, *shorter, *([*entry, 7] for entry in shorter)]:
        assert (candidate in catalog) == (tuple(candidate) in whole)
    goes_on = {entry[length] for entry in whole for length in range(1, len(entry)) if entry[:length] in whole}
    assert {token for token in range(300) if catalog.continues_with(token)} == goes_on


def test_the_longest_entry(path: Path) -> None:
    longest = [[7] * LONGEST_ENTRY, [7] * (LONGEST_ENTRY - 1), [7] * (LONGEST_ENTRY - 1) + [8]]
    catalog = write(path, longest)
    assert all(entry in catalog for entry in longest)
    assert [7] * (LONGEST_ENTRY - 2) not in catalog


@pytest.mark.parametrize("entries", [[[]], [[300]], [[-1]], [[1] * (LONGEST_ENTRY + 1)]])
def test_entries_that_cannot_be(path: Path, entries: Entries) -> None:
    with pytest.raises(CatalogError):
        write(path, entries)


def test_no_entries(path: Path) -> None:
    with pytest.raises(CatalogError, match="no entries"):
        write(path, [])


def test_every_cut_and_every_changed_byte_is_noticed(path: Path) -> None:
    write(path, [[1, 2, 3], [1, 2], [4, 5, 6, 7], [4], [290]])
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(CatalogError):
            Catalog(str(path))
    path.write_bytes(whole + b"\0")
    with pytest.raises(CatalogError):
        Catalog(str(path))
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x40]) + whole[place + 1 :])
        with pytest.raises(CatalogError):
            Catalog(str(path))


def test_the_old_file_stays_mapped_when_a_new_one_takes_its_name(path: Path) -> None:
    old = write(path, [[1, 2], [3]])
    new = write(path, [[4]])
    assert [1, 2] in old
    assert [1, 2] not in new
    assert [item.name for item in path.parent.iterdir()] == [path.name]


def test_an_entry_takes_less_than_forty_bytes(path: Path) -> None:
    """Of random ones, the hardest to keep small: most of their tokens are their own."""
    choose = random.Random(1)
    entries = [[choose.randrange(1000) for _ in range(8)] for _ in range(100_000)]
    catalog = write(path, entries, 1000)
    assert catalog.size / catalog.entries < 40


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the tiny model."""
    from devtools import tiny_model

    folder = tmp_path_factory.mktemp("model")
    tiny_model.make(folder)
    return folder


def run(*arguments: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-I", "-m", "logits_processors", *(str(argument) for argument in arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def test_the_command_builds_and_shows(model: Path, tmp_path: Path) -> None:
    source = tmp_path / "things.txt"
    source.write_bytes("a house\r\nüber\n\n世界</s>\na house\n the river".encode())
    target = tmp_path / "things.catalog"
    built = run("build", source, "--tokenizer", model, "--output", target)
    assert built.returncode == 0, built.stderr
    assert "4 entries" in built.stdout
    assert "left out: 1 duplicates and 1 empty lines" in built.stdout
    shown = run("show", target)
    assert "4 entries" in shown.stdout
    backend = load_tokenizer(model)
    catalog = Catalog(str(target))
    for text in ("a house", "über", " the river"):
        assert backend.encode(text, add_special_tokens=False).ids in catalog
    # What looks like a special token is text here.
    assert backend.encode("世界</s>", add_special_tokens=False).ids not in catalog
    backend.encode_special_tokens = True
    assert backend.encode("世界</s>", add_special_tokens=False).ids in catalog


def test_progress_ends_at_the_whole_file(model: Path, tmp_path: Path) -> None:
    source = tmp_path / "many.txt"
    source.write_text("".join(f"item {number}\n" for number in range(25_000)))
    seen: list[tuple[int, float]] = []
    built = build(source, load_tokenizer(model), tmp_path / "many.catalog", lambda *step: seen.append(step))
    assert built.entries == 25_000
    assert [count for count, _ in seen] == [10_000, 20_000, 25_000]
    assert [part for _, part in seen] == sorted(part for _, part in seen)
    assert seen[-1][1] == 1


def _word_piece() -> Any:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    pieces = ["[UNK]", "a", "b", "##a", "##b", "##ab", "."]
    tokenizer = Tokenizer(models.WordPiece({piece: index for index, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def _unigram() -> Any:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    pieces = [("<unk>", 0.0), ("▁", -2.0), ("a", -1.0), ("b", -1.5), ("▁a", -1.2), ("ab", -2.0), (".", -3.0)]
    tokenizer = Tokenizer(models.Unigram(pieces, 0, False))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Strip()])
    # Puts something before the first word of a text only.
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    return tokenizer


def _byte_level_with_frame() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {piece: index for index, piece in enumerate([*alphabet, "ab", "<s>"])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("a", "b")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", vocabulary["<s>"])]
    )
    tokenizer.add_special_tokens(["<s>"])
    return tokenizer


@pytest.mark.parametrize("make", [_word_piece, _unigram, _byte_level_with_frame])
@pytest.mark.parametrize(
    "texts",
    [
        ["ab"],
        ["ab", "a b"],
        ["a b ", " ab", "a.b.", "  ", "\u00e9a", "ab\u3000a", "<s>", "b"],
        # What ends each of them inside.
        ["a", "a\U0010fffe\uffffb", "b"],
    ],
)
def test_texts_that_are_encoded_together_get_the_tokens_that_each_has_alone(
    make: Callable[[], Any], texts: list[str]
) -> None:
    joined, alone = tokens.Joined(make()), tokens.plain(make())
    expected = [[*alone.encode(text, add_special_tokens=False).ids, joined.end] for text in texts]
    assert joined.encode(texts) == [token for ids in expected for token in ids]
    assert joined.end >= tokens.vocabulary_size(make())


def test_building_leaves_the_environment_and_the_processors_as_they_were(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "things.txt"
    source.write_text("a\n")
    processors = os.sched_getaffinity(0)
    for before in (None, "true"):
        monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
        if before is not None:
            monkeypatch.setenv("TOKENIZERS_PARALLELISM", before)
        build(source, load_tokenizer(model), tmp_path / "things.catalog", lambda *_: None)
        assert os.environ.get("TOKENIZERS_PARALLELISM") == before
    assert os.sched_getaffinity(0) == processors


def test_what_the_tokenizer_alters_is_told(model: Path, tmp_path: Path) -> None:
    from tokenizers import normalizers

    backend = load_tokenizer(model)
    backend.normalizer = normalizers.Lowercase()
    source = tmp_path / "things.txt"
    source.write_text("same\nOther\n")
    built = build(source, backend, tmp_path / "things.catalog", lambda *_: None)
    assert built.altered == ("Other", "other")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "has no entries"),
        (b"\n\n", "has no entries"),
        (b"fine\nb\xffd\n", "line 2: is not UTF-8"),
        (b"fine\n" + b"x y " * 2000 + b"\n", "line 2: an entry has 1 to 1024 tokens, this one has"),
        (b"\r\nfine\n" * 6000 + b"x y " * 2000, "line 12001: an entry has 1 to 1024 tokens, this one has"),
        (b"\nfine\n" * 6000 + b"\nb\xffd", "line 12002: is not UTF-8"),
    ],
)
def test_a_wrong_text_is_an_error_with_its_line(model: Path, tmp_path: Path, content: bytes, why: str) -> None:
    source = tmp_path / "things.txt"
    source.write_bytes(content)
    with pytest.raises(BuildError) as caught:
        build(source, load_tokenizer(model), tmp_path / "things.catalog", lambda *_: None)
    assert why in str(caught.value)
    assert not (tmp_path / "things.catalog").exists()


def test_wrong_arguments_of_the_command_are_one_sentence_and_exit_code_2(model: Path, tmp_path: Path) -> None:
    source = tmp_path / "things.txt"
    source.write_text("a\n")
    good = tmp_path / "a.catalog"
    for arguments, why in [
        (["build", tmp_path / "none.txt", "--tokenizer", model, "--output", good], "none.txt cannot be read"),
        (["build", source, "--tokenizer", tmp_path / "none", "--output", good], "is not a folder"),
        (["build", source, "--tokenizer", tmp_path, "--output", good], "cannot be loaded"),
        (["build", source, "--tokenizer", model, "--output", tmp_path / "a.txt"], "ends in .catalog"),
        (["build", source, "--tokenizer", model, "--output", tmp_path / "no" / "a.catalog"], "is not a folder"),
        (["show", source], "is not a catalogue"),
        (["show", tmp_path / "none.catalog"], "cannot be opened"),
    ]:
        said = run(*arguments)
        assert said.returncode == 2, arguments
        assert why in said.stderr
        assert len(said.stderr.strip().splitlines()) == 1, said.stderr
