"""The load against the gateway: every workload's answers are right, and a fault of the engine is counted."""

import pytest

from bench.load.client import Client
from bench.load.run import ClosedLoop, Limit, run
from bench.load.workloads import NAMES, Shape, workload
from bench.mock_engine.running import MockEngine
from tests.support.chat import MODEL
from tests.support.gateway import Gateway

# The model's context is 512 bytes of prompt and tokens.
SHAPES = {
    "preprocess": Shape(prompt_bytes=300, answer_tokens=1),
    "decode": Shape(prompt_bytes=50, answer_tokens=40, ignore_eos=True),
    "structured": Shape(prompt_bytes=50, answer_tokens=300),
}


@pytest.mark.parametrize("name", NAMES)
async def test_every_workload(gateway: Gateway, engine: MockEngine, name: str) -> None:
    client = Client(gateway.url)
    found = await run(client, workload(name, MODEL, shapes=SHAPES, prompts=4), ClosedLoop(4), Limit(requests=12))
    client.close()
    assert [outcome.error for outcome in found.outcomes] == [""] * 12
    if name == "decode":
        # By the server's own count.
        assert {outcome.tokens for outcome in found.outcomes} == {40}


async def test_a_fault_of_the_engine_is_counted(gateway: Gateway, engine: MockEngine) -> None:
    engine.add_fault(next=1, error_after={"tokens": 3, "error": "INTERNAL: the engine broke"})
    client = Client(gateway.url)
    asked = workload("decode", MODEL, shapes=SHAPES, prompts=4)
    found = await run(client, asked, ClosedLoop(1), Limit(requests=3))
    client.close()
    wrong = [outcome.error for outcome in found.outcomes if not outcome.is_right]
    assert len(wrong) == 1
    assert wrong[0].startswith("the stream ends in an error: ")
