"""vLLM's own OpenAI server on the CPU, from the engine's environment, with the engine arguments of a deployment."""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from devtools.environments import Environment
from devtools.errors import DevError
from devtools.processes import Service
from devtools.stack import HOST, answers, engine_environment

_START_SECONDS = 600


class VllmServer:
    """A server that is being started: `url` answers once `wait_until_ready` has returned."""

    def __init__(self, url: str, service: Service) -> None:
        self.url = url
        self.service = service

    def wait_until_ready(self) -> "VllmServer":
        give_up_at = time.monotonic() + _START_SECONDS
        while not answers(f"{self.url}/health"):
            if self.service.exit_code is not None or time.monotonic() > give_up_at:
                raise DevError(f"vLLM's server did not start:\n{self.service.output()[-3000:]}")
            time.sleep(0.1)
        return self


@contextmanager
def starting_vllm(
    model_json: Path, name: str, engine: Environment, state: Path, port: int, *flags: str
) -> Iterator[VllmServer]:
    """Begins to start a server for the model of a deployment's `model.json`, under the model name `name`; `flags` are
    those of the server that are no engine arguments.

    It writes below `state`, a folder that is not there yet. What the server needs besides the arguments (environment,
    working directory) is what tritonserver gets.
    """
    metrics, neutral = state / "metrics", state / "empty"
    for folder in (metrics, neutral):
        folder.mkdir(parents=True)
    arguments = engine_flags(json.loads(model_json.read_text()))
    command = [str(engine.python), "-I", "-m", "vllm.entrypoints.openai.api_server", *arguments, *flags]
    command += ["--served-model-name", name, "--host", HOST, "--port", str(port)]
    env = engine_environment(engine, metrics)
    service = Service(f"vllm {name}", command, state / "vllm.log", env=env, cwd=neutral)
    try:
        yield VllmServer(f"http://{HOST}:{port}", service)
    finally:
        service.kill()
        service.wait()


def engine_flags(arguments: Mapping[str, Any]) -> list[str]:
    """Engine arguments, as `model.json` has them, as vLLM's command line takes them."""
    flags = []
    for argument, value in arguments.items():
        name = argument.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{name}" if value else f"--no-{name}")
        else:
            flags += [f"--{name}", json.dumps(value) if isinstance(value, dict) else str(value)]
    return flags
