"""The CPU variant as a user starts it: it comes up by itself, and answers."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.containers.stack import MODEL, ContainerStack, wait_for

pytestmark = pytest.mark.containers

_SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}},
    "required": ["city"],
    "additionalProperties": False,
}
_CONSTRAINED = {"response_format": {"type": "json_schema", "json_schema": {"name": "capital", "schema": _SCHEMA}}}
_ONE_SHOTS = {"first-start", "download", "first-model"}


def test_every_part_is_up_and_healthy(stack: ContainerStack) -> None:
    """Without Grafana, whose image only a registry has."""
    services = set(stack.compose("config", "--services").split())
    listed = [json.loads(line) for line in stack.compose("ps", "--all", "--format", "json").splitlines()]
    assert {one["Service"] for one in listed} == services
    for one in listed:
        if one["Service"] in _ONE_SHOTS:
            assert (one["State"], one["ExitCode"]) == ("exited", 0), one
        else:
            assert (one["State"], one["Health"]) == ("running", "healthy"), one


def test_an_announced_model_answers_by_a_schema(stack: ContainerStack) -> None:
    status, answer = stack.chat(**_CONSTRAINED)
    assert status == 200, answer
    assert json.loads(answer["choices"][0]["message"]["content"]).keys() == {"city"}
    assert "published" in stack.compose("logs", "first-model")
    assert [model["id"] for model in stack.ask("/v1/models")[1]["data"]] == [MODEL]


def test_up_once_more_changes_nothing(stack: ContainerStack) -> None:
    before = sorted(stack.compose("ps", "--all", "--quiet").split())
    stack.compose("up", "-d", "--wait")
    assert sorted(stack.compose("ps", "--all", "--quiet").split()) == before
    # The one-shot runs once more, beside the others.
    wait_for(lambda: f"{MODEL} is ready already." in stack.compose("logs", "first-model"), "the first model")
    assert stack.compose("logs", "first-model").count("published") == 1


def test_without_a_key_there_is_nothing(stack: ContainerStack) -> None:
    assert stack.ask("/v1/models", key="")[0] == 401
    assert stack.ask("/v1/models")[0] == 200


def test_gauges_are_right_across_the_containers(stack: ContainerStack) -> None:
    """vLLM's files are read in another container, whose pids are others."""
    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(stack.chat, max_tokens=300, ignore_eos=True) for _ in range(4)]
        stack.running(4)
        assert [answer.result()[0] for answer in answers] == [200] * 4
    stack.running(0)
