"""What binds an answer, through the gateway to engines of their own: behind a thinking that the model itself opens or
does not, in harmony's final channel, and in the calls that a model is free to make.

The models are random; their vocabularies have the marks as tokens, which a bias makes likely.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import pytest

from devtools import models
from devtools.stack import Ports, Stack, StackConfig
from tests.support.thinking_model import token_of, with_marks
from tests.support.tools import Reply, ask_all

pytestmark = pytest.mark.long

THINK = ("<think>", "</think>")
HARMONY = ("<|start|>", "<|end|>", "<|channel|>", "<|message|>", "<|constrain|>")
TOOL_CALL = "<tool_call>"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"size": {"type": "integer", "minimum": 0, "maximum": 99}, "color": {"enum": ["red", "green"]}},
    "required": ["size", "color"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "paint", "parameters": SCHEMA}}
SEEDS = range(8)
TEMPLATES = {
    "plain": "{% for m in messages %}{{ m.content }}{% endfor %}{% for t in tools or [] %}{{ t | tojson }}{% endfor %}",
    "harmony": "{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}",
}
GUIDANCE, XGRAMMAR = models.TINY, models.SMOLLM2
"""Two deployments of random models, by their engine's grammar backend."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, tiny = tmp_path_factory.mktemp("marked"), models.tiny(Path(sys.executable))
    return {
        GUIDANCE: with_marks(folder / "guidance", tiny, (*THINK, *HARMONY)),
        XGRAMMAR: with_marks(folder / "xgrammar", tiny, (*THINK, TOOL_CALL)),
    }


@pytest.fixture(scope="module")
def own_stack(
    engine_platform: None, folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("bound")
    for name, template in TEMPLATES.items():
        (folder / f"{name}.jinja").write_text(template)

    def engine(name: str, backend: str, **config: Any) -> dict[str, Any]:
        small = {"model": str(folders[name]), "kv_cache_memory_bytes": 2**27, "max_num_batched_tokens": 8192}
        fixed = {"backend": backend, "disable_any_whitespace": True}
        return small | {"structured_outputs_config": fixed | config}

    def served(name: str, template: str, triton_model: str, **parsers: Any) -> dict[str, Any]:
        chosen = {"tool_parser": "none", "reasoning_parser": "none"} | parsers
        return {
            "names": [name],
            "triton_model": triton_model,
            "chat_template": str(folder / f"{template}.jinja"),
            **chosen,
        }

    settings = [
        served("thinker", "plain", GUIDANCE, reasoning_parser="think"),
        served("harmony", "harmony", GUIDANCE, tool_parser="gpt_oss", reasoning_parser="gpt_oss"),
        served("tag-thinker", "plain", XGRAMMAR, reasoning_parser="think"),
        served("caller", "plain", XGRAMMAR, tool_parser="hermes", tool_structural_tag=True),
        served("free-caller", "plain", XGRAMMAR, tool_parser="hermes"),
    ]
    config = StackConfig(
        models={
            # A parser that waits for an end of the thinking: a constraint that is left to it may never begin.
            GUIDANCE: engine(GUIDANCE, "guidance", reasoning_parser="deepseek_r1"),
            XGRAMMAR: engine(XGRAMMAR, "xgrammar", reasoning_parser="deepseek_r1"),
        },
        gateway_arguments=("--models", json.dumps(settings)),
        ports=Ports.free(),
    )
    own = Stack(config, folder / "stack", Path(sys.executable))
    own.start()
    yield own
    own.stop()


def request(model: str, folder: Path, likely: dict[str, float], **fields: Any) -> dict[str, Any]:
    """An answer that does not end but where it must, with these marks made likely."""
    end = json.loads((folder / "config.json").read_text())["eos_token_id"]
    bias = {str(token_of(folder, mark)): weight for mark, weight in likely.items()} | {str(end): -100}
    body = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "temperature": 1, "max_tokens": 400}
    return body | {"logit_bias": bias} | fields


async def ask(stack: Stack, body: dict[str, Any]) -> list[Reply]:
    replies = await ask_all(stack.url, [(body | {"seed": seed}, bool(seed % 2)) for seed in SEEDS])
    assert all(reply.headers.get("x-gateway-structured-output") != "violation" for reply in replies)
    return replies


def is_instance(text: str) -> bool:
    return bool(jsonschema_rs.validator_for(SCHEMA).is_valid(json.loads(text)))


FORMAT = {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}}


@pytest.mark.parametrize(("model", "deployment"), [("thinker", GUIDANCE), ("tag-thinker", XGRAMMAR)])
async def test_an_answer_is_bound_whether_the_model_thinks_or_not(
    model: str, deployment: str, own_stack: Stack, folders: dict[str, Path]
) -> None:
    likely = {"<think>": 6.0, "</think>": 5.1}
    body = request(model, folders[deployment], likely, **FORMAT)
    replies = await ask(own_stack, body)
    unthought = await ask(own_stack, request(model, folders[deployment], {"{": 100}, **FORMAT))
    for reply in (*replies, *unthought):
        assert reply.finish_reason == "stop"
        assert is_instance(reply.content)
    assert any(reply.reasoning for reply in replies)
    assert not any(reply.reasoning for reply in unthought)


async def test_in_harmony_the_final_channel_is_bound(own_stack: Stack, folders: dict[str, Path]) -> None:
    replies = await ask(own_stack, request("harmony", folders[GUIDANCE], {"<|end|>": 5.1}, **FORMAT))
    for reply in replies:
        assert reply.finish_reason == "stop"
        assert is_instance(reply.content)
    assert any(reply.reasoning for reply in replies)


async def test_a_completion_is_bound_from_its_first_token(own_stack: Stack, folders: dict[str, Path]) -> None:
    """Where the engine has a reasoning parser, and a prompt no mark."""
    async with httpx.AsyncClient(base_url=own_stack.url, timeout=300) as client:
        body = request("thinker", folders[GUIDANCE], {}, **FORMAT) | {"prompt": "Hello"}
        del body["messages"]
        answer = (await client.post("/v1/completions", json=body)).json()["choices"][0]
    assert answer["finish_reason"] == "stop"
    assert is_instance(answer["text"])


async def test_calls_that_a_model_is_free_to_make_are_kept_valid(own_stack: Stack, folders: dict[str, Path]) -> None:
    """By a structural tag: once the model has written a call's mark, nothing but a call can follow."""
    body = request(
        "caller", folders[XGRAMMAR], {TOOL_CALL: 5.1}, tools=[TOOL], tool_choice="auto", parallel_tool_calls=False
    )
    replies = await ask(own_stack, body)
    for reply in replies:
        assert reply.finish_reason == "tool_calls"
        (call,) = reply.calls
        assert call.name == "paint"
        assert is_instance(call.arguments)
    assert any(reply.content for reply in replies)
    # The same model without the tag writes the mark, and no call behind it.
    free = await ask_all(own_stack.url, [(body | {"model": "free-caller", "seed": seed}, False) for seed in SEEDS])
    assert not any(reply.calls for reply in free)
    assert any(TOOL_CALL in reply.content for reply in free)
