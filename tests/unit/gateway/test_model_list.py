"""The model list: which models there are, as files of the repositories appear, change, break and go."""

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

from gateway import model_list, models
from gateway.model_list import Copy, Listing, ModelList
from gateway.models import ServedModel, ServedModels, named
from gateway.openai.errors import ApiError
from gateway.repository import EngineArguments
from gateway.settings import ModelSettings, load
from tests.support.refusals import refusal

ALL_READY = frozenset({"a", "b", "c"})


def publish(repository: Path, name: str, *, template: str = "x", **arguments: Any) -> Path:
    """An entry and the model's own folder, each file replaced as prefetch does; the entry."""
    weights = repository.parent / f"{repository.name}-{name}-hf"
    put(weights / "tokenizer_config.json", json.dumps({"chat_template": template}))
    entry = repository / name
    put(entry / "1" / "model.json", json.dumps({"model": str(weights), "max_model_len": 512} | arguments))
    put(entry / "config.pbtxt", 'backend: "vllm"\n')
    return entry


def put(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_name(f".{file.name}.new")
    new.write_text(text)
    new.rename(file)


class Watched:
    """A model list, looked at as by the gateway."""

    def __init__(self, *flags: str, repositories: list[Path]) -> None:
        folders = [flag for folder in repositories for flag in ("--model-repository", str(folder))]
        self.list = ModelList(load([*folders, *flags]))
        self.served = self.list.served

    async def look(self, *listed: str, ready: frozenset[str] = frozenset()) -> bool:
        return await self.list.look(listed, ready.__contains__)

    @property
    def names(self) -> list[str]:
        return [model.names[0] for model in self.served]


@pytest.mark.parametrize("flag", ["--models", "--config"])
def test_an_empty_list_of_models_is_not_taken_for_none(flag: str, tmp_path: Path) -> None:
    repository, file = tmp_path / "repository", tmp_path / "gateway.yaml"
    publish(repository, "a")
    file.write_text("models: []\n")
    flags = ["--model-repository", str(repository)]
    given = load([*flags, flag, "[]" if flag == "--models" else str(file)])
    assert "'models' names no model" in refusal(lambda: ModelList(given))
    assert [model.names[0] for model in ModelList(load(flags)).served] == ["a"]


@pytest.fixture
def first(tmp_path: Path) -> Path:
    folder = tmp_path / "first"
    folder.mkdir()
    return folder


@pytest.fixture
def second(tmp_path: Path) -> Path:
    folder = tmp_path / "second"
    folder.mkdir()
    return folder


def test_the_models_of_all_repositories_are_served(first: Path, second: Path) -> None:
    publish(first, "b")
    publish(second, "a")
    assert Watched(repositories=[first, second]).names == ["a", "b"]


def test_one_name_in_two_repositories_is_one_sentence(first: Path, second: Path) -> None:
    entries = publish(first, "a"), publish(second, "a")
    text = refusal(lambda: Watched(repositories=[first, second]))
    assert "'a' lies in two repositories" in text
    assert all(str(entry) in text for entry in entries)
    named_by_settings = '[{"triton_model": "a"}]'
    assert "two repositories" in refusal(lambda: Watched("--models", named_by_settings, repositories=[first, second]))


async def test_one_name_in_two_repositories_later_is_logged_once_and_the_first_stays(
    first: Path, second: Path, caplog: pytest.LogCaptureFixture
) -> None:
    publish(first, "a", max_model_len=100)
    watched = Watched(repositories=[first, second])
    entry = publish(second, "a", max_model_len=200)
    for _ in range(3):
        await watched.look("a", ready=ALL_READY)
    assert [model.max_model_len for model in watched.served] == [100]
    (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert str(entry) in line
    # Triton says then that there are two; without the first, there is one again.
    shutil.rmtree(first / "a")
    await watched.look("a", ready=ALL_READY)
    assert [model.max_model_len for model in watched.served] == [200]


async def test_a_list_may_begin_empty_and_models_appear(
    first: Path, second: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watched = Watched(repositories=[first, second])
    assert watched.names == []
    assert "no model is served yet" in caplog.text
    assert not await watched.look()
    publish(second, "b")
    # Nothing is looked for that no Triton has in its index.
    assert not await watched.look()
    assert watched.names == []
    assert await watched.look("b")
    assert watched.names == ["b"]
    publish(first, "a")
    assert await watched.look("a", "b")
    assert watched.names == ["a", "b"]
    assert not await watched.look("a", "b")


async def test_what_triton_lists_and_no_repository_has_is_no_model(first: Path) -> None:
    watched = Watched(repositories=[first])
    put(first / "onnx" / "config.pbtxt", 'backend: "onnxruntime"')
    assert not await watched.look("onnx", "elsewhere", "..", "a/b")
    assert watched.names == []
    # The same name may become one later.
    publish(first, "onnx")
    assert await watched.look("onnx", "elsewhere")
    assert watched.names == ["onnx"]


@pytest.mark.parametrize("file", ["model.json", "tokenizer", "template", "version"])
async def test_a_changed_model_is_read_again(file: str, first: Path) -> None:
    entry = publish(first, "a")
    watched = Watched(repositories=[first])
    (before,) = watched.served
    assert not await watched.look("a", ready=ALL_READY)
    assert list(watched.served) == [before]
    weights = Path(json.loads((entry / "1" / "model.json").read_text())["model"])
    if file == "model.json":
        publish(first, "a", max_model_len=64)
    elif file == "tokenizer":
        put(weights / "tokenizer_config.json", json.dumps({"chat_template": "y"}))
    elif file == "template":
        # There was none of that name before.
        put(weights / "chat_template.jinja", "y")
    else:
        put(entry / "2" / "model.json", json.dumps({"model": str(weights), "max_model_len": 64}))
    assert await watched.look("a", ready=ALL_READY)
    (after,) = watched.served
    changed = after.max_model_len == 64, after.template is not None and after.template.source == "y"
    assert changed == ((True, False) if file in ("model.json", "version") else (False, True))
    assert not await watched.look("a", ready=ALL_READY)


async def test_only_what_has_changed_is_read(first: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(first, "a")
    publish(first, "b")
    watched = Watched(repositories=[first])
    read: list[str] = []
    whole = Path.read_text

    def read_text(file: Path, *arguments: Any, **options: Any) -> str:
        read.append(str(file.relative_to(first.parent)))
        return whole(file, *arguments, **options)

    publish(first, "a", max_model_len=64)
    monkeypatch.setattr(Path, "read_text", read_text)
    await watched.look("a", "b")
    assert "first/a/1/model.json" in read
    assert not any(file.startswith(("first/b/", "first-b-hf/")) for file in read)
    read.clear()
    await watched.look("a", "b")
    assert read == []


@pytest.mark.parametrize("at_start", [True, False])
async def test_a_broken_model_costs_itself_alone_and_one_line(
    at_start: bool, first: Path, caplog: pytest.LogCaptureFixture
) -> None:
    publish(first, "a")
    file = first / "b" / "1" / "model.json"
    if at_start:
        publish(first, "b")
        put(file, "{")
    watched = Watched(repositories=[first])
    if not at_start:
        publish(first, "b")
        put(file, "{")
    for _ in range(3):
        await watched.look("a", "b")
    assert watched.names == ["a"]
    assert watched.served.broken.keys() == {"b"}
    (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert line.startswith(f"model b cannot be used: {file} is not valid JSON")
    with pytest.raises(ApiError) as caught:
        named(watched.served, "b")
    assert caught.value.status == 503
    assert str(first) not in caught.value.message
    publish(first, "b")
    assert await watched.look("a", "b")
    assert (watched.names, watched.served.broken) == (["a", "b"], {})


async def test_a_model_that_is_wrong_in_an_unforeseen_way_costs_itself_alone(
    first: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    publish(first, "a")
    watched = Watched(repositories=[first])
    whole = models.read_model

    def read_model(settings: ModelSettings, engine: EngineArguments) -> ServedModel:
        if settings.triton_model == "b":
            raise ZeroDivisionError
        return whole(settings, engine)

    monkeypatch.setattr(model_list, "read_model", read_model)
    for name in ("b", "c"):
        publish(first, name)
    for _ in range(2):
        await watched.look("a", "b", "c")
    assert watched.names == ["a", "c"]
    (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert line == "model b cannot be used: Reading it failed: ZeroDivisionError()."


async def test_a_model_that_breaks_later_stays_as_it_was_read(first: Path, caplog: pytest.LogCaptureFixture) -> None:
    entry = publish(first, "a")
    watched = Watched(repositories=[first])
    before = list(watched.served)
    put(entry / "1" / "model.json", '{"model": 5}')
    for _ in range(3):
        assert not await watched.look("a", ready=ALL_READY)
    assert list(watched.served) == before
    (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert "stays in force" in line


async def test_a_model_without_a_folder_is_served_while_triton_has_it(first: Path) -> None:
    entry = publish(first, "a")
    publish(first, "b")
    watched = Watched(repositories=[first])
    shutil.rmtree(entry)
    for _ in range(2):
        # Triton's index names it no longer, though it is loaded.
        assert not await watched.look("b", ready=ALL_READY)
        assert watched.names == ["a", "b"]
    assert await watched.look("b", ready=frozenset({"b"}))
    assert watched.names == ["b"]
    with pytest.raises(ApiError) as caught:
        named(watched.served, "a")
    assert caught.value.status == 404
    publish(first, "a")
    assert await watched.look("a", "b")
    assert watched.names == ["a", "b"]


async def test_models_that_the_settings_name_are_the_only_ones(first: Path) -> None:
    publish(first, "a")
    watched = Watched("--models", '[{"triton_model": "a", "names": ["x", "y"]}]', repositories=[first])
    publish(first, "b")
    assert not await watched.look("a", "b", ready=ALL_READY)
    assert watched.names == ["x"]
    assert not watched.list.discovers
    publish(first, "a", max_model_len=64)
    assert await watched.look("a", "b", ready=ALL_READY)
    assert [(model.names, model.max_model_len) for model in watched.served] == [(("x", "y"), 64)]
    shutil.rmtree(first / "a")
    # They stay, whatever becomes of the entry.
    assert not await watched.look()
    assert [(model.names, model.max_model_len) for model in watched.served] == [(("x", "y"), 64)]


async def test_another_process_reads_the_same_models(first: Path) -> None:
    publish(first, "a")
    publish(first, "c")
    put(first / "c" / "1" / "model.json", "{")
    watched = Watched(repositories=[first])

    def sent() -> Listing:
        return Listing.model_validate_json(watched.list.listing.model_dump_json())

    def shown(served: ServedModels) -> list[tuple[str, int | None, str]]:
        return [(model.triton_model, model.max_model_len, model.template.source) for model in served if model.template]

    copy = Copy(sent())
    assert shown(copy.served) == shown(watched.served) == [("a", 512, "x")]
    assert copy.served.broken == watched.served.broken
    (before,) = copy.served
    publish(first, "b", template="y")
    await watched.look("a", "b")
    await copy.take(sent())
    assert shown(copy.served) == shown(watched.served) == [("a", 512, "x"), ("b", 512, "y")]
    # What has not changed is not read again.
    assert next(iter(copy.served)) is before
    publish(first, "a", max_model_len=64)
    shutil.rmtree(first / "b")
    await watched.look("a")
    await copy.take(sent())
    assert shown(copy.served) == [("a", 64, "x")]
