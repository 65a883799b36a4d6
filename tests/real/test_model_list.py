"""The model list follows a real Triton: an entry of a second repository is loaded by the gateway's admin route, listed,
answers, is unloaded and goes."""

import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import httpx
import pytest

from devtools import models, repository
from devtools.stack import StackConfig
from gateway.access import command
from tests.real.conftest import FreshStack
from tests.support.gateway import running_gateway
from tests.support.waiting import wait_for


def _new_key(file: Path, *arguments: str) -> str:
    with redirect_stdout(StringIO()) as printed:
        assert command.main(["new", *arguments, "--keys-file", str(file)]) == 0
    return printed.getvalue().strip()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_model_is_loaded_listed_answers_is_unloaded_and_goes(fresh_stack: FreshStack, tmp_path: Path) -> None:
    second, keys = tmp_path / "second", tmp_path / "keys.yaml"
    second.mkdir()
    stack = fresh_stack(StackConfig(models={}, gateway=False, engine_arguments=(f"--model-repository={second}",)))
    headers = {
        "/v1": {"Authorization": f"Bearer {_new_key(keys, 'client')}"},
        "/ad": {"Authorization": f"Bearer {_new_key(keys, 'ops', '--admin')}"},
        "/he": {},
    }
    flags = ["--triton", stack.triton_url, "--workers", "2", "--keys-file", str(keys)]
    flags += [flag for folder in (stack.repository, second) for flag in ("--model-repository", str(folder))]
    with running_gateway(*flags) as gateway:

        def ask(method: str, path: str, body: Any = None) -> httpx.Response:
            # A connection of its own each time, so that every worker is asked.
            url = gateway.url + path
            return httpx.request(method, url, json=body, headers=headers[path[:3]], timeout=280, verify=False)

        def everywhere(condition: Callable[[], bool]) -> Callable[[], bool]:
            return lambda: all(condition() for _ in range(8))

        def listed() -> list[str]:
            return [model["id"] for model in ask("GET", "/v1/models").json()["data"]]

        def state() -> list[tuple[str, str]]:
            ((_, instance),) = ask("GET", "/admin/models").json()["instances"].items()
            return [(model["triton_model"], model["state"]) for model in instance["models"]]

        assert listed() == []
        assert ask("GET", "/health/ready").status_code == 503
        refused = ask("POST", f"/admin/models/{models.TINY}/load")
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")
        folder = models.folder(models.TINY, Path(sys.executable))
        repository.write_model(second, models.TINY, folder, {"max_model_len": 1024})
        arguments = second / models.TINY / "1" / "model.json"
        whole = arguments.read_text()
        arguments.write_text("{")
        assert state() == [(models.TINY, "NEVER_LOADED")]
        refused = ask("POST", f"/admin/models/{models.TINY}/load")
        assert (refused.status_code, refused.json()["error"]["code"]) == (502, "model_load_failed")
        assert f"{arguments} is not valid JSON" in refused.json()["error"]["message"]
        assert state() == [(models.TINY, "UNAVAILABLE")]
        assert listed() == []
        arguments.write_text(whole)
        loaded = ask("POST", f"/admin/models/{models.TINY}/load")
        assert loaded.status_code == 200, loaded.text
        assert state() == [(models.TINY, "READY")]
        wait_for(everywhere(lambda: listed() == [models.TINY]), "the model in every worker's list")
        request = {"model": models.TINY, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
        for _ in range(4):
            answer = ask("POST", "/v1/chat/completions", request)
            assert answer.status_code == 200, answer.text
        assert ask("GET", f"/v1/models/{models.TINY}").json()["max_model_len"] == 1024
        unloaded = ask("POST", f"/admin/models/{models.TINY}/unload")
        assert unloaded.status_code == 200, unloaded.text
        wait_for(everywhere(lambda: listed() == []), "the model to leave every worker's list")
        answer = ask("POST", "/v1/chat/completions", request)
        assert answer.status_code == 503
        assert "does not have the model" in answer.json()["error"]["message"]
        wait_for(lambda: state() == [(models.TINY, "UNAVAILABLE")], "the engine's end")
