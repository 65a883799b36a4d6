"""Loading a deployment that is wrong: one sentence that says what to change, and the server goes on."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from devtools.models import TINY
from devtools.stack import Stack
from tests.support.catalogs import PROCESSOR
from tests.support.processes import commands
from tests.support.waiting import wait_for


@pytest.fixture
def broken(stack: Stack) -> Iterator[Path]:
    """A copy of the tiny model's deployment, to be broken."""
    folder = stack.repository / "broken"
    shutil.copytree(stack.repository / TINY, folder)
    yield folder
    shutil.rmtree(folder)


def load_error(stack: Stack) -> str:
    answer = httpx.post(f"{stack.triton_url}/v2/repository/models/broken/load", timeout=120)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert isinstance(error, str)
    return error


def change(folder: Path, **arguments: Any) -> None:
    path = folder / "1" / "model.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | arguments))


def test_an_unknown_engine_argument(stack: Stack, broken: Path) -> None:
    change(broken, max_model_length=5, gpus=1)
    assert "model.json: gpus, max_model_length: not among the installed vLLM's engine arguments." in load_error(stack)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (
            {"logits_processors": [PROCESSOR], "additional_config": {"constraints": {"threads": 0}}},
            "model.json: additional_config.constraints.threads: must be a whole number from 1 to 64, not 0.",
        ),
        ({"logits_processors": ["nowhere:Some"]}, "model.json: logits_processors: nowhere:Some cannot be loaded: "),
    ],
)
def test_a_logits_processor_that_cannot_be_had_as_it_is_set_up(
    changed: dict[str, Any], reason: str, stack: Stack, broken: Path
) -> None:
    change(broken, **changed)
    assert reason in load_error(stack)


def test_a_model_that_is_not_there(stack: Stack, broken: Path) -> None:
    change(broken, model="/nowhere/model")
    assert "the model folder /nowhere/model does not exist." in load_error(stack)


def test_a_configuration_that_is_not_decoupled(stack: Stack, broken: Path) -> None:
    config = broken / "config.pbtxt"
    config.write_text(config.read_text().replace("decoupled: true", "decoupled: false"))
    assert "config.pbtxt must say model_transaction_policy { decoupled: true }." in load_error(stack)


@pytest.mark.long
@pytest.mark.parametrize(
    ("parser", "reason"),
    [
        ("no_such", " must be one of cohere_command3, "),
        ("deepseek_r1", ": deepseek_r1 does not fit the model: DeepSeekR1ReasoningParser reasoning parser could not"),
    ],
)
def test_a_reasoning_parser_that_would_end_the_engine(stack: Stack, broken: Path, parser: str, reason: str) -> None:
    change(broken, structured_outputs_config={"backend": "guidance", "reasoning_parser": parser})
    assert f"model.json: structured_outputs_config.reasoning_parser{reason}" in load_error(stack)


@pytest.mark.long
def test_an_engine_that_cannot_start(stack: Stack, broken: Path) -> None:
    # No cache is that small.
    change(broken, kv_cache_memory_bytes=1)
    error = load_error(stack)
    assert "vLLM's engine for " in error
    assert "did not start: " in error
    # Triton answers before its stub has ended.
    wait_for(
        lambda: not [line for line in commands(stack.service("triton").pids()).values() if "broken" in line],
        "the end of the model's processes",
    )
