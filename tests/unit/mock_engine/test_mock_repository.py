"""The mock's model repositories: what the real server's index, load and unload answer, seen on tritonserver 2.51."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.mock_engine.running import running_mock_engine

from .conftest import Client

INDEX, LOAD, UNLOAD = "/v2/repository/index", "/v2/repository/models/{}/load", "/v2/repository/models/{}/unload"


@pytest.fixture
def repositories(tmp_path: Path) -> list[Path]:
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
    return folders


@pytest.fixture
def engine(repositories: list[Path]) -> Iterator[Client]:
    with running_mock_engine(model_repository=repositories) as running:
        yield Client(running)


def publish(repository: Path, name: str, model_json: str = '{"max_model_len": 64}') -> Path:
    entry = repository / name
    (entry / "1").mkdir(parents=True, exist_ok=True)
    (entry / "config.pbtxt").write_text('backend: "vllm"\n')
    (entry / "1" / "model.json").write_text(model_json)
    return entry


def index(engine: Client) -> Any:
    return json.loads(engine.ask("POST", INDEX, b"{}").body)


def post(engine: Client, path: str, name: str) -> tuple[int, str]:
    answer = engine.ask("POST", path.format(name), b"{}")
    return answer.status, json.loads(answer.body)["error"] if answer.body else ""


def is_ready(engine: Client, name: str) -> bool:
    return engine.ask("GET", f"/v2/models/{name}/ready").status == 200


def test_a_model_s_way_through_the_index(engine: Client, repositories: list[Path]) -> None:
    assert index(engine) == []
    assert post(engine, LOAD, "m") == (500, "failed to load 'm', failed to poll from model repository")
    assert post(engine, UNLOAD, "m") == (200, "")
    entry = publish(repositories[1], "m")
    assert index(engine) == [{"name": "m"}]
    assert not is_ready(engine, "m")
    assert post(engine, LOAD, "m") == (200, "")
    assert index(engine) == [{"name": "m", "version": "1", "state": "READY"}]
    assert is_ready(engine, "m")
    assert post(engine, UNLOAD, "m") == (200, "")
    assert index(engine) == [{"name": "m", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"}]
    post(engine, LOAD, "m")
    shutil.rmtree(entry)
    # Loaded as before, but not in the repository.
    assert index(engine) == []
    assert is_ready(engine, "m")
    assert post(engine, UNLOAD, "m") == (200, "")
    assert index(engine) == []
    assert not is_ready(engine, "m")


def test_a_model_that_cannot_be_loaded(engine: Client, repositories: list[Path]) -> None:
    entry = publish(repositories[0], "m", "{")
    status, text = post(engine, LOAD, "m")
    assert status == 400
    assert text.startswith(
        "load failed for model 'm': version 1 is at UNAVAILABLE state: Internal: TritonModelException: "
    )
    assert str(entry / "1" / "model.json") in text
    assert text.endswith("\n\nAt:\n  /backends/vllm/model.py(101): initialize\n;\n")
    (row,) = index(engine)
    assert (row["version"], row["state"]) == ("1", "UNAVAILABLE")
    assert row["reason"].startswith("Internal: TritonModelException: ")


def test_a_failed_load_leaves_the_loaded_model_as_it_is(engine: Client, repositories: list[Path]) -> None:
    publish(repositories[0], "m")
    post(engine, LOAD, "m")
    publish(repositories[0], "m", "{")
    assert post(engine, LOAD, "m")[0] == 400
    assert index(engine) == [{"name": "m", "version": "1", "state": "READY"}]
    assert is_ready(engine, "m")


def test_one_name_in_two_repositories(engine: Client, repositories: list[Path]) -> None:
    for repository in repositories:
        publish(repository, "m")
    reason = "model appears in two or more repositories"
    assert index(engine) == [{"name": "m", "state": "UNAVAILABLE", "reason": reason}]
    assert post(engine, LOAD, "m") == (500, "failed to load 'm', failed to poll from model repository")


def test_without_explicit_control_nothing_can_be_loaded() -> None:
    with running_mock_engine(model_control_mode="none") as running:
        engine = Client(running)
        for path in (LOAD, UNLOAD):
            assert post(engine, path, "mock") == (
                503,
                "explicit model load / unload is not allowed if polling is enabled",
            )
        assert is_ready(engine, "mock")
