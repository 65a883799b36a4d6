"""Triton's HTTP routes over the mock models, and the `/mock/` routes by which tests control them.

Statuses, headers and texts are those of tritonserver 2.51 with a decoupled model, explicit model control (unless told
otherwise) and strict readiness. Unlike there, `/metrics` is on the same port, and loading a model keeps no connection
waiting but the one that asked for it.
"""

import asyncio
import dataclasses
import json
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError

from bench.mock_engine import models
from bench.mock_engine.backend import Dialect
from bench.mock_engine.faults import Fault, Faults
from bench.mock_engine.http1 import Http1Connection, Request, Response
from bench.mock_engine.inputs import TritonError, parse_json, read_body
from bench.mock_engine.models import ServedModel
from bench.mock_engine.own import OwnBackend, SchedulingPolicy
from bench.mock_engine.reasoning import ReasoningParser
from bench.mock_engine.record import Records
from bench.mock_engine.serving import serve
from bench.mock_engine.stock import StockBackend

_EXTENSIONS = [
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "cuda_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
]

ModelControlMode = Literal["explicit", "none"]

_Parsed = TypeVar("_Parsed", bound=BaseModel)

_MODEL_PATH = re.compile(
    r"/v2/models/([^/]+)(?:/versions/(\d+))?(?:/(infer|generate|generate_stream|ready|stats|config))?"
)
_REPOSITORY_PATH = re.compile(r"/v2/repository/models/([^/]+)/(load|unload)")


@dataclass(frozen=True, slots=True)
class Options:
    """How a mock engine is started; the command line's flags by their names."""

    host: str = "127.0.0.1"
    port: int = 0
    """0: a free one."""
    stock: bool = False
    """Behave as NVIDIA's stock backend instead of this project's."""
    scheduling_policy: SchedulingPolicy = "fcfs"
    """The engine's, for this project's backend: `priority` lets requests have one."""
    without: tuple[str, ...] = ()
    """Sampling parameters and inputs that this project's backend is too old to have."""
    reasoning_parser: ReasoningParser | None = None
    """The engine's, for this project's backend: constraints begin behind the reasoning."""
    models: tuple[str, ...] = ()
    """The models loaded at start. None given: all of the repository, or one named `mock` without a repository."""
    model_repository: tuple[Path, ...] = ()
    model_control_mode: ModelControlMode = "explicit"
    server_version: str = "2.65.0"
    token_interval_ms: float = 5.0
    load_seconds: float = 0.0
    """How long a load takes, the one at start included: Triton listens only when that is done."""


class _ModelChange(BaseModel):
    model_config = ConfigDict(extra="forbid")
    ready: bool


class _StateChange(BaseModel):
    """The body of `POST /mock/state`; what is absent stays."""

    model_config = ConfigDict(extra="forbid")
    live: bool | None = None
    ready: bool | None = None
    models: dict[str, _ModelChange] = {}


