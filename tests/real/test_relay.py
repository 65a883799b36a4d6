"""The native relay between a client and a real Triton, whose bytes it must know."""

import json

import httpx

from devtools.models import TINY
from devtools.stack import Stack
from tests.support.chat import events, joined
from tests.support.gateway import running_gateway


def test_what_triton_sends_is_relayed(stack: Stack) -> None:
    # With batched egress the tokens do not come by the request's own stream.
    models = json.dumps([{"triton_model": TINY, "batched_egress": "never"}])
    flags = ("--triton", stack.triton_url, "--model-repository", str(stack.repository), "--models", models)
    # Random weights: the text is full of all that must be escaped.
    body = {
        "model": TINY,
        "messages": [{"role": "user", "content": "Say something."}],
        "max_tokens": 100,
        "temperature": 0,
        "ignore_eos": True,
        "stop": ["never said"],
    }
    with running_gateway(*flags) as gateway:
        gateway.wait_until_ready()
        path = f"{gateway.url}/v1/chat/completions"
        whole = httpx.post(path, json=body, timeout=120).json()
        assert gateway.metric("gateway_relayed_tokens_total") == 0
        usage = {"stream_options": {"include_usage": True}}
        chunks = events(httpx.post(path, json=body | usage | {"stream": True}, timeout=120))
        assert joined(chunks) == whole["choices"][0]["message"]["content"]
        assert chunks[-1]["usage"] == whole["usage"]
        assert gateway.metric("gateway_relayed_tokens_total") > 50
