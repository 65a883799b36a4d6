"""One grammar for thinking and answer: on an engine with guidance whose grammar begins with the first token, and in the
engine's own xgrammar. With marks that are tokens: test_backend_reasoning.py."""

import json
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from devtools import environments, models
from devtools.stack import Stack
from gateway.output.reasoning import MARKS, ReasoningMarks
from gateway.translate.after_reasoning import after_analysis, after_reasoning
from gateway.translate.schema_check import check, violation
from gateway.translate.structured import Constraint
from tests.support.backend import Backend, sampling, text_of
from tests.support.thinking_model import token_of

THINK = MARKS["think"]
JSON = Constraint(
    "json",
    {
        "type": "object",
        "properties": {"size": {"type": "integer", "minimum": 0, "maximum": 99}, "color": {"enum": ["red", "green"]}},
        "required": ["size", "color"],
        "additionalProperties": False,
    },
    "response_format.json_schema.schema",
)
ANSWER = '{"size": 5,"color": "red"}'


def composed(constraint: Constraint, marks: ReasoningMarks, opened: bool, backend: str) -> Constraint:
    found = after_reasoning(check(constraint, backend), marks, opened, backend, {})
    assert found is not None
    return found


@pytest.mark.parametrize(
    "constraint",
    [
        JSON,
        Constraint("choice", ["red", "gr/een"], "guided_choice"),
        Constraint("regex", "[a-f]{2,5}/[0-9]{2}", "guided_regex"),
    ],
    ids=lambda constraint: constraint.kind,
)
def test_on_an_engine_with_guidance(stack: Stack, backend: Backend, constraint: Constraint) -> None:
    """The mark is text like any other: random weights find one of two characters, with some help."""
    marks = ReasoningMarks("<<", "]]", has_special_tokens=False)
    folder = Path(json.loads((stack.repository / models.TINY / "1" / "model.json").read_text())["model"])
    wanted = composed(constraint, marks, True, "guidance").engine_value()
    thoughts = []
    for seed in range(3):
        events = backend.stream(
            text_input="Hello<<",
            return_finish_reason=True,
            sampling_parameters=sampling(
                structured_outputs=wanted, logit_bias={token_of(folder, "]"): 6}, seed=seed, max_tokens=2000
            ),
        )
        assert events[-1]["finish_reason"] == "stop"
        thought, mark, rest = text_of(events).partition(marks.closing)
        assert mark
        assert violation(constraint, rest.lstrip()) is None
        thoughts.append(thought)
    assert any(thoughts)


_ASK = """
import json, sys
import xgrammar

end = 256
tokens = [bytes([byte]) for byte in range(end)] + [b"<end>"]
about = xgrammar.TokenizerInfo(tokens, vocab_type=xgrammar.VocabType.RAW, stop_token_ids=[end])
compiler = xgrammar.GrammarCompiler(about)
given = json.load(sys.stdin)

def allows(grammar, text):
    matcher = xgrammar.GrammarMatcher(grammar)
    return matcher.accept_string(text) and matcher.accept_token(end)

grammars = [compiler.compile_structural_tag(tag) for tag in given["tags"]]
print(json.dumps([[allows(grammar, text) for grammar in grammars] for text in given["texts"]]))
"""

_TEXTS = {
    # Whether it is allowed where the prompt has opened the thinking, and where it has not.
    f'So {{"size": 5}}, or?</think>\n\n{ANSWER}': (True, False),
    f"</think>{ANSWER}": (True, False),
    f"</th</thin</think>{ANSWER}": (True, False),
    f"<think>\nSo 🌍.\n</think>\n\n{ANSWER}": (True, True),
    f"\n<think></think>\n{ANSWER}": (True, True),
    ANSWER: (False, True),
    "So.</think>": (False, False),
    '<think>So.</think>{"size": 5}': (False, False),
    # The first mark ends the thinking, whatever stands behind it.
    f"<think>So.</think>again</think>{ANSWER}": (False, False),
    f"<think>So.</think>again</think>\n\n{ANSWER}": (False, False),
    f"<think>So.</think>\nagain</think>\n{ANSWER}": (False, False),
}


def allowed(tags: list[str], texts: Iterable[str]) -> dict[str, tuple[bool, ...]]:
    """Whether each tag allows each text, by the library."""
    command: list[str | Path] = [environments.engine().python, "-I", "-c", _ASK]
    said = subprocess.run(
        command,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
        input=json.dumps({"tags": tags, "texts": list(texts)}),
        capture_output=True,
        text=True,
    )
    assert said.returncode == 0, said.stderr
    return {text: tuple(each) for text, each in zip(texts, json.loads(said.stdout.splitlines()[-1]), strict=True)}


def test_in_xgrammar(engine_platform: None) -> None:
    tags = [composed(JSON, THINK, opened, "xgrammar").value for opened in (True, False)]
    assert allowed(tags, _TEXTS) == _TEXTS


_ANALYSIS, _FINAL = "<|channel|>analysis<|message|>{}<|end|><|start|>assistant", "<|channel|>final<|message|>"
_IN_CHANNELS = {
    # Whether it is allowed as JSON, and as a choice.
    f"{_FINAL}{ANSWER}": (True, False),
    f"<|channel|>final <|constrain|>json<|message|>{ANSWER}": (True, False),
    f"{_ANALYSIS.format('So 🌍, or?')}{_FINAL}{ANSWER}": (True, False),
    f"{_ANALYSIS.format('')}{_FINAL}{ANSWER}": (True, False),
    f"{_FINAL}red": (False, True),
    f"{_ANALYSIS.format('Hm.')}{_FINAL}gr/een": (False, True),
    ANSWER: (False, False),
    f"{_ANALYSIS.format('So.')}{ANSWER}": (False, False),
    f"{_FINAL}blue": (False, False),
    "<|channel|>analysis<|message|>So.<|end|>": (False, False),
}


def test_harmony_in_xgrammar(engine_platform: None) -> None:
    tags = []
    for constraint in (JSON, Constraint("choice", ["red", "gr/een"], "guided_choice")):
        found = after_analysis(check(constraint, "xgrammar"), "<|start|>assistant", "xgrammar", None)
        assert found is not None
        # What the gateway lets through for this backend.
        check(found, "xgrammar")
        tags.append(found.value)
    assert allowed(tags, _IN_CHANNELS) == _IN_CHANNELS
