"""Reasoning and a constraint, on engines of their own that have a reasoning parser: the constraint binds the answer and
not the thinking."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from devtools import environments, models
from devtools.paths import ROOT
from devtools.stack import Stack, StackConfig
from gateway.output.reasoning import MARKS
from gateway.translate.after_reasoning import after_reasoning
from gateway.translate.schema_check import check, violation
from gateway.translate.structured import Constraint
from tests.support import thinking_model
from tests.support.backend import Backend, sampling, text_of

pytestmark = pytest.mark.long

OPENED, CLOSED, UNMARKED = "Hello<think>\n", "Hello<think>\n\n</think>\n\n", "Hello"
END = "</think>"
INSTANCE = re.compile(r'\{"size":\d\d?,"color":"(red|green)"\}')
CONSTRAINT: dict[str, Any] = {
    "json": {
        "type": "object",
        "properties": {"size": {"type": "integer", "minimum": 0, "maximum": 99}, "color": {"enum": ["red", "green"]}},
        "required": ["size", "color"],
        "additionalProperties": False,
    }
}
SEEDS = range(6)

BY_MARKS, BY_TEMPLATE = models.TINY, models.SMOLLM2
"""Two deployments of the same model. The parser of the first goes by the marks alone; that of the second first wants to
know whether the chat template has turned the thinking on."""


def engine(parser: str, **config: Any) -> dict[str, Any]:
    fixed = {"backend": "guidance", "disable_any_whitespace": True}
    return {"structured_outputs_config": fixed | {"reasoning_parser": parser} | config}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return thinking_model.make(tmp_path_factory.mktemp("thinking") / "model", models.tiny(Path(sys.executable)))


@pytest.fixture(scope="module")
def own_stack(engine_platform: None, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    small = {"model": str(model), "kv_cache_memory_bytes": 2**27, "max_num_batched_tokens": 8192}
    config = StackConfig(
        models={BY_MARKS: small | engine("deepseek_r1"), BY_TEMPLATE: small | engine("deepseek_v3")}, gateway=False
    )
    own = Stack(config, tmp_path_factory.mktemp("reasoning") / "stack", Path(sys.executable))
    own.start()
    yield own
    own.stop()


@pytest.fixture
def client(own_stack: Stack) -> Iterator[Callable[[str], Backend]]:
    """A function from a deployment's name to its client."""
    made: list[Backend] = []

    def make(name: str) -> Backend:
        made.append(Backend(own_stack.triton_url, name, own_stack.service("triton").log))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def backend(client: Callable[[str], Backend]) -> Backend:
    return client(BY_MARKS)


@pytest.fixture(scope="module")
def parameters(model: Path) -> dict[str, Any]:
    """One free token in ten ends the thinking, and none ends the answer."""
    end_of_text = json.loads((model / "config.json").read_text())["eos_token_id"]
    bias = {thinking_model.token_of(model, END): 5.1, end_of_text: -100}
    return {"logit_bias": bias, "temperature": 1, "max_tokens": 400}


def answer(backend: Backend, prompt: str, parameters: dict[str, Any], **inputs: Any) -> str:
    wanted = sampling(**{"structured_outputs": CONSTRAINT} | parameters)
    events = backend.stream(text_input=prompt, return_finish_reason=True, sampling_parameters=wanted, **inputs)
    assert events[-1]["finish_reason"] == "stop"
    return text_of(events)


def thinking_in(text: str) -> str:
    """What stands before the mark; behind it stands an instance."""
    thinking, mark, rest = text.partition(END)
    assert mark
    assert INSTANCE.fullmatch(rest)
    return thinking


@pytest.mark.parametrize(
    ("deployment", "prompt", "inputs"),
    [
        (BY_MARKS, OPENED, {"reasoning_ended": False}),
        (BY_MARKS, UNMARKED, {"reasoning_ended": False}),
        # The client's word against the prompt's.
        (BY_MARKS, CLOSED, {"reasoning_ended": False}),
        # vLLM's own look in the prompt.
        (BY_MARKS, OPENED, {}),
        (BY_MARKS, UNMARKED, {}),
        (BY_TEMPLATE, OPENED, {"reasoning_ended": False}),
    ],
)
def test_the_constraint_begins_after_the_thinking(
    client: Callable[[str], Backend], deployment: str, prompt: str, inputs: dict[str, Any], parameters: dict[str, Any]
) -> None:
    backend = client(deployment)
    thoughts = [thinking_in(answer(backend, prompt, parameters | {"seed": seed}, **inputs)) for seed in SEEDS]
    # Under the constraint each would begin with a brace.
    assert any(thought and not thought.startswith("{") for thought in thoughts)


@pytest.mark.parametrize(
    ("deployment", "prompt", "inputs"),
    [
        (BY_MARKS, OPENED, {"reasoning_ended": True}),
        (BY_MARKS, UNMARKED, {"reasoning_ended": True}),
        (BY_MARKS, CLOSED, {}),
        (BY_TEMPLATE, OPENED, {"reasoning_ended": True}),
    ],
)
def test_the_constraint_holds_from_the_first_token(
    client: Callable[[str], Backend], deployment: str, prompt: str, inputs: dict[str, Any], parameters: dict[str, Any]
) -> None:
    backend = client(deployment)
    for seed in SEEDS:
        assert INSTANCE.fullmatch(answer(backend, prompt, parameters | {"seed": seed}, **inputs))


