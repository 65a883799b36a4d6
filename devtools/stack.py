"""The running stack: which processes, with which arguments and environment, and when they are ready.

`./dev up` and the tests start the same thing from here.
"""

import contextlib
import http.client
import json
import os
import random
import re
import shutil
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from devtools import environments, models, repository, triton
from devtools.errors import DevError
from devtools.paths import ROOT
from devtools.processes import Service, service_environment
from devtools.pythons import engine_python
from devtools.stub import ForgottenStub, StubWatch

HOST = "127.0.0.1"

# How long loading the models may take.
_LOAD_SECONDS = 600
# How often tritonserver is started if it forgets its stub.
_ATTEMPTS = 2
# The server's lines about its models.
_LOADING = re.compile(r"\"(?:loading: (\S+):\d+|successfully loaded '(\S+)')\"")

# For an engine inside a real tritonserver: what its Python backend loads, and the packages that this imports.
_BACKENDS = {
    "triton": (ROOT / "vllm_backend" / "model.py", ROOT / "vllm_backend"),
    "synthetic": (ROOT / "bench" / "synthetic" / "model.py", ROOT / "vllm_backend", ROOT / "bench"),
    "stock": (ROOT / "bench" / "egress" / "stock.py",),
}
_STARTED = (*_BACKENDS, "mock")

Say = Callable[[str], None]


def is_free(port: int) -> bool:
    """Whether a server can listen on this port of the loopback address. Raises PermissionError if it needs root."""
    with socket.socket() as probe:
        # As the servers do: a port in TIME_WAIT is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except PermissionError:
            raise
        except OSError:
            return False
    return True


@dataclass(frozen=True)
class Ports:
    """Where the parts listen, all on the loopback address."""

    gateway: int = 9000
    triton_http: int = 8000
    triton_grpc: int = 8001
    triton_metrics: int = 8002
    metrics_proxy: int = 9401

    @classmethod
    def free(cls) -> Self:
        """Ports that nothing listens on now.

        From below the range that the kernel takes ports of outgoing connections from: a part may bind its port only
        when the models are loaded.
        """
        found: list[int] = []
        while len(found) < len(fields(cls)):
            port = random.randrange(20000, 32000)
            if port not in found and is_free(port):
                found.append(port)
        return cls(*found)


@dataclass(frozen=True)
class StackConfig:
    """What to start.

    `engine` is `triton` (a real tritonserver with vLLM), `synthetic` (the same with bench.synthetic in vLLM's place),
    `stock` (vLLM hosted as usual, by bench.egress.stock), `mock` (bench.mock_engine), or the URL of a Triton that runs.
    `models` are deployments of model_repository/, each with the engine arguments that replace those of its model.json.
    `metrics_proxy` is for a real tritonserver: the metrics of Triton, vLLM and, if there is one, the gateway on one
    page.
    """

    engine: str = "triton"
    models: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {models.TINY: {}})
    gateway: bool = True
    metrics_proxy: bool = False
    gateway_arguments: tuple[str, ...] = ()
    engine_arguments: tuple[str, ...] = ()
    engine_environment: Mapping[str, str] = field(default_factory=dict)
    ports: Ports = field(default_factory=Ports.free)


