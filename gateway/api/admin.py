"""The operator's routes: the instances, and the weights of a model's versions. `gateway.access` lets nobody in without
an admin key."""

from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import ConfigDict, Field, RootModel, ValidationError

from gateway.desk.front import Front
from gateway.openai.errors import bad_request
from service_base.errors import mistake

_EXAMPLE = '{"llama-v1": 0, "llama-v2": 100}'


class _Weights(RootModel[dict[str, Annotated[int, Field(ge=0, le=1_000_000)]]]):
    model_config = ConfigDict(strict=True)


def routes(front: Front) -> APIRouter:
    router = APIRouter(prefix="/admin", tags=["admin"])

    @router.get("/instances", summary="Every instance: how it is and how busy")
    async def instances() -> dict[str, Any]:
        return {"instances": await front.instances()}

    @router.post("/instances/{instance:path}/drain", summary="Give an instance no new requests")
    async def drain(instance: str) -> Any:
        return await front.channel.call("drain", instance)

    @router.post("/instances/{instance:path}/undrain", summary="Give an instance requests again")
    async def undrain(instance: str) -> Any:
        return await front.channel.call("undrain", instance)

    @router.get("/models/{model:path}/weights", summary="The weights of a model's versions")
    async def weights(model: str) -> Any:
        return await front.channel.call("weights_of", model)

    @router.put("/models/{model:path}/weights", summary="Share out a model's requests anew, all at once")
    async def set_weights(model: str, request: Request) -> Any:
        try:
            wanted = _Weights.model_validate_json(await request.body())
        except ValidationError as error:
            place, what = mistake(error)
            raise bad_request(
                f"{place or 'The body'}: {what}; send the versions' weights, such as {_EXAMPLE}.",
                place or None,
                "invalid_value",
            ) from None
        return await front.channel.call("set_weights", model, wanted.root)

    @router.post("/models/{model:path}/weights/rollback", summary="Go back to the weights before")
    async def roll_back(model: str) -> Any:
        return await front.channel.call("roll_back", model)

    return router
