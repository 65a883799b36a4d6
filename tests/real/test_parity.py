"""The gateway, a real Triton and our backend answer as vLLM's own server does, on the same engine arguments."""

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import astuple
from pathlib import Path

import pytest

from bench.parity.client import Server
from bench.parity.explained import EXPLANATIONS
from bench.parity.report import row
from bench.parity.run import Outcome, plan, run
from devtools import environments, models, repository
from devtools.stack import Ports, Stack, StackConfig
from devtools.vllm_server import VllmServer, starting_vllm

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

DEPLOYMENTS = [models.SMOLLM2, models.TINY]
# A cached prompt is computed in other batches, with other last digits.
UNCACHED = {"enable_prefix_caching": False}
# A parser without a grammar of its own: with most others the engine's grammar backend refuses each bound call
# (https://github.com/vllm-project/vllm/issues/55152).
TOOLS = ("--enable-auto-tool-choice", "--tool-call-parser", "pythonic")


@pytest.fixture(scope="module")
def outcomes(engine_platform: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, list[Outcome]]]:
    """What every request to every model showed."""
    state = tmp_path_factory.mktemp("parity")
    config = StackConfig(models=dict.fromkeys(DEPLOYMENTS, UNCACHED))
    stack = Stack(config, state / "stack", Path(sys.executable))
    ports = [port for port in astuple(Ports.free()) if port not in astuple(config.ports)]
    with contextlib.ExitStack() as running:
        running.callback(stack.kill)
        servers = {
            deployment: running.enter_context(_vllm(deployment, state / deployment, port))
            for deployment, port in zip(DEPLOYMENTS, ports, strict=False)
        }
        stack.start()
        for server in servers.values():
            server.wait_until_ready()
        yield {
            name: list(run(plan(Server(stack.url, name), Server(server.url, name)))) for name, server in servers.items()
        }


def _vllm(deployment: str, state: Path, port: int) -> "contextlib.AbstractContextManager[VllmServer]":
    folder = models.folder(deployment, Path(sys.executable))
    repository.write_model(state / "repository", deployment, folder, UNCACHED)
    model_json = state / "repository" / deployment / "1" / "model.json"
    return starting_vllm(model_json, deployment, environments.engine(), state / "vllm", port, *TOOLS)


@pytest.mark.parametrize("deployment", DEPLOYMENTS)
def test_every_answer_is_the_same_or_the_difference_is_explained(
    deployment: str, outcomes: dict[str, list[Outcome]]
) -> None:
    found = outcomes[deployment]
    assert len(found) >= 50
    different = [line for outcome in found if outcome.unexplained for line in row(outcome)]
    assert not different, "\n".join(different)


@pytest.mark.parametrize("deployment", DEPLOYMENTS)
def test_every_request_is_answered_or_refused_as_it_is_meant(
    deployment: str, outcomes: dict[str, list[Outcome]]
) -> None:
    """Two equal refusals of a request that was meant to be answered would prove nothing."""
    wrong = [
        (case.shape.name, case.a.status, case.a.message)
        for case in (outcome.case for outcome in outcomes[deployment])
        if case.shape.refused is not None and case.a.status not in ((400, 404) if case.shape.refused else (200,))
    ]
    assert wrong == []


def test_every_explanation_is_needed(outcomes: dict[str, list[Outcome]]) -> None:
    used = {one.explanation for found in outcomes.values() for outcome in found for one in outcome.found}
    assert set(EXPLANATIONS) <= used
