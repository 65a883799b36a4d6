"""Every wrong argument is refused with its path, before anything else is looked at."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from logits_processors import tokens
from logits_processors._native import ArgumentError, CatalogBuilder
from logits_processors.requests import Requests
from logits_processors.settings import Settings

_WORDS = ["<end>", "a", "b", "c", ",", ";"]


def make_backend(words: list[str]) -> Tokenizer:
    """One token a word; "<end>" is special."""
    backend = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token=words[0]))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return backend


def write_catalog(path: Path, entries: list[list[int]], backend: Tokenizer) -> None:
    builder = CatalogBuilder(tokens.vocabulary_size(backend), tokens.fingerprint(backend))
    builder.add(entries)
    builder.write(str(path))


def sampling(constraints: object, **others: object) -> Any:
    """Sampling parameters, as vLLM's."""
    defaults: dict[str, object] = {"extra_args": {"constraints": constraints}, "stop_token_ids": []}
    return SimpleNamespace(**defaults | others)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    backend = make_backend(_WORDS)
    write_catalog(tmp_path / "letters.catalog", [[1], [1, 4, 2], [3]], backend)
    write_catalog(tmp_path / "others.catalog", [[1]], make_backend([*_WORDS, "more"]))
    whole = (tmp_path / "letters.catalog").read_bytes()
    (tmp_path / "truncated.catalog").write_bytes(whole[:-3])
    (tmp_path / "short.catalog").write_bytes(whole[:20])
    (tmp_path / "damaged.catalog").write_bytes(whole[:-3] + b"\x07" + whole[-2:])
    (tmp_path / "newer.catalog").write_bytes(whole[:8] + b"\x09" + whole[9:])
    (tmp_path / "text.catalog").write_text("a\n" * 100)
    (tmp_path / "empty.catalog").touch()
    (tmp_path / "folder.catalog").mkdir()
    return tmp_path


@pytest.fixture
def requests(folder: Path) -> Requests:
    return Requests(Settings(folder, 1), SimpleNamespace(backend_tokenizer=make_backend(_WORDS)), {0})


def catalog(name: object = "letters", **arguments: object) -> dict[str, object]:
    return {"catalog": {"name": name, **arguments}}


@pytest.mark.parametrize(
    "constraints",
    [
        catalog(),
        catalog(items=1),
        catalog(items=3, separator=";"),
        {"no_repeat_ngram": {"size": 1}},
        {"no_repeat_ngram": {"size": 64}},
        None,
    ],
)
def test_what_may_be_asked_for(requests: Requests, constraints: object) -> None:
    requests.check(sampling(constraints))
    assert (requests.machine(sampling(constraints)) is None) == (constraints is None)


