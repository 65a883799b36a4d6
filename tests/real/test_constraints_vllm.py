"""Constraints in vLLM itself, on the CPU, where requests are preempted and their prompts computed in chunks: what came
out is what was allowed, whoever else was in the batch."""

import json
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from devtools import environments, models
from devtools.processes import service_environment

_PROGRAM = Path(__file__).with_name("constrained_engine.py")

Run = dict[str, Any]


@pytest.fixture(scope="module")
def run(engine_platform: None, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """What the program has to say."""
    work = tmp_path_factory.mktemp("constrained")
    model = models.tiny(environments.services().python)
    command: list[str | Path] = [environments.engine().python, "-I", _PROGRAM, model, work]
    # In a folder of its own: where it runs, a package of the checkout must not be found.
    said = subprocess.run(command, cwd=work, env=service_environment(), capture_output=True, text=True)
    assert said.returncode == 0, said.stderr[-4000:]
    found: Run = json.loads(said.stdout.splitlines()[-1])
    return found


def answers(run: Run, kind: str | None) -> list[dict[str, Any]]:
    """The answers to requests with that constraint."""
    found = [
        answer
        for answer in run["answers"]
        if (answer["constraints"] is None if kind is None else kind in (answer["constraints"] or {}))
    ]
    assert found
    return found


def test_requests_were_preempted_and_all_kinds_were_together(run: Run) -> None:
    assert run["preempted"] > 0
    assert all(answers(run, kind) for kind in (None, "catalog", "no_repeat_ngram"))


def test_every_output_of_a_catalogue_is_one_of_its_entries(run: Run) -> None:
    single = [answer for answer in answers(run, "catalog") if "items" not in answer["constraints"]["catalog"]]
    assert single
    for answer in single:
        assert answer["finish_reason"] == "stop"
        assert answer["text"] in run["entries"]


def test_every_list_has_that_many_entries_and_none_twice(run: Run) -> None:
    lists = [answer for answer in answers(run, "catalog") if "items" in answer["constraints"]["catalog"]]
    assert any(answer["finish_reason"] == "stop" for answer in lists)
    for answer in lists:
        arguments = answer["constraints"]["catalog"]
        items = answer["text"].split(arguments["separator"])
        if answer["finish_reason"] == "length":
            # The limit may have cut the last one.
            items.pop()
        else:
            assert len(items) == arguments["items"]
        assert set(items) <= set(run["entries"])
        assert len(items) == len(set(items))


def test_no_pair_of_tokens_comes_twice(run: Run) -> None:
    for answer in answers(run, "no_repeat_ngram"):
        ids = answer["token_ids"]
        pairs = list(pairwise(ids))
        assert len(ids) == 120
        assert len(pairs) == len(set(pairs))


def test_without_a_constraint_pairs_do_come_twice(run: Run) -> None:
    """So the test above can fail: this model repeats itself where it may."""
    repeats = 0
    for answer in answers(run, None):
        ids = answer["token_ids"]
        assert len(ids) == 120
        pairs = list(pairwise(ids))
        repeats += len(pairs) - len(set(pairs))
    assert repeats > 0


def ask(program: str) -> list[str]:
    """The lines that a program prints, run by the engine's Python."""
    offline = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    command: list[str | Path] = [environments.engine().python, "-I", "-c", program]
    said = subprocess.run(command, env=service_environment(**offline), capture_output=True, text=True)
    assert said.returncode == 0, said.stderr[-4000:]
    return said.stdout.splitlines()


def test_the_import_starts_nothing_and_leaves_vllm_alone(engine_platform: None) -> None:
    assert ask("""
import os, sys
import logits_processors, logits_processors._native
print(len(os.listdir("/proc/self/task")), sorted({"torch", "vllm", "transformers"} & set(sys.modules)))
""") == ["1 []"]


_V2 = """
from types import SimpleNamespace
from vllm.v1.worker.gpu.sample.logits_processor.loader import _load_v2_logitsprocs_by_fqcns

(processor,) = _load_v2_logitsprocs_by_fqcns(["logits_processors:ConstraintProcessor"])
config = SimpleNamespace(use_v2_model_runner=True, additional_config={})
for act in (lambda: processor(config, None), lambda: processor.configure(config)):
    try:
        act()
    except ValueError as error:
        print(error)
"""


def test_under_model_runner_v2_one_sentence_says_what_to_do(engine_platform: None) -> None:
    lines = ask(_V2)[-2:]
    assert lines[0] == lines[1]
    assert "VLLM_USE_V2_MODEL_RUNNER=0" in lines[0]