class Stack:
    """Starts and stops the parts in `config`; everything it writes is under `state`, which it empties at start."""

    def __init__(self, config: StackConfig, state: Path, python: Path) -> None:
        """`python` runs the services; its environment holds at least locks/gateway.txt."""
        self.config = config
        self.state = state
        self._python = python
        self.repository = state / "models"
        self.services: list[Service] = []

    @property
    def url(self) -> str:
        """The gateway's base URL."""
        return f"http://{HOST}:{self.config.ports.gateway}"

    @property
    def metrics_url(self) -> str:
        """The base URL of the metrics proxy."""
        return f"http://{HOST}:{self.config.ports.metrics_proxy}"

    @property
    def metrics_directory(self) -> Path:
        """Where vLLM writes its metrics."""
        return self.state / "metrics"

    @property
    def triton_url(self) -> str:
        """The base URL of the engine's Triton HTTP port."""
        if self.config.engine in _STARTED:
            return f"http://{HOST}:{self.config.ports.triton_http}"
        return self.config.engine

    def service(self, name: str) -> Service:
        """`triton`, `mock`, `gateway` or `metrics_proxy`, as started last."""
        return next(service for service in reversed(self.services) if service.name == name)

    def start(self, say: Say = lambda _: None) -> None:
        """Starts every part; returns when all are ready. Raises DevError, with nothing left running, if one is not."""
        try:
            if self.state.exists():
                shutil.rmtree(self.state)
            self.state.mkdir(parents=True)
            self.services = []
            if self.config.engine == "mock":
                self._start_mock(say)
            elif self.config.engine in _BACKENDS:
                self._start_triton(say)
            if self.config.gateway:
                self._start_gateway(say)
            if self.config.metrics_proxy:
                self._start_metrics_proxy(say)
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """Stops the parts, the gateway first, so that it can end its streams while the engine still answers."""
        for service in reversed(self.services):
            service.stop()

    def kill(self) -> None:
        """Ends everything without waiting for anyone."""
        for service in self.services:
            service.kill()
        for service in self.services:
            service.wait()

    def prepare(self) -> None:
        """Makes what is not there yet: the server, the engine's environment, the models. Shows each on the screen."""
        if self.config.engine in _BACKENDS:
            python = engine_python()
            environments.engine()
            triton.server(python)
        if self.config.engine in _STARTED:
            for deployment in self.config.models:
                models.folder(deployment, self._python)

    def _write_models(self) -> None:
        # There too without a model: one may be loaded later from another repository.
        self.repository.mkdir()
        for deployment, overrides in self.config.models.items():
            folder = models.folder(deployment, self._python)
            repository.write_model(self.repository, deployment, folder, overrides)

    def _start_mock(self, say: Say) -> None:
        self._write_models()
        command = ["-m", "bench.mock_engine", "--port", str(self.config.ports.triton_http)]
        command += ["--model-repository", str(self.repository), *self.config.engine_arguments]
        self._launch("mock", [self._python, *command], env=_services_env(), cwd=ROOT)
        self._await("mock", f"{self.triton_url}/v2/health/ready", 60, say)

    def _start_triton(self, say: Say) -> None:
        server = triton.server(engine_python())
        engine = environments.engine()
        self._write_models()
        repository.write_backends(self.state / "backends", server, *_BACKENDS[self.config.engine])
        (self.state / "empty").mkdir()
        ports = self.config.ports
        shared_memory = f"triton_vllm_stack_{os.getpid()}_{ports.triton_http}_"
        command = [
            *server_command(server, self.repository, self.state / "backends", ports, shared_memory),
            *(f"--load-model={name}" for name in self.config.models),
            f"--model-load-thread-count={max(2, len(self.config.models))}",
            *self.config.engine_arguments,
        ]
        metrics = self.metrics_directory
        for attempt in range(_ATTEMPTS):
            metrics.mkdir()
            self._launch(
                "triton",
                command,
                env=engine_environment(engine, metrics) | dict(self.config.engine_environment),
                # The stub puts its working directory on sys.path, where a module of the wrong name would be found.
                cwd=self.state / "empty",
                grace=40,
                leftovers=(f"/dev/shm/{shared_memory}*",),
            )
            watch = StubWatch(self.service("triton"))
            try:
                self._await("triton", f"{self.triton_url}/v2/health/ready", _LOAD_SECONDS, say, watch.check, loading)
                return
            except ForgottenStub:
                if attempt + 1 == _ATTEMPTS:
                    raise
                say("waiting for triton, again: the machine is very busy")
                forgotten = self.services.pop()
                forgotten.kill()
                forgotten.wait()
                shutil.rmtree(metrics)

    def _start_gateway(self, say: Say) -> None:
        command = ["-m", "gateway", "--host", HOST, "--port", str(self.config.ports.gateway)]
        command += ["--triton", self.triton_url]
        if self.config.engine in _STARTED:
            command += ["--model-repository", str(self.repository)]
        command += self.config.gateway_arguments
        self._launch("gateway", [self._python, *command], env=_services_env(), cwd=ROOT)
        self._await("gateway", f"{self.url}/health/ready", 60, say, self._check_models)

    def _check_models(self) -> None:
        """Raises DevError where the Triton that runs already has none of the gateway's models: it will not get one by
        waiting."""
        if self.config.engine in _STARTED:
            return
        states = not_ready(f"{self.url}/health/ready")
        if states and all(_NOT_THERE in state for state in states):
            raise DevError(
                f"The gateway has no model to serve: {'; '.join(states)} at {self.config.engine}. Load it there, or "
                "name one that is ready in `models:` of --config."
            )

    def _start_metrics_proxy(self, say: Say) -> None:
        ports = self.config.ports
        sources = [f"triton=http://{HOST}:{ports.triton_metrics}/metrics", f"directory={self.metrics_directory}"]
        if self.config.gateway:
            sources.append(f"exporter={self.url}/metrics")
        command = ["-m", "metrics_proxy", "--host", HOST, "--port", str(ports.metrics_proxy)]
        command += [argument for source in sources for argument in ("--source", source)]
        self._launch("metrics_proxy", [self._python, *command], env=_services_env(), cwd=ROOT)
        self._await("metrics_proxy", f"{self.metrics_url}/health/ready", 60, say)

    def _launch(self, name: str, command: list[str | Path], **options: Any) -> None:
        self.services.append(Service(name, command, self.state / "logs" / f"{name}.log", **options))

    def _await(
        self,
        name: str,
        url: str,
        seconds: float,
        say: Say,
        check: Callable[[], None] = lambda: None,
        doing: Callable[[str], str] = lambda _: "",
    ) -> None:
        """Waits until `url` answers 200. Raises DevError if the service ends, `seconds` pass or `check` does.

        `doing` says what the service does, given its output so far; empty if the output does not tell.
        """
        say(f"waiting for {name}")
        service = self.service(name)
        deadline = time.monotonic() + seconds
        while True:
            if service.exit_code is not None:
                raise DevError(f"{name} ended while starting: {reason(service)} (log: {service.log})")
            if answers(url):
                return
            check()
            if now := doing(service.output()):
                say(now)
            if time.monotonic() > deadline:
                raise DevError(f"{name} is not ready after {seconds:.0f} s: {reason(service)} (log: {service.log})")
            time.sleep(0.1)


