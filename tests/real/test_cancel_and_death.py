"""A client that goes away frees the engine within 100 ms, while it decodes, queues or prefills; the engine's death."""

import contextlib
import json
import os
import re
import signal
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from devtools.models import TINY
from devtools.stack import Stack, StackConfig
from tests.support.backend import Backend, sampling
from tests.support.processes import engine_of

LONG = sampling(max_tokens=7000, ignore_eos=True)

NARROW: dict[str, Any] = {
    # Two requests at a time, and prompts in small chunks: to queue and to prefill take as long as a test needs.
    "max_num_seqs": 2,
    "max_model_len": 8192,
    "max_num_batched_tokens": 16,
    "enable_chunked_prefill": True,
    "enable_prefix_caching": False,
}


def time_to_cancel(backend: Backend, name: str, settle: float, **inputs: Any) -> tuple[float, int]:
    """Seconds from the close of the connection, `settle` seconds after the admission, to the backend's line in the log;
    and how many tokens the backend had sent."""
    with backend.open(id=name, send_admission=True, **inputs) as events:
        assert next(events)["text_output"] == ""
        time.sleep(settle)
    closed = time.monotonic()
    line = backend.wait_for_log(f"request '{name}' cancelled by its client")
    took = time.monotonic() - closed
    found = re.search(r"after (\d+) tokens", line)
    assert found is not None
    return took, int(found[1])


def assert_soon(times: list[float]) -> None:
    # The median: any single one may meet a pause of the machine.
    assert statistics.median(times) < 0.1, times


def test_while_it_decodes(backend: Backend) -> None:
    seen = [
        time_to_cancel(
            backend,
            f"decoding {n}",
            0.3 + n * 0.011,
            text_input="Hello",
            sampling_parameters=sampling(max_tokens=4000, ignore_eos=True),
        )
        for n in range(7)
    ]
    assert_soon([took for took, _ in seen])
    assert all(0 < tokens < 4000 for _, tokens in seen)


def test_a_request_that_is_not_streamed(backend: Backend) -> None:
    """With the admission, `generate_stream` notices that also for one response at the end."""
    wanted = sampling(max_tokens=4000, ignore_eos=True)
    took, tokens = time_to_cancel(backend, "whole", 0.3, text_input="Hello", stream=False, sampling_parameters=wanted)
    assert took < 30
    assert tokens == 0


