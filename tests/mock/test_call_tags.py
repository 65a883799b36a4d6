"""`tool_structural_tag`: calls that the model is free to make are kept valid by the engine, where that can be had."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.mock_engine.running import MockEngine
from tests.support.chat import MODEL, ask
from tests.support.gateway import running_gateway

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def tool(parameters: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "weather", "parameters": parameters}}


@pytest.fixture
def tagging(engine: MockEngine, repository: Path) -> Iterator[httpx.Client]:
    models = [{"triton_model": MODEL, "structured_outputs_backend": "xgrammar", "tool_structural_tag": True}]
    flags = ("--triton", engine.url, "--model-repository", str(repository), "--models", json.dumps(models))
    with (
        running_gateway(*flags) as gateway,
        httpx.Client(base_url=gateway.wait_until_ready().url, timeout=30) as client,
    ):
        yield client


def test_free_calls_are_bound_by_a_tag_and_bound_ones_by_their_schema(
    tagging: httpx.Client, engine: MockEngine
) -> None:
    closed = CITY | {"additionalProperties": False}
    # The mock is an engine with guidance, which takes no such tag: what arrives is what counts.
    assert ask(tagging, tools=[tool(closed)]).json()["error"]["param"] == "structured_outputs"
    assert ask(tagging, tools=[tool(closed)], tool_choice="required").status_code == 200
    assert ask(tagging).status_code == 200
    free, bound, plain = (r["sampling_parameters"].get("structured_outputs") for r in engine.wait_for_requests(3))
    tag = json.loads(free["structural_tag"])["format"]
    assert tag["triggers"] == ["<tool_call>"]
    assert tag["tags"][0]["content"]["json_schema"] == closed
    assert bound["json"]["minItems"] == 1
    assert plain is None


def test_a_schema_that_cannot_be_enforced_costs_the_tag_alone(tagging: httpx.Client, engine: MockEngine) -> None:
    unenforced = {"type": "object", "properties": {"a": {"not": {"type": "string"}}}}
    answer = ask(tagging, tools=[tool(unenforced)])
    assert answer.status_code == 200
    assert "calls are not kept valid" in answer.headers["x-gateway-warning"]
    (request,) = engine.wait_for_requests(1)
    assert "structured_outputs" not in request["sampling_parameters"]
