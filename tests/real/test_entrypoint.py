"""The first process of Triton's containers, with a real tritonserver and a real engine, outside of a container."""

import json
import os
import signal
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from devtools import environments, guard, models, repository, triton
from devtools.paths import ROOT
from devtools.processes import Service
from devtools.pythons import engine_python
from devtools.stack import HOST, Ports, answers, engine_environment, server_command
from tests.support.processes import commands
from tests.support.waiting import wait_for

_ENTRYPOINT = ROOT / "docker" / "triton" / "triton_entrypoint.py"
_LIMIT = 280

pytestmark = pytest.mark.long


class Container:
    """What a container would hold: the entrypoint, tritonserver below it, and the tiny model in its repository."""

    def __init__(self, folder: Path) -> None:
        self.metrics = folder / "metrics"
        self.metrics.mkdir()
        self._empty = folder / "empty"
        self._empty.mkdir()
        self.repository = folder / "repository"
        self.repository.mkdir()
        tree, self._engine = triton.server(engine_python()), environments.engine()
        repository.write_model(self.repository, models.TINY, models.folder(models.TINY, Path(sys.executable)), {})
        repository.write_backends(folder / "backends", tree, ROOT / "vllm_backend" / "model.py", ROOT / "vllm_backend")
        ports = Ports.free()
        self.url = f"http://{HOST}:{ports.triton_http}"
        shared_memory = f"triton_vllm_stack_entrypoint_{ports.triton_http}_"
        self._leftovers = (f"/dev/shm/{shared_memory}*",)
        self._log = folder / "triton.log"
        self._command = [
            self._engine.python,
            _ENTRYPOINT,
            *server_command(tree, self.repository, folder / "backends", ports, shared_memory),
        ]

    def start(self) -> None:
        self.service = Service(
            "entrypoint",
            self._command,
            self._log,
            env=engine_environment(self._engine, self.metrics) | {"TRITON_KEEP_REPOSITORY": str(self.repository)},
            cwd=self._empty,
            grace=60,
            leftovers=self._leftovers,
        )

    def is_ready(self) -> bool:
        assert self.service.exit_code is None, self.service.output()
        return answers(f"{self.url}/v2/models/{models.TINY}/ready")

    def generate(self) -> int:
        body = json.dumps({"text_input": "a", "sampling_parameters": json.dumps({"max_tokens": 2}), "stream": False})
        request = urllib.request.Request(
            f"{self.url}/v2/models/{models.TINY}/generate", body.encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request) as answer:
            return int(answer.status)

    def processes(self) -> dict[int, str]:
        """The command lines below the entrypoint, which itself is the first one."""
        return commands(self.service.pids())

    def pid_of(self, name: str) -> int:
        """Of the one process whose command line holds `name`, the entrypoint's apart."""

        def only() -> list[int] | None:
            found = [pid for pid, line in self.processes().items() if name in line and "entrypoint.py" not in line]
            return found if len(found) == 1 else None

        # One that has just been forked has the command line of the other until it runs its own program.
        return wait_for(only, f"one process {name}")[0]


@pytest.fixture
def container(engine_platform: None, tmp_path: Path) -> Iterator[Container]:
    one = Container(tmp_path)
    (one.metrics / "gauge_mostrecent_1.db").write_bytes(b"of an earlier run")
    (one.metrics / "kept.txt").write_text("nobody's")
    one.start()
    yield one
    one.service.kill()
    one.service.wait()


@pytest.mark.timeout(_LIMIT)
def test_a_dead_engine_comes_back_and_sigterm_is_handed_on(container: Container) -> None:
    wait_for(container.is_ready, "the entry of the repository")
    # A previous run's files are gone, and others are not touched.
    assert not (container.metrics / "gauge_mostrecent_1.db").exists()
    assert (container.metrics / "kept.txt").exists()
    assert container.generate() == 200

    engine = container.pid_of("VLLM::EngineCore")
    os.kill(engine, signal.SIGKILL)
    wait_for(lambda: not container.is_ready(), "the model to be unloaded")
    wait_for(container.is_ready, "the model to be loaded again")
    assert container.generate() == 200
    assert container.pid_of("VLLM::EngineCore") != engine

    os.kill(container.service.pids()[0], signal.SIGTERM)
    assert wait_for(lambda: container.service.exit_code is not None)
    assert container.service.exit_code == 0, container.service.output()[-2000:]


@pytest.mark.timeout(_LIMIT)
def test_a_killed_server_leaves_nothing(container: Container) -> None:
    wait_for(lambda: any("backend_stub" in line for line in container.processes().values()), "the stub of a model")
    entrypoint, *below = container.service.pids()
    # As the kernel does when memory is short.
    os.kill(container.pid_of("bin/tritonserver"), signal.SIGKILL)
    assert wait_for(lambda: container.service.exit_code) == 128 + signal.SIGKILL
    assert guard.descendants(entrypoint) == []
    assert not [pid for pid in below if Path(f"/proc/{pid}").exists()]


def test_without_vllm_it_says_so(tmp_path: Path) -> None:
    # The developers' environment has none.
    service = Service("entrypoint", [sys.executable, _ENTRYPOINT, "true"], tmp_path / "log")
    assert service.wait() == 2
    assert "vLLM is not installed" in service.output()


def test_what_is_in_use_is_not_emptied(engine_platform: None, tmp_path: Path) -> None:
    (tmp_path / "metrics").mkdir()
    (tmp_path / "metrics" / "counter_7.db").mkdir()
    engine = environments.engine()
    environment = engine_environment(engine, tmp_path / "metrics")
    service = Service("entrypoint", [engine.python, _ENTRYPOINT, "true"], tmp_path / "log", env=environment)
    assert service.wait() == 2
    assert "counter_7.db is a folder" in service.output()