@pytest.fixture(scope="module")
def narrow(engine_platform: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    config = StackConfig(models={TINY: NARROW})
    stack = Stack(config, tmp_path_factory.mktemp("narrow") / "stack", Path(sys.executable))
    stack.start()
    yield stack
    stack.stop()


@pytest.fixture(scope="module")
def narrow_backend(narrow: Stack) -> Iterator[Backend]:
    backend = Backend(narrow.triton_url, TINY, narrow.service("triton").log)
    yield backend
    backend.close()


@pytest.mark.long
def test_while_it_is_queued(narrow_backend: Backend) -> None:
    busy = {"text_input": "Hello", "send_admission": True, "sampling_parameters": LONG}
    with narrow_backend.open(**busy) as first, narrow_backend.open(**busy) as second:
        for events in (first, second):
            next(events)
            next(events)
        seen = [
            time_to_cancel(narrow_backend, f"queued {n}", n * 0.011, text_input="Hello", sampling_parameters=LONG)
            for n in range(7)
        ]
        # The two that ran go on.
        next(first)
        next(second)
    assert_soon([took for took, _ in seen])
    assert {tokens for _, tokens in seen} == {0}


@pytest.mark.long
def test_while_it_prefills(narrow_backend: Backend) -> None:
    seen = [
        time_to_cancel(narrow_backend, f"prefill {n}", 0.02, input_ids=[5 + n] * 8000, sampling_parameters=LONG)
        for n in range(7)
    ]
    assert_soon([took for took, _ in seen])
    assert {tokens for _, tokens in seen} == {0}


@pytest.mark.long
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("when", ["queued", "prefill"])
def test_a_client_of_the_gateway(when: str, stream: bool, narrow: Stack, narrow_backend: Backend) -> None:
    """The same, from the other end: the client closes its connection to the gateway before any answer."""
    content = "1 " * 3500 if when == "prefill" else "Hello"
    body = {
        "model": TINY,
        "messages": [{"role": "user", "content": content}],
        "max_tokens": 1000,
        "ignore_eos": True,
        "stream": stream,
    }
    log = narrow.service("triton").log
    cancelled = re.compile(r"request 'chatcmpl-\w+' cancelled by its client")
    before = len(cancelled.findall(log.read_text(errors="replace")))
    busy = {"id": "busy", "text_input": "Hello", "send_admission": True, "sampling_parameters": LONG}
    with contextlib.ExitStack() as running:
        if when == "queued":
            # Held on to: a stream that nobody refers to is closed.
            streams = [running.enter_context(narrow_backend.open(**busy)) for _ in range(2)]
            for events in streams:
                next(events)
                next(events)
        with (
            httpx.Client(timeout=0.3) as client,
            contextlib.suppress(httpx.ReadTimeout),
            client.stream("POST", f"{narrow.url}/v1/chat/completions", json=body) as answer,
        ):
            # The head of a stream comes with the admission, a whole answer's at its end.
            assert stream
            assert answer.status_code == 200
        give_up_at = time.monotonic() + 60
        while len(cancelled.findall(log.read_text(errors="replace"))) == before:
            assert time.monotonic() < give_up_at
            time.sleep(0.02)
    line = [line for line in log.read_text(errors="replace").splitlines() if cancelled.search(line)][-1]
    assert "after 0 tokens" in line


@pytest.mark.long
def test_a_seed_with_chunked_prefill_is_refused(narrow_backend: Backend) -> None:
    """It would end the engine: torch's generators on the CPU cannot be set back."""
    text = narrow_backend.refusal(text_input="Hello", sampling_parameters=sampling(seed=1))
    assert text.startswith("INVALID_ARG sampling_parameters.seed: not supported on the CPU while chunked prefill is on")


@pytest.mark.long
def test_the_death_of_the_engine(narrow: Stack, narrow_backend: Backend) -> None:
    """Requests in flight get UNAVAILABLE at once, the model is no longer ready, and loading it again helps."""
    engine = engine_of(narrow.service("triton"))
    chat = {"model": TINY, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4000, "ignore_eos": True}
    with (
        narrow_backend.open(text_input="Hello", send_admission=True, sampling_parameters=LONG) as events,
        httpx.Client(base_url=narrow.url, timeout=30) as client,
        client.stream("POST", "/v1/chat/completions", json=chat | {"stream": True}) as answer,
    ):
        next(events)
        next(events)
        lines = answer.iter_lines()
        next(lines)
        os.kill(engine, signal.SIGKILL)
        killed = time.monotonic()
        last = list(events)[-1]
        took = time.monotonic() - killed
        end = [line for line in lines if line][-2:]
    assert last == {"error": "UNAVAILABLE: the engine has stopped; unload the model and load it again."}
    assert took < 30
    # A client of the gateway sees an explicit error in its stream, then real statuses.
    assert json.loads(end[0].removeprefix("data: "))["error"]["code"] == "engine_unavailable"
    assert end[1] == "data: [DONE]"
    refused = httpx.post(f"{narrow.url}/v1/chat/completions", json=chat, timeout=30)
    assert (refused.status_code, "retry-after" in refused.headers) == (503, True)
    narrow_backend.wait_for_log(f"the engine of model {TINY} has stopped")
    while narrow_backend.is_ready:
        assert time.monotonic() < killed + 60
        time.sleep(0.05)
    assert httpx.get(f"{narrow.url}/health/live").status_code == 200
    while httpx.get(f"{narrow.url}/health/ready").status_code != 503:
        assert time.monotonic() < killed + 60
        time.sleep(0.05)
    narrow_backend.load()
    assert narrow_backend.is_ready
    assert narrow_backend.generate(text_input="Hello")["text_output"].startswith("Hello")
    while httpx.get(f"{narrow.url}/health/ready").status_code != 200:
        assert time.monotonic() < killed + 120
        time.sleep(0.05)
    assert httpx.post(f"{narrow.url}/v1/chat/completions", json=chat | {"max_tokens": 1}, timeout=30).status_code == 200