@pytest.mark.parametrize(
    ("constraints", "path", "why"),
    [
        ([], "", "must be an object"),
        ("catalog", "", "must be an object"),
        (True, "", "must be an object"),
        ({}, "", "exactly one member, one of: catalog, no_repeat_ngram"),
        (catalog() | {"no_repeat_ngram": {"size": 2}}, "", "exactly one member"),
        ({"bad_words": {}}, ".bad_words", "not a constraint"),
        ({"catalog": "letters"}, ".catalog", "must be an object"),
        ({"catalog": None}, ".catalog", "must be an object"),
        ({"catalog": {}}, ".catalog.name", "is missing"),
        (catalog(7), ".catalog.name", "must be a string"),
        (catalog(""), ".catalog.name", "must have 1 to 128 bytes"),
        (catalog("x" * 129), ".catalog.name", "must have 1 to 128 bytes"),
        (catalog("\ud800"), ".catalog.name", "must be a string"),
        (catalog("../letters"), ".catalog.name", "is no name of a catalogue"),
        (catalog("a/b"), ".catalog.name", "is no name of a catalogue"),
        (catalog("letters\0"), ".catalog.name", "is no name of a catalogue"),
        (catalog("nothing"), ".catalog.name", "nothing is not among"),
        (catalog("others"), ".catalog.name", "another tokenizer"),
        (catalog("truncated"), ".catalog.name", "is truncated"),
        (catalog("short"), ".catalog.name", "is truncated"),
        (catalog("damaged"), ".catalog.name", "checksum"),
        (catalog("newer"), ".catalog.name", "version 9"),
        (catalog("text"), ".catalog.name", "is not a catalogue"),
        (catalog("empty"), ".catalog.name", "is not a catalogue"),
        (catalog("folder"), ".catalog.name", "is not a regular file"),
        (catalog(words=3), ".catalog.words", "there are: name, items, separator"),
        (catalog(items=0), ".catalog.items", "whole number from 1 to 10000"),
        (catalog(items=10_001, separator=";"), ".catalog.items", "whole number from 1 to 10000"),
        (catalog(items=2**70, separator=";"), ".catalog.items", "whole number"),
        (catalog(items=2.0, separator=";"), ".catalog.items", "whole number"),
        (catalog(items=True), ".catalog.items", "whole number"),
        (catalog(items="2", separator=";"), ".catalog.items", "whole number"),
        (catalog(items=4, separator=";"), ".catalog.items", "only 3 entries"),
        (catalog(items=2), ".catalog.separator", "is missing"),
        (catalog(items=2, separator=""), ".catalog.separator", "must have 1 to 64 bytes"),
        (catalog(items=2, separator="x" * 65), ".catalog.separator", "must have 1 to 64 bytes"),
        (catalog(items=2, separator=None), ".catalog.separator", "must be a string"),
        (catalog(items=2, separator=" "), ".catalog.separator", "is no token"),
        (catalog(items=2, separator="; <end>"), ".catalog.separator", "a token that ends the output"),
        # "a" is an entry, and "a , b" is one.
        (catalog(items=2, separator=", ;"), ".catalog.separator", "could not be told apart"),
        (catalog(separator=";"), ".catalog.separator", "is for lists"),
        (catalog(items=1, separator=";"), ".catalog.separator", "is for lists"),
        ({"no_repeat_ngram": {}}, ".no_repeat_ngram.size", "is missing"),
        ({"no_repeat_ngram": {"size": 0}}, ".no_repeat_ngram.size", "from 1 to 64"),
        ({"no_repeat_ngram": {"size": 65}}, ".no_repeat_ngram.size", "from 1 to 64"),
        ({"no_repeat_ngram": {"size": 2, "window": 9}}, ".no_repeat_ngram.window", "there are: size"),
        ({"no_repeat_ngram": {"size": {"a": {"b": {"c": {"d": {}}}}}}}, ".no_repeat_ngram.size", "whole number"),
    ],
)
def test_a_wrong_argument_is_named(requests: Requests, folder: Path, constraints: object, path: str, why: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        requests.check(sampling(constraints))
    text = str(caught.value)
    assert text.startswith(f"extra_args.constraints{path}: ")
    assert why in text
    assert str(folder) not in text


@pytest.mark.parametrize(
    ("parameter", "value", "for_ngrams_too"),
    [
        ("structured_outputs", object(), True),
        ("allowed_token_ids", [1], True),
        ("bad_words", ["a"], False),
        ("min_tokens", 1, False),
        ("ignore_eos", True, False),
        ("thinking_token_budget", 5, False),
    ],
)
def test_what_could_leave_nothing_allowed_is_refused(
    requests: Requests, parameter: str, value: object, for_ngrams_too: bool
) -> None:
    with pytest.raises(ValueError, match=f"^extra_args.constraints: does not go with {parameter}: "):
        requests.check(sampling(catalog(), **{parameter: value}))
    ngrams = sampling({"no_repeat_ngram": {"size": 2}}, **{parameter: value})
    if for_ngrams_too:
        with pytest.raises(ValueError, match=f"^extra_args.constraints: does not go with {parameter}: "):
            requests.check(ngrams)
    else:
        requests.check(ngrams)


@pytest.mark.parametrize("extra_args", [None, {}, {"other": 1}, {"constraints": None}])
def test_requests_without_a_constraint_are_none_of_ours(requests: Requests, extra_args: object) -> None:
    params = sampling(None, extra_args=extra_args, structured_outputs=object())
    requests.check(params)
    assert requests.machine(params) is None


def test_a_model_without_an_end_needs_stop_tokens(folder: Path) -> None:
    endless = Requests(Settings(folder, 1), SimpleNamespace(backend_tokenizer=make_backend(_WORDS)), set())
    with pytest.raises(ValueError, match=r"^extra_args.constraints: the model has no token that ends"):
        endless.check(sampling(catalog()))
    endless.check(sampling(catalog(), stop_token_ids=[5]))


def test_without_a_folder_there_are_no_catalogues() -> None:
    requests = Requests(Settings(None, 1), None, {0})
    with pytest.raises(ValueError, match=r"^extra_args.constraints.catalog.name: letters is not among"):
        requests.check(sampling(catalog()))
    requests.check(sampling({"no_repeat_ngram": {"size": 2}}))


def test_a_catalogue_that_is_replaced_is_read_anew(requests: Requests, folder: Path) -> None:
    requests.check(sampling(catalog(items=3, separator=";")))
    write_catalog(folder / "letters.catalog", [[1], [2]], make_backend(_WORDS))
    with pytest.raises(ValueError, match="only 2 entries"):
        requests.check(sampling(catalog(items=3, separator=";")))
    (folder / "letters.catalog").unlink()
    with pytest.raises(ValueError, match="letters is not among"):
        requests.check(sampling(catalog()))


@pytest.mark.parametrize(
    ("additional_config", "path"),
    [
        ({"constraints": []}, "constraints: "),
        ({"constraints": {"folder": "x"}}, "constraints.folder: "),
        ({"constraints": {"catalogs": 3}}, "constraints.catalogs: "),
        ({"constraints": {"catalogs": "/nowhere/at/all"}}, "constraints.catalogs: "),
        ({"constraints": {"threads": 0}}, "constraints.threads: "),
        ({"constraints": {"threads": 65}}, "constraints.threads: "),
        ({"constraints": {"threads": True}}, "constraints.threads: "),
        ({"constraints": {"threads": "2"}}, "constraints.threads: "),
    ],
)
def test_a_wrong_setting_is_named(additional_config: dict[str, object], path: str) -> None:
    with pytest.raises(ValueError, match=f"^additional_config.{path}"):
        Settings.read(additional_config)


def test_settings(tmp_path: Path) -> None:
    assert Settings.read({"constraints": {"catalogs": str(tmp_path), "threads": 3}}) == Settings(tmp_path, 3)
    assert Settings.read({}).catalogs is None
    assert Settings.read({}).threads >= 1
    assert Settings.read(object()) == Settings.read({})


def test_catalogues_need_a_tokenizer_of_the_library(tmp_path: Path) -> None:
    for tokenizer in (None, object()):
        with pytest.raises(ValueError, match=r"^additional_config.constraints.catalogs: "):
            Requests(Settings(tmp_path, 1), tokenizer, {0})
