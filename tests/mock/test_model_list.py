"""The model list of a running gateway follows Triton and its repositories; an operator loads and unloads by the admin
routes."""

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.mock_engine.running import MockEngine, running_mock_engine
from gateway.access import command
from tests.support.chat import chat
from tests.support.gateway import Gateway, running_gateway
from tests.support.waiting import wait_for


class Fleet:
    """A gateway and the mock engines behind it, all with two model repositories that are empty at first."""

    def __init__(self, gateway: Gateway, engines: list[MockEngine], repositories: list[Path], keys: list[str]) -> None:
        self.gateway = gateway
        self.engines = engines
        self.repositories = repositories
        self._client_key, self._admin_key = keys

    def ask(self, method: str, path: str, body: Any = None) -> httpx.Response:
        key = self._admin_key if path.startswith("/admin") else self._client_key
        headers = {"Authorization": f"Bearer {key}"}
        return httpx.request(method, self.gateway.url + path, json=body, headers=headers, timeout=60, verify=False)

    def listed(self) -> list[str]:
        return [model["id"] for model in self.ask("GET", "/v1/models").json()["data"]]

    def wait_listed(self, *names: str) -> None:
        wait_for(lambda: self.listed() == list(names), f"the list {names}; it is {self.listed()}")

    def health(self) -> tuple[int, Any]:
        answer = self.ask("GET", "/health/ready")
        return answer.status_code, answer.json()

    def error(self, method: str, path: str, body: Any = None) -> tuple[int, str, str]:
        answer = self.ask(method, path, body)
        error = answer.json()["error"]
        return answer.status_code, error["code"], error["message"]

    def instances(self) -> list[str]:
        return list(self.ask("GET", "/admin/models").json()["instances"])

    def index(self, number: int = 0) -> list[Any]:
        instance = list(self.ask("GET", "/admin/models").json()["instances"].values())[number]
        return list(instance["models"])

    def errors_logged(self) -> list[str]:
        return [line["message"] for line in self.gateway.logs if line["level"] == "error"]


@pytest.fixture
def repositories(tmp_path: Path) -> list[Path]:
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
    return folders


@pytest.fixture(scope="module")
def keys_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keys") / "keys.yaml"


@pytest.fixture(scope="module")
def keys(keys_file: Path) -> list[str]:
    """A client's and an admin's."""

    def new(*arguments: str) -> str:
        with redirect_stdout(StringIO()) as printed:
            assert command.main(["new", *arguments, "--keys-file", str(keys_file)]) == 0
        return printed.getvalue().strip()

    return [new("client"), new("ops", "--admin")]


@pytest.fixture
def fleet(
    repositories: list[Path], keys_file: Path, keys: list[str], request: pytest.FixtureRequest
) -> Iterator[Fleet]:
    """With one engine; or the parameter: options of each engine, and flags of the gateway."""
    one_engine: list[dict[str, Any]] = [{}]
    engine_options, gateway_flags = getattr(request, "param", (one_engine, []))
    with ExitStack() as stack:
        engines = [
            stack.enter_context(running_mock_engine(model_repository=repositories, **options))
            for options in engine_options
        ]
        flags = [flag for engine in engines for flag in ("--triton", engine.url)]
        flags += [flag for folder in repositories for flag in ("--model-repository", str(folder))]
        flags += ["--keys-file", str(keys_file), "--load-timeout", "60", *gateway_flags]
        yield Fleet(stack.enter_context(running_gateway(*flags)), engines, repositories, keys)


def publish(repository: Path, hf: Path, name: str, **arguments: Any) -> Path:
    entry = repository / name
    (entry / "1").mkdir(parents=True, exist_ok=True)
    new = entry / "1" / ".model.json"
    new.write_text(json.dumps({"model": str(hf), "max_model_len": 512} | arguments))
    new.rename(entry / "1" / "model.json")
    (entry / "config.pbtxt").write_text('backend: "vllm"\n')
    return entry


@pytest.fixture
def hf(repository: Path) -> Path:
    """A model's own folder, with a tokenizer and a template."""
    return repository.parent / "hf"