def test_requests_of_each_kind_at_the_same_time(backend: Backend, parameters: dict[str, Any]) -> None:
    def thinks_first(seed: int) -> None:
        thinking_in(answer(backend, OPENED, parameters | {"seed": seed}, reasoning_ended=False))

    def answers_at_once(seed: int) -> None:
        assert INSTANCE.fullmatch(answer(backend, OPENED, parameters | {"seed": seed}, reasoning_ended=True))

    def is_free(seed: int) -> None:
        wanted = sampling(**parameters | {"seed": seed, "max_tokens": 40})
        events = backend.stream(text_input=OPENED, return_finish_reason=True, sampling_parameters=wanted)
        assert events[-1]["finish_reason"] == "length"

    with ThreadPoolExecutor(12) as pool:
        kinds = [thinks_first, answers_at_once, is_free]
        for done in [pool.submit(kinds[seed % 3], seed) for seed in range(24)]:
            done.result()


@pytest.mark.parametrize("opened", [True, False])
def test_one_grammar_for_thinking_and_answer(
    backend: Backend, model: Path, parameters: dict[str, Any], opened: bool
) -> None:
    """As for an engine without a reasoning parser, here with marks that are tokens."""
    checked = check(Constraint("json", CONSTRAINT["json"], "response_format.json_schema.schema"), "guidance")
    marks = {mark: thinking_model.token_of(model, mark) for mark in ("<think>", END)}
    grammar = after_reasoning(checked, MARKS["think"], opened, "guidance", marks)
    assert grammar is not None
    bias = parameters["logit_bias"] | {marks["<think>"]: 5}
    wanted = parameters | {"structured_outputs": grammar.engine_value(), "logit_bias": bias}
    thoughts = []
    for seed in SEEDS:
        text = answer(backend, OPENED if opened else UNMARKED, wanted | {"seed": seed}, reasoning_ended=True)
        if not opened and "<think>" not in text:
            assert violation(checked, text) is None
            continue
        assert opened or text.lstrip().startswith("<think>")
        thought, end, rest = text.partition(END)
        assert end
        assert violation(checked, rest) is None
        thoughts.append(thought)
    assert any(thought and not thought.startswith("{") for thought in thoughts)


def test_an_engine_that_constrains_the_reasoning_too(own_stack: Stack, client: Callable[[str], Backend]) -> None:
    folder = own_stack.repository / "bound"
    shutil.copytree(own_stack.repository / BY_MARKS, folder)
    path = folder / "1" / "model.json"
    changed = engine("deepseek_r1", enable_in_reasoning=True)
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    loaded = httpx.post(f"{own_stack.triton_url}/v2/repository/models/bound/load", timeout=250)
    assert loaded.status_code == 200, loaded.text
    wanted = sampling(structured_outputs=CONSTRAINT)
    assert client("bound").refusal(text_input=OPENED, reasoning_ended=False, sampling_parameters=wanted) == (
        "INVALID_ARG reasoning_ended: must be true or absent with a structured output, since the engine constrains the "
        "reasoning too: take structured_outputs_config.enable_in_reasoning out of model.json."
    )


_ASK = f"""
import json, sys
sys.path.insert(0, {str(ROOT)!r})
from vllm.reasoning import ReasoningParserManager
from vllm_backend.reasoning import THINKING, waits_for_end

class Vocabulary(dict):
    '''Any text is a token.'''
    def __missing__(self, text):
        self[text] = len(self) + 1
        return self[text]
    get = dict.__getitem__
    def __contains__(self, text):
        return True

class Tokenizer:
    vocabulary, init_kwargs, chat_template = Vocabulary(), {{}}, ""
    def get_vocab(self):
        return self.vocabulary
    def encode(self, text, **_):
        return [self.vocabulary[text]]
    def convert_tokens_to_ids(self, token):
        return self.vocabulary[token]
    def decode(self, ids, **_):
        return ""

tokenizer = Tokenizer()
# `hf` goes by what a tokenizer's own files say.
names = [name for name in ReasoningParserManager.list_registered() if name != "hf"]
parsers = {{name: ReasoningParserManager.get_reasoning_parser(name)(tokenizer, **THINKING) for name in names}}
print(json.dumps({{name: waits_for_end(parser, tokenizer) for name, parser in parsers.items()}}))
"""


def test_every_parser_of_vllm_waits_for_a_mark_but_one(engine_platform: None) -> None:
    command: list[str | Path] = [environments.engine().python, "-I", "-c", _ASK]
    offline = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    said = subprocess.run(command, env=os.environ | offline, capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    waits: dict[str, bool] = json.loads(said.stdout.splitlines()[-1])
    assert len(waits) > 20
    assert [name for name, does in waits.items() if not does] == ["openai_gptoss"]
