"""Triton's control plane, through `tritonclient`: is the server ready, which models, which backend.

One task per instance asks every second, and at once when the desk suspects it; what it finds goes to the desk. Also the
canary: a generation of one token, which is what shows that an engine works behind a server that answers.
"""

import asyncio
import contextlib
import logging

from tritonclient.http.aio import InferenceServerClient
from tritonclient.utils import InferenceServerException

from gateway.desk.desk import Desk
from gateway.openai.errors import ApiError
from gateway.routing.instances import Instance, Target
from gateway.triton.client import triton_client
from gateway.triton.contract import (
    Backend,
    GenerateRequest,
    ModelContract,
    contract_of,
    is_not_vllm,
    request_body,
    stock_is_too_old,
)
from gateway.triton.generate import Connections
from gateway.triton.generation import Generation

_log = logging.getLogger(__name__)

PROBE_INTERVAL_S = 1.0
PROBE_TIMEOUT_S = 5.0

_CANARY = GenerateRequest("Hello", {"max_tokens": 1, "temperature": 0.0}, request_id="canary")


class Control:
    """Keeps the desk's table true. `follow` it whenever the instances may have changed."""

    def __init__(self, desk: Desk, *, accept_old: bool) -> None:
        self._desk = desk
        self._accept_old = accept_old
        self._tasks: dict[Instance, asyncio.Task[None]] = {}
        self._wake: dict[str, asyncio.Event] = {}
        desk.suspect = self._probe_now

    def follow(self) -> None:
        """Watch the instances that the table has now, and no others."""
        instances = self._desk.table.instances
        for instance in [instance for instance in self._tasks if instances.get(instance.name) is not instance]:
            self._tasks.pop(instance).cancel()
        for instance in instances.values():
            if instance not in self._tasks:
                self._wake[instance.name] = asyncio.Event()
                self._tasks[instance] = asyncio.create_task(self._watch(instance))

    async def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _probe_now(self, name: str) -> None:
        if wake := self._wake.get(name):
            wake.set()

    async def _watch(self, instance: Instance) -> None:
        wake = self._wake[instance.name]
        while True:
            # A kept connection may belong to that one of Triton's HTTP threads which loads a model, and be silent for
            # as long; a new one goes to another thread.
            async with triton_client(instance.url, PROBE_TIMEOUT_S) as client:
                await self._probe(instance, client)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PROBE_INTERVAL_S):
                    await wake.wait()
            wake.clear()

    async def _probe(self, instance: Instance, client: InferenceServerClient) -> None:
        ready: dict[str, ModelContract] = {}
        problems: dict[str, str] = {}
        models = sorted(self._desk.table.models)
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                server = await client.get_server_metadata()
                for model in models:
                    found = await self._probe_model(client, model, str(server.get("version", "")))
                    if isinstance(found, ModelContract):
                        ready[model] = found
                    else:
                        problems[model] = found
        except Exception as error:
            # Whatever a probe meets (refused, reset, nonsense), the instance is not ready and the
            # watch goes on.
            problems = dict.fromkeys(models, f"the Triton server does not answer ({type(error).__name__})")
            ready = {}
        self._desk.probed(instance, ready, problems)

    async def _probe_model(self, client: InferenceServerClient, model: str, version: str) -> ModelContract | str:
        if not await client.is_model_ready(model):
            return f"Triton does not have the model {model!r} ready"
        try:
            found = contract_of(await client.get_model_metadata(model))
        except InferenceServerException as error:
            return f"Triton gives no metadata of the model {model!r}: {error.message()}"
        if reason := is_not_vllm(found):
            return f"Triton serves the model {model!r}, but {reason}"
        if found.backend is Backend.STOCK and not self._accept_old and (reason := stock_is_too_old(version)):
            return reason
        return found


class Canaries:
    """A canary for each target that has nothing to do, every `interval` seconds, and at once for one that is half-open:
    with canaries no client's request is what tries it."""

    def __init__(self, desk: Desk, interval: float, timeout: float, connect_timeout: float) -> None:
        self._desk = desk
        self._interval = interval
        self._timeout = timeout
        self._connect_timeout = connect_timeout
        self._running: dict[Target, asyncio.Task[None]] = {}
        self._last: dict[Target, float] = {}
        desk.has_canaries = True

    def tick(self) -> None:
        now = asyncio.get_running_loop().time()
        for target in self._desk.canary_targets():
            is_due = now - self._last.setdefault(target, now) >= self._interval
            if target not in self._running and (is_due or target.health.trial):
                self._last[target] = now
                self._running[target] = asyncio.create_task(self._try(target))

    async def close(self) -> None:
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def _try(self, target: Target) -> None:
        connections = Connections(target.instance.url, self._connect_timeout)
        problem = ""
        try:
            async with asyncio.timeout(self._timeout):
                if not await _one_token(target, connections):
                    problem = "a canary got no token"
        except TimeoutError:
            problem = f"no token of a canary came for {self._timeout:g} s"
        except ApiError as error:
            problem = f"a canary failed: {error.message.removesuffix('.')}"
        finally:
            connections.close()
            del self._running[target]
        self._desk.canary_ended(target, problem)


async def _one_token(target: Target, connections: Connections) -> bool:
    assert target.contract is not None
    body = request_body(target.contract.backend, _CANARY, None)
    counter = _Counter()
    where, backend = target.instance.name, target.contract.backend
    generation = Generation(where, connections, target.model, backend, body, (), {"prompt": "prompt"}, counter)
    try:
        await generation.open()
        while await generation.deltas() is not None:
            pass
    finally:
        generation.close()
    return counter.tokens > 0


class _Counter:
    tokens = 0