def server_command(server: Path, folder: Path, backends: Path, ports: Ports, shared_memory: str) -> list[str | Path]:
    """tritonserver, unpacked at `server`, with the model repository `folder`, of which it loads what it is told to.
    `shared_memory` is the prefix of its regions."""
    return [
        server / "bin" / "tritonserver",
        f"--model-repository={folder}",
        f"--backend-directory={backends}",
        "--disable-auto-complete-config",
        "--model-control-mode=explicit",
        *(f"--{protocol}-address={HOST}" for protocol in ("http", "grpc", "metrics")),
        f"--http-port={ports.triton_http}",
        f"--grpc-port={ports.triton_grpc}",
        f"--metrics-port={ports.triton_metrics}",
        "--allow-gpu-metrics=false",
        f"--backend-config=python,shm-region-prefix-name={shared_memory}",
        # Until the stub says that it lives, 30 s unless set: on a busy machine importing takes longer.
        f"--backend-config=python,stub-timeout-seconds={_LOAD_SECONDS}",
    ]


def engine_environment(engine: environments.Environment, metrics: Path) -> dict[str, str]:
    """The environment of tritonserver; its Python stub, and vLLM in it, inherit it."""
    return service_environment(
        # The stub's embedded Python finds its packages through the python3 on PATH; PYTHONPATH is ignored.
        PATH=f"{engine.folder / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        LD_LIBRARY_PATH=str(engine.folder / "loader"),
        LC_ALL="C.UTF-8",
        # Nothing may reach for the network: models are folders.
        HF_HUB_OFFLINE="1",
        VLLM_NO_USAGE_STATS="1",
        # Without it the first request with logprobs compiles C++ for up to half a minute.
        TORCHDYNAMO_DISABLE="1",
        # The engine computes itself; otherwise it starts a worker process below it, even with the executor `uni`.
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        # Threads that wait for each other sleep instead of spinning: where others want the cores too, spinning keeps
        # the very thread from running that is waited for, and a token takes seconds.
        OMP_WAIT_POLICY="PASSIVE",
        # Its successor takes no logits processors of the class that `logits_processors` has; on a CPU it cannot run.
        VLLM_USE_V2_MODEL_RUNNER="0",
        # vLLM's registry writes its files here; only what stands in tritonserver's own environment counts.
        PROMETHEUS_MULTIPROC_DIR=str(metrics),
    )


def _services_env() -> dict[str, str]:
    return service_environment(HF_HUB_OFFLINE="1", PYTHONUNBUFFERED="1")


def answers(url: str) -> bool:
    """Whether `url` answers 200 now."""
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return bool(response.status == 200)
    except (OSError, http.client.HTTPException):  # The second: something else than HTTP answers there.
        return False


_NOT_THERE = "does not have the model"


def not_ready(url: str) -> list[str]:
    """Why each of the gateway's models is not ready, in its own words; empty where it does not say yet."""
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except urllib.error.HTTPError as answer:
        with answer, contextlib.suppress(ValueError, AttributeError, OSError):
            return [str(state) for state in json.load(answer)["models"].values()]
    except (OSError, http.client.HTTPException):
        pass
    return []


def loading(output: str) -> str:
    """What tritonserver does while it starts, from its log."""
    waiting: dict[str, None] = {}
    loaded = ""
    for begun, done in _LOADING.findall(output):
        if begun:
            waiting[begun] = None
        else:
            loaded = done
            waiting.pop(done, None)
    if waiting:
        return f"loading {', '.join(waiting)}"
    return f"{loaded} is loaded" if loaded else ""


_CAUSES = (
    # Triton: why a model could not be loaded. The Python backend adds a stack trace after the sentence.
    re.compile(r"failed to load '\S+' version \d+: (.*)"),
    re.compile(r"^error: (.*)"),
)


def reason(service: Service) -> str:
    """The line of a service's log that says best why it ended."""
    lines = [line.strip() for line in service.output().splitlines() if line.strip()]
    for pattern in _CAUSES:
        for line in lines:
            if found := pattern.search(line):
                return found[1].strip('"')
    return lines[-1] if lines else "it said nothing"
