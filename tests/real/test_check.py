"""The self-check against the real stack: what the engine does, seen in its answers."""

import pytest

from devtools import models
from devtools.stack import Stack
from gateway.check.probes import PROBES
from tests.support.check import check

# Both models of the shared stack, the larger one where there is time.
MODELS = [models.TINY, pytest.param(models.SMOLLM2, marks=[pytest.mark.long, pytest.mark.timeout(900)])]
# By the engine's configuration: its scheduling policy, no thinking, its model runner, no logits processors; their
# templates know no tools.
REFUSED = {"priority", "thinking_token_budget", "logprob_token_ids", "constraints", "tools"}
UNSEEN = {
    "vllm_xargs", "watermarking", "cache_salt", "session_id", "spaces_between_special_tokens", "chat_template_kwargs",
    "documents", "parallel_tool_calls", "reasoning_effort", "include_reasoning",
}  # fmt: skip
# They need not change an answer.
MAYBE_UNSEEN = {"frequency_penalty", "presence_penalty", "repetition_penalty", "temperature", "add_special_tokens"}


@pytest.mark.parametrize("model", MODELS)
def test_what_works_is_seen(model: str, stack: Stack) -> None:
    every = PROBES["chat"].keys() | PROBES["completions"].keys()
    served = f'[{{"triton_model": "{model}"}}]'
    found = check("--triton", stack.triton_url, "--model-repository", str(stack.repository), "--models", served)
    assert found.fields(model, "failed") == set(), found.report
    assert (found.code, found.errors) == (0, "")
    assert found.fields(model, "refused") == REFUSED
    accepted = found.fields(model, "accepted")
    assert UNSEEN <= accepted <= UNSEEN | MAYBE_UNSEEN
    assert found.fields(model, "effect seen") >= every - REFUSED - UNSEEN - MAYBE_UNSEEN