class MockServer:
    """The whole server but for its socket. Raises RepositoryError for options that do not fit the repository."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._dialect: Dialect = (
            StockBackend()
            if options.stock
            else OwnBackend(options.scheduling_policy, options.without, options.reasoning_parser)
        )
        self._faults = Faults()
        self._records = Records()
        self._live = True
        self._ready = True
        self._models: dict[str, ServedModel] = {}
        self._entries: dict[str, list[Path]] = {}
        if options.model_repository:
            self._poll()
        else:
            self._models = {name: ServedModel(name) for name in options.models or ("mock",)}
        unknown = [name for name in options.models if name not in self._models]
        if unknown:
            known = ", ".join(sorted(self._models)) or "none"
            raise models.RepositoryError(f"the model repository has no model {unknown[0]!r}, it has: {known}.")

    async def listen(self) -> tuple[asyncio.Server, str]:
        """Loads the models and starts to listen. Returns the server and its URL."""
        await asyncio.sleep(self._options.load_seconds)
        for name in self._options.models or self._models:
            self._models[name].load()
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Http1Connection(self.handle), self._options.host, self._options.port)
        return server, f"http://{self._options.host}:{server.sockets[0].getsockname()[1]}"

    def _poll(self) -> None:
        """Look what lies in the repositories now. A model whose folder is gone stays for as long as it is loaded."""
        if not self._options.model_repository:
            return
        self._entries = models.entries(self._options.model_repository)
        for name, folders in self._entries.items():
            self._models.setdefault(name, ServedModel(name)).folder = folders[0]
        for name in [name for name, model in self._models.items() if name not in self._entries and not model.ready]:
            del self._models[name]

    async def handle(self, request: Request, response: Response) -> None:
        try:
            await self._route(request)(request, response)
        except TritonError as error:
            await _send_json(response, error.status, {"error": error.text})

    def _route(self, request: Request) -> Callable[[Request, Response], Awaitable[None]]:
        path = request.path
        plain: dict[str, tuple[str, Callable[[Request, Response], Awaitable[None]]]] = {
            "/v2": ("GET", self._server_metadata),
            "/v2/health/live": ("GET", self._health_live),
            "/v2/health/ready": ("GET", self._health_ready),
            "/v2/models/stats": ("GET", self._all_statistics),
            "/v2/repository/index": ("POST", self._index),
            "/metrics": ("GET", self._metrics),
        }
        if path in plain:
            method, route = plain[path]
            return route if request.method == method else _method_not_allowed
        if match := _MODEL_PATH.fullmatch(path):
            name, version, action = match.groups()
            method = "POST" if action in ("infer", "generate", "generate_stream") else "GET"
            if request.method != method:
                return _method_not_allowed
            return lambda request, response: self._model(name, version, action or "metadata", request, response)
        if match := _REPOSITORY_PATH.fullmatch(path):
            name, action = match.groups()
            if request.method != "POST":
                return _method_not_allowed
            return lambda request, response: self._control(name, action, request, response)
        control = {
            ("POST", "/mock/faults"): self._add_fault,
            ("DELETE", "/mock/faults"): self._clear_faults,
            ("GET", "/mock/requests"): self._show_requests,
            ("DELETE", "/mock/requests"): self._forget_requests,
            ("GET", "/mock/state"): self._show_state,
            ("POST", "/mock/state"): self._change_state,
        }
        return control.get((request.method, path), _not_found)

    # Triton: the server

    async def _server_metadata(self, request: Request, response: Response) -> None:
        version = self._options.server_version
        await _send_json(response, 200, {"name": "triton", "version": version, "extensions": _EXTENSIONS})

    async def _health_live(self, request: Request, response: Response) -> None:
        await response.send_whole(200 if self._live else 400)

    async def _health_ready(self, request: Request, response: Response) -> None:
        in_use = [model for model in self._models.values() if model.state not in ("", "UNAVAILABLE")]
        ready = self._live and self._ready and all(model.ready for model in in_use)
        await response.send_whole(200 if ready else 400)

    async def _all_statistics(self, request: Request, response: Response) -> None:
        loaded = [models.statistics(model) for model in self._models.values() if model.state == "READY"]
        await _send_json(response, 200, {"model_stats": loaded})

    async def _metrics(self, request: Request, response: Response) -> None:
        page = models.metrics_page([model for model in self._models.values() if model.state == "READY"])
        await response.send_whole(200, page.encode(), "text/plain; charset=utf-8")

    # Triton: a model

    async def _model(self, name: str, version: str | None, action: str, request: Request, response: Response) -> None:
        model = self._models.get(name)
        usable = model is not None and model.ready and version in (None, "1")
        if action == "ready":
            if usable:
                await response.send_whole(200)
            else:
                await response.send_whole(400, b'{"error":"Model version not ready"}')
            return
        if action == "stats":
            if not usable:
                raise TritonError(400, f"requested model '{name}' is not available")
            await _send_json(response, 200, {"model_stats": [models.statistics(self._models[name])]})
            return
        if model is None or not model.state:
            raise TritonError(404, f"Request for unknown model: '{name}' is not found")
        if not model.ready:
            raise TritonError(404, f"Request for unknown model: '{name}' has no available versions")
        if not usable:
            raise TritonError(404, f"Request for unknown model: '{name}' version {version} is not found")
        if action == "metadata":
            await _send_json(response, 200, models.metadata(model, self._dialect))
        elif action == "config":
            await _send_json(response, 200, models.config(model, self._dialect))
        elif action == "infer":
            text = b'{"error":"HTTP end point doesn\'t support models with decoupled transaction policy"}'
            await response.send_whole(501, text)
        else:
            await self._generate(model, action, request, response)

    async def _generate(self, model: ServedModel, action: str, request: Request, response: Response) -> None:
        endpoint: Any = action
        record = self._records.open(model.name, endpoint, request.headers)
        try:
            if request.headers.get("content-encoding", "identity") != "identity":
                raise TritonError(400, "Unsupported content-encoding, only 'identity' is supported.")
            body = read_body(request.body, self._dialect.inputs, model.name)
        except TritonError as error:
            record.ended, record.error = "error", error.text
            raise
        interval = self._options.token_interval_ms / 1000
        model.requests += 1
        model.last_inference_ms = int(time.time() * 1000)
        try:
            await serve(body, response, model, self._dialect, record, self._faults, interval)
        finally:
            if model.state == "UNLOADING" and model.in_flight == 0:
                model.state, model.reason = "UNAVAILABLE", "unloaded"

    # Triton: the model repository

    async def _index(self, request: Request, response: Response) -> None:
        asked = parse_json(request.body) if request.body else {}
        self._poll()
        # A loaded model without a folder is not among them.
        listed = [model for model in self._models.values() if model.folder is None or model.name in self._entries]
        twice = {name for name, folders in self._entries.items() if len(folders) > 1}
        await _send_json(response, 200, models.index(listed, twice, bool(asked.get("ready"))))

    async def _control(self, name: str, action: str, request: Request, response: Response) -> None:
        if request.body:
            parse_json(request.body)
        if self._options.model_control_mode == "none":
            raise TritonError(503, "explicit model load / unload is not allowed if polling is enabled")
        self._poll()
        model = self._models.get(name)
        if action == "load":
            if model is None or (model.folder is not None and len(self._entries.get(name, ())) != 1):
                raise TritonError(500, f"failed to load '{name}', failed to poll from model repository")
            await self._load(model)
        elif model is not None and model.state == "READY":
            # Requests in flight run to their end; new ones find no version.
            model.state = "UNLOADING" if model.in_flight else "UNAVAILABLE"
            model.reason = "unloaded"
        await response.send_whole(200, content_type="application/json")

    async def _load(self, model: ServedModel) -> None:
        was_ready = model.state == "READY"
        if was_ready and not model.has_changed():
            return
        if not was_ready:
            model.state = "LOADING"
        await asyncio.sleep(self._options.load_seconds)
        try:
            model.load()
        except models.RepositoryError as error:
            text = f"Internal: TritonModelException: {error}\n\nAt:\n  /backends/vllm/model.py(101): initialize\n"
            if not was_ready:
                model.state, model.reason = "UNAVAILABLE", text
            raise TritonError(
                400, f"load failed for model '{model.name}': version 1 is at UNAVAILABLE state: {text};\n"
            ) from None

    # The tests' control

    async def _add_fault(self, request: Request, response: Response) -> None:
        fault = _parse(Fault, request.body)
        if fault.model is not None and fault.model not in self._models:
            raise TritonError(400, f"model: there is no model {fault.model!r}")
        self._faults.add(fault)
        await _send_json(response, 200, {})

    async def _clear_faults(self, request: Request, response: Response) -> None:
        self._faults.clear()
        await _send_json(response, 200, {})

    async def _show_requests(self, request: Request, response: Response) -> None:
        # What a client wrote may hold integers of any size, which orjson does not know.
        records = json.dumps([dataclasses.asdict(record) for record in self._records])
        await response.send_whole(200, records.encode(), "application/json")

    async def _forget_requests(self, request: Request, response: Response) -> None:
        self._records.clear()
        await _send_json(response, 200, {})

    async def _show_state(self, request: Request, response: Response) -> None:
        state = {
            "live": self._live,
            "ready": self._ready,
            "in_flight": sum(model.in_flight for model in self._models.values()),
            "models": {
                model.name: {"state": model.state, "ready": model.ready, "in_flight": model.in_flight}
                for model in self._models.values()
            },
        }
        await _send_json(response, 200, state)

    async def _change_state(self, request: Request, response: Response) -> None:
        change = _parse(_StateChange, request.body)
        unknown = sorted(set(change.models) - set(self._models))
        if unknown:
            raise TritonError(400, f"models: there is no model {unknown[0]!r}")
        if change.live is not None:
            self._live = change.live
        if change.ready is not None:
            self._ready = change.ready
        for name, model in change.models.items():
            self._models[name].declared_unready = not model.ready
        await self._show_state(request, response)


def _parse(kind: type[_Parsed], body: bytes) -> _Parsed:
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise TritonError(400, f"{place}: {first['msg']}") from None


async def _send_json(response: Response, status: int, content: Any) -> None:
    await response.send_whole(status, orjson.dumps(content), "application/json")


async def _not_found(request: Request, response: Response) -> None:
    await response.send_whole(404, b'{"error":"Not Found"}')


async def _method_not_allowed(request: Request, response: Response) -> None:
    kind = "text/plain" if request.path.startswith("/v2/health") else "application/json"
    await response.send_whole(405, b'{"error":"Method Not Allowed"}', kind)