def test_a_model_appears_is_loaded_answers_is_unloaded_and_goes(fleet: Fleet, hf: Path) -> None:
    status, health = fleet.health()
    assert (status, health["models"]) == (503, {})
    assert "no model is served" in health["reason"]
    assert fleet.listed() == []
    request = chat(model="new", max_tokens=2)
    assert fleet.error("POST", "/v1/chat/completions", request)[:2] == (404, "model_not_found")
    entry = publish(fleet.repositories[1], hf, "new")
    # In Triton's index it is there before it is loaded.
    wait_for(lambda: "new" in fleet.health()[1]["models"], "the model to be known")
    assert fleet.listed() == []
    unready = 503, "engine_unavailable", "The model 'new' is not ready: Triton does not have the model 'new' ready."
    # Before it has been asked for, the reason is that Triton has not said anything of it.
    wait_for(lambda: fleet.error("POST", "/v1/chat/completions", request) == unready, "the reason")
    assert fleet.error("GET", "/v1/models/new") == unready
    assert fleet.index() == [{"triton_model": "new", "version": None, "state": "NEVER_LOADED", "reason": None}]
    loaded = fleet.ask("POST", "/admin/models/new/load")
    (instance,) = fleet.instances()
    assert (loaded.status_code, loaded.json()) == (200, {"model": "new", "instances": {instance: "loaded"}})
    fleet.wait_listed("new")
    assert fleet.health()[0] == 200
    assert fleet.ask("GET", "/v1/models/new").json()["max_model_len"] == 512
    answer = fleet.ask("POST", "/v1/chat/completions", request)
    assert answer.status_code == 200, answer.text
    unloaded = fleet.ask("POST", "/admin/models/new/unload", None)
    assert (unloaded.status_code, unloaded.json()["instances"]) == (200, {instance: "unloaded"})
    fleet.wait_listed()
    assert fleet.error("POST", "/v1/chat/completions", request) == unready
    assert fleet.index() == [{"triton_model": "new", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"}]
    shutil.rmtree(entry)
    wait_for(lambda: fleet.error("GET", "/v1/models/new")[0] == 404, "the model to be unknown")
    assert fleet.errors_logged() == []


def test_a_model_is_published_anew_and_one_unloads_by_itself(fleet: Fleet, hf: Path) -> None:
    publish(fleet.repositories[0], hf, "a")
    publish(fleet.repositories[1], hf, "b")
    for name in ("a", "b"):
        assert fleet.ask("POST", f"/admin/models/{name}/load").status_code == 200
    fleet.wait_listed("a", "b")
    publish(fleet.repositories[0], hf, "a", max_model_len=64)
    assert fleet.ask("POST", "/admin/models/a/load").status_code == 200
    wait_for(lambda: fleet.ask("GET", "/v1/models/a").json()["max_model_len"] == 64, "the new length")
    assert fleet.listed() == ["a", "b"]
    (engine,) = fleet.engines
    engine.set_state(models={"a": {"ready": False}})
    fleet.wait_listed("b")
    assert fleet.error("GET", "/v1/models/a")[0] == 503
    engine.set_state(models={"a": {"ready": True}})
    fleet.wait_listed("a", "b")


@pytest.mark.parametrize("fleet", [([{}], ["--workers", "3"])], indirect=True)
def test_every_worker_has_the_same_models(fleet: Fleet, hf: Path) -> None:
    def everywhere(*names: str) -> bool:
        # Each request has a connection of its own, which any worker may take.
        return all(fleet.listed() == list(names) for _ in range(12))

    assert everywhere()
    publish(fleet.repositories[0], hf, "a")
    assert fleet.ask("POST", "/admin/models/a/load").status_code == 200
    wait_for(lambda: everywhere("a"), "the model in every worker's list")
    for _ in range(6):
        assert fleet.ask("POST", "/v1/chat/completions", chat(model="a", max_tokens=2)).status_code == 200
    publish(fleet.repositories[0], hf, "a", max_model_len=64)
    wait_for(
        lambda: {fleet.ask("GET", "/v1/models/a").json()["max_model_len"] for _ in range(12)} == {64},
        "the new length in every worker",
    )
    assert fleet.ask("POST", "/admin/models/a/unload").status_code == 200
    wait_for(everywhere, "the model to leave every worker's list")
    assert {fleet.error("GET", "/v1/models/a")[0] for _ in range(6)} == {503}


def test_a_broken_entry_costs_that_model_alone_and_one_line(fleet: Fleet, hf: Path, tmp_path: Path) -> None:
    publish(fleet.repositories[0], hf, "good")
    assert fleet.ask("POST", "/admin/models/good/load").status_code == 200
    fleet.wait_listed("good")
    broken_hf = tmp_path / "broken"
    broken_hf.mkdir()
    (broken_hf / "tokenizer.json").write_text("{")
    publish(fleet.repositories[0], broken_hf, "broken")
    why = "its files cannot be used, the gateway's log says why"
    wait_for(lambda: fleet.health()[1]["models"].get("broken") == why, "the broken model to be seen")
    status, code, message = fleet.error("POST", "/v1/chat/completions", chat(model="broken"))
    assert (status, code) == (503, "engine_unavailable")
    assert str(tmp_path) not in message
    assert fleet.ask("POST", "/v1/chat/completions", chat(model="good", max_tokens=2)).status_code == 200
    # Long enough for more looks: another model is seen only by a later one.
    publish(fleet.repositories[0], hf, "later")
    wait_for(lambda: "later" in fleet.health()[1]["models"], "the later model to be known")
    (line,) = fleet.errors_logged()
    assert str(broken_hf / "tokenizer.json") in line
    shutil.copy(hf / "tokenizer.json", broken_hf / ".new")
    (broken_hf / ".new").rename(broken_hf / "tokenizer.json")
    wait_for(lambda: fleet.health()[1]["models"]["broken"] != why, "the mended model")


def test_what_triton_refuses_is_a_clear_sentence(fleet: Fleet, hf: Path) -> None:
    assert fleet.error("POST", "/admin/models/nope/load") == (
        404,
        "model_not_found",
        f"The model 'nope' was not loaded. {fleet.instances()[0]}: it finds no such model: there is no folder of this "
        "name in its repositories, or one in two of them, or a config.pbtxt that cannot be read (its log says which).",
    )
    assert fleet.error("POST", "/admin/models/nope/unload")[:2] == (404, "model_not_found")
    assert fleet.error("POST", "/admin/models/%2E%2E/load")[0] in (400, 404)
    assert fleet.error("POST", "/admin/models/a%20b/load")[:2] == (400, "invalid_value")
    entry = publish(fleet.repositories[0], hf, "bad")
    (entry / "1" / "model.json").write_text("{")
    status, code, message = fleet.error("POST", "/admin/models/bad/load")
    assert (status, code) == (502, "model_load_failed")
    assert "it cannot load the model: " in message
    assert str(entry / "1" / "model.json") in message
    assert "At:" not in message
    (row,) = fleet.index()
    assert row["state"] == "UNAVAILABLE"
    assert str(entry / "1" / "model.json") in row["reason"]
    status, code, message = fleet.error("POST", "/admin/models/bad/load?instance=elsewhere:1")
    assert (status, code) == (404, "instance_not_found")
    assert fleet.instances()[0] in message


@pytest.mark.parametrize("fleet", [([{}, {"model_control_mode": "none"}], [])], indirect=True)
def test_each_instance_alone_and_a_failure_of_one(fleet: Fleet, hf: Path) -> None:
    publish(fleet.repositories[0], hf, "new")
    first, second = fleet.instances()
    status, code, message = fleet.error("POST", "/admin/models/new/load")
    assert (status, code) == (409, "no_model_control")
    assert f"{second}: it does not let models be loaded or unloaded: start it with" in message
    assert message.endswith(f"It was loaded on {first}.")
    fleet.wait_listed("new")
    assert fleet.ask("POST", f"/admin/models/new/unload?instance={first}").json()["instances"] == {first: "unloaded"}
    fleet.wait_listed()
    assert fleet.error("POST", f"/admin/models/new/load?instance={second}")[1] == "no_model_control"


def test_a_triton_that_is_not_there(repositories: list[Path], keys_file: Path, keys: list[str]) -> None:
    with running_mock_engine() as engine:
        url = engine.url
    flags = ["--triton", url, "--model-repository", str(repositories[0]), "--keys-file", str(keys_file)]
    with running_gateway(*flags) as gateway:
        fleet = Fleet(gateway, [], repositories, keys)
        for what in ("load", "unload"):
            status, code, message = fleet.error("POST", f"/admin/models/m/{what}")
            assert (status, code) == (503, "triton_unreachable")
            assert "it cannot be asked" in message
        ((_, shown),) = fleet.ask("GET", "/admin/models").json()["instances"].items()
        assert "it cannot be asked" in shown["error"]


@pytest.mark.parametrize("fleet", [([{"load_seconds": 2}], [])], indirect=True)
def test_a_load_that_takes_long_can_be_watched(fleet: Fleet, hf: Path) -> None:
    publish(fleet.repositories[0], hf, "new")
    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(fleet.ask, "POST", "/admin/models/new/load")
        wait_for(lambda: [row["state"] for row in fleet.index()] == ["LOADING"], "the load to be seen")
        assert fleet.listed() == []
        assert loading.result().status_code == 200
    fleet.wait_listed("new")
