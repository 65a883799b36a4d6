"""Triton's control plane, through `tritonclient`: is the server ready, which models, which backend.

One task per instance asks every second and writes the state table; a request that meets a dead
instance takes it out at once and the next round brings it back.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from tritonclient.http.aio import InferenceServerClient
from tritonclient.utils import InferenceServerException

from gateway.routing.instances import Instance
from gateway.triton.client import triton_client
from gateway.triton.contract import Backend, ModelContract, contract_of, is_not_vllm, stock_is_too_old

_log = logging.getLogger(__name__)

PROBE_INTERVAL_S = 1.0
PROBE_TIMEOUT_S = 5.0


class Control:
    """Keeps the state table true. `models` gives the names in Triton that the gateway serves, which may change."""

    def __init__(
        self, instances: Sequence[tuple[Instance, str]], models: Callable[[], Sequence[str]], *, accept_old: bool
    ) -> None:
        self._instances = instances
        self._models = models
        self._accept_old = accept_old
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._watch(instance, url)) for instance, url in self._instances]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _watch(self, instance: Instance, url: str) -> None:
        async with triton_client(url, PROBE_TIMEOUT_S) as client:
            while True:
                await self._probe(instance, client)
                await asyncio.sleep(PROBE_INTERVAL_S)

    async def _probe(self, instance: Instance, client: InferenceServerClient) -> None:
        ready: dict[str, ModelContract] = {}
        reasons: dict[str, str] = {}
        models = self._models()
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                server = await client.get_server_metadata()
                for model in models:
                    found = await self._probe_model(client, model, str(server.get("version", "")))
                    if isinstance(found, ModelContract):
                        ready[model] = found
                    else:
                        reasons[model] = found
        except Exception as error:
            # Whatever a probe meets (refused, reset, nonsense), the instance is not ready and the
            # watch goes on.
            reasons = dict.fromkeys(models, f"the Triton server does not answer ({type(error).__name__})")
            ready = {}
        self._report(instance, ready, reasons)
        instance.models, instance.reasons = ready, reasons

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

    @staticmethod
    def _report(instance: Instance, ready: dict[str, ModelContract], reasons: dict[str, str]) -> None:
        for model, found in ready.items():
            if instance.models.get(model) != found:
                _log.info("model %s is ready on %s (%s backend)", model, instance.name, found.backend.value)
        for model, reason in reasons.items():
            if instance.reasons.get(model) != reason:
                _log.warning("model %s is not ready on %s: %s", model, instance.name, reason)
