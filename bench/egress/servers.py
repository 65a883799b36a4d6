"""The servers of the comparison: tritonserver with one engine or another, the gateway before it, vLLM's own server.
Each is started with a configuration of its own and surely ended."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.compare.servers import Server, running_nginx, running_service
from bench.compare.usage import CpuTime, cpu_time
from bench.load.workloads import Format
from bench.ports import free_port
from devtools import environments, models, repository
from devtools.models import TINY
from devtools.paths import ROOT
from devtools.processes import Service, service_environment
from devtools.stack import HOST, Stack, StackConfig
from devtools.vllm_server import starting_vllm

_ENGINE_PROCESS = "VLLM::EngineCore"


@dataclass(frozen=True)
class Serving:
    """A server whose engine, if it has one, is a process of its own."""

    name: str
    url: str
    service: Service

    def cpu_time(self, *, engine: bool = False) -> CpuTime:
        """Of its processes but the engine's, or of the engine's."""
        return cpu_time(pid for pid in self.service.pids() if _is_engine(pid) == engine)


def _is_engine(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(_ENGINE_PROCESS.encode())
    except OSError:
        return False


@contextmanager
def running_triton(engine: str, folder: Path, arguments: Mapping[str, Any]) -> Iterator[Serving]:
    """tritonserver with the tiny model; `engine` as of `StackConfig`."""
    stack = Stack(StackConfig(engine=engine, models={TINY: arguments}, gateway=False), folder, Path(sys.executable))
    stack.start()
    try:
        yield Serving(engine, stack.triton_url, stack.service("triton"))
    finally:
        stack.kill()


@contextmanager
def running_vllm(folder: Path, arguments: Mapping[str, Any]) -> Iterator[Serving]:
    """vLLM's own server with the same engine arguments."""
    tiny = models.tiny(Path(sys.executable))
    repository.write_model(folder / "models", TINY, tiny, arguments)
    path = folder / "models" / TINY / "1" / "model.json"
    flags = ["--disable-uvicorn-access-log"]
    with starting_vllm(path, TINY, environments.engine(), folder / "vllm", free_port(), *flags) as server:
        server.wait_until_ready()
        yield Serving("vllm serve", server.url, server.service)


@contextmanager
def running_gateways(upstream: str, folder: Path) -> Iterator[dict[str, Server]]:
    """A gateway that takes tokens in one message per engine step, one that takes each request's own, and nginx."""
    with ExitStack() as stack:
        found = {
            name: stack.enter_context(_running_gateway(name, upstream, setting, folder))
            for name, setting in (("gateway, batched", "always"), ("gateway, per request", "never"))
        }
        (folder / "nginx").mkdir()
        found["nginx"] = stack.enter_context(running_nginx(upstream, folder / "nginx", "/v2/health/ready"))
        yield found


@contextmanager
def _running_gateway(name: str, upstream: str, batched_egress: str, folder: Path) -> Iterator[Server]:
    served = {
        "triton_model": TINY,
        "tokenizer": str(models.tiny(Path(sys.executable))),
        "max_model_len": 4096,
        "batched_egress": batched_egress,
    }
    port = free_port()
    command = [sys.executable, "-m", "gateway", "--triton", upstream, "--models", json.dumps([served])]
    command += ["--port", str(port)]
    with running_service(name, command, f"http://{HOST}:{port}", "/health/ready", Format.CHAT, folder) as server:
        yield server


def tokenising_microseconds(prompts: Sequence[str]) -> float:
    """CPU per prompt, in the engine's environment."""
    engine = environments.engine()
    command = [str(engine.python), "-m", "bench.egress.tokenising", str(models.tiny(Path(sys.executable)))]
    environment = service_environment(TOKENIZERS_PARALLELISM="false")
    done = subprocess.run(
        command, input=json.dumps(list(prompts)), cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    return float(done.stdout)
