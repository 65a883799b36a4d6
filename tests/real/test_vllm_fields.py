"""The field tables are complete: the engine's own vLLM is asked which fields its server's requests have."""

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from devtools import environments
from gateway.openai.fields import CHAT, COMPLETION, DETOKENIZE, TOKENIZE, Field

_TABLES: Mapping[str, Mapping[str, Field]] = {
    "ChatCompletionRequest": CHAT,
    "CompletionRequest": COMPLETION,
    "TokenizeCompletionRequest": TOKENIZE,
    "TokenizeChatRequest": TOKENIZE,
    "DetokenizeRequest": DETOKENIZE,
}
_ASK = f"""
import json
from vllm.entrypoints.openai.chat_completion import protocol as chat
from vllm.entrypoints.openai.completion import protocol as completion
from vllm.entrypoints.serve.tokenize import protocol as tokenize

requests = vars(chat) | vars(completion) | vars(tokenize)
print(json.dumps({{name: list(requests[name].model_fields) for name in {list(_TABLES)}}}))
"""


@pytest.fixture(scope="module")
def vllm_fields(engine_platform: None) -> dict[str, list[str]]:
    """The fields of each request class."""
    command: list[str | Path] = [environments.engine().python, "-I", "-c", _ASK]
    offline = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    said = subprocess.run(command, env=os.environ | offline, capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    fields: dict[str, list[str]] = json.loads(said.stdout.splitlines()[-1])
    return fields


@pytest.mark.parametrize("request_class", _TABLES)
def test_every_field_of_vllms_requests_has_an_entry(request_class: str, vllm_fields: dict[str, list[str]]) -> None:
    assert "model" in vllm_fields[request_class]
    assert set(vllm_fields[request_class]) - _TABLES[request_class].keys() == set()
