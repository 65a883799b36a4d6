"""The models of the Tritons, for operators: what lies in their repositories, load and unload.

Nothing is kept here: the state is Triton's own, so that any worker can answer, and the list of served models follows
it by itself (`gateway.model_list`). Who may ask is decided ahead of all routes (`gateway.access`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from fastapi import APIRouter

from gateway.api.document import MODEL_CONTROL
from gateway.openai.errors import ApiError, bad_request
from gateway.settings import check_triton_name
from gateway.triton import model_control
from gateway.triton.model_control import ControlError, IndexRow

_log = logging.getLogger(__name__)

# Also while a Triton loads a model: it then answers on all connections but those of one thread.
_INDEX_TIMEOUT_S = 5.0

_Control = Callable[[str, str, float], Awaitable[None]]


def model_routes(instances: Callable[[], Mapping[str, str]], load_timeout: float) -> APIRouter:
    """`instances` gives the base URLs of the Tritons by their names; `load_timeout` in seconds."""
    routes = APIRouter(prefix="/admin/models", tags=["admin"])

    def chosen(instance: str | None) -> Mapping[str, str]:
        known = instances()
        if instance is None:
            return known
        if instance not in known:
            raise ApiError(
                404,
                f"There is no instance {instance!r}; there are {', '.join(known)}.",
                param="instance",
                code="instance_not_found",
            )
        return {instance: known[instance]}

    async def control(what: str, ask: _Control, model: str, instance: str | None) -> dict[str, Any]:
        try:
            check_triton_name(model)
        except ValueError as error:
            raise bad_request(f"{error}.", "triton_model") from None
        urls = chosen(instance)
        results = await asyncio.gather(
            *(ask(url, model, load_timeout) for url in urls.values()), return_exceptions=True
        )
        failures: dict[str, ControlError] = {}
        for name, result in zip(urls, results, strict=True):
            if isinstance(result, ControlError):
                failures[name] = result
                _log.warning("model %s was not %s on %s: %s", model, what, name, result)
            elif isinstance(result, BaseException):
                raise result
            else:
                _log.info("model %s was %s on %s by an operator", model, what, name)
        if failures:
            raise _failed(what, model, [name for name in urls if name not in failures], failures)
        return {"model": model, "instances": dict.fromkeys(urls, what)}

    @routes.get("", summary="The models in the repositories of each Triton")
    async def models() -> dict[str, Any]:
        urls = instances()
        indexes = await asyncio.gather(*map(_index, urls.values()))
        return {"instances": dict(zip(urls, indexes, strict=True))}

    @routes.post("/{triton_model}/load", summary="Load a model, or load it anew", responses=MODEL_CONTROL)
    async def load(triton_model: str, instance: str | None = None) -> dict[str, Any]:
        return await control("loaded", model_control.load, triton_model, instance)

    @routes.post("/{triton_model}/unload", summary="Unload a model", responses=MODEL_CONTROL)
    async def unload(triton_model: str, instance: str | None = None) -> dict[str, Any]:
        return await control("unloaded", model_control.unload, triton_model, instance)

    return routes


async def _index(url: str) -> dict[str, Any]:
    try:
        rows = await model_control.index(url, _INDEX_TIMEOUT_S)
    except ControlError as error:
        return {"error": error.reason}
    return {"models": [_shown(row) for row in rows]}


def _shown(row: IndexRow) -> dict[str, str | None]:
    return {
        "triton_model": row.name,
        "version": row.version or None,
        "state": row.state or "NEVER_LOADED",
        "reason": row.reason or None,
    }


def _failed(what: str, model: str, done: list[str], failures: Mapping[str, ControlError]) -> ApiError:
    """One error of all instances: its status and code are the first one's."""
    first = next(iter(failures.values()))
    sentences = [f"{name}: {error.reason}" for name, error in failures.items()]
    where = f" It was {what} on {', '.join(done)}." if done else ""
    return ApiError(
        first.status,
        f"The model {model!r} was not {what}. {'. '.join(sentences)}.{where}",
        param="instance" if len(failures) + len(done) > 1 else None,
        code=first.code,
    )
