"""A client that goes away frees the engine within 100 ms, while it decodes, queues or prefills; the engine's death."""

import os
import re
import signal
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devtools.models import TINY
from devtools.stack import Stack, StackConfig
from tests.support.backend import Backend, sampling

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
    assert max(times) < 1, times


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
    assert took < 1
    assert tokens == 0


@pytest.fixture(scope="module")
def narrow(engine_platform: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    config = StackConfig(models={TINY: NARROW}, gateway=False)
    stack = Stack(config, tmp_path_factory.mktemp("narrow") / "stack", Path(sys.executable))
    stack.start()
    yield stack
    stack.stop()


@pytest.fixture(scope="module")
def narrow_backend(narrow: Stack) -> Iterator[Backend]:
    backend = Backend(narrow.triton_url, TINY, narrow.service("triton").log)
    yield backend
    backend.close()


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


def test_while_it_prefills(narrow_backend: Backend) -> None:
    seen = [
        time_to_cancel(narrow_backend, f"prefill {n}", 0.02, input_ids=[5 + n] * 8000, sampling_parameters=LONG)
        for n in range(7)
    ]
    assert_soon([took for took, _ in seen])
    assert {tokens for _, tokens in seen} == {0}


def test_a_seed_with_chunked_prefill_is_refused(narrow_backend: Backend) -> None:
    """It would end the engine: torch's generators on the CPU cannot be set back."""
    text = narrow_backend.refusal(text_input="Hello", sampling_parameters=sampling(seed=1))
    assert text.startswith("INVALID_ARG sampling_parameters.seed: not supported on the CPU while chunked prefill is on")


def test_the_death_of_the_engine(narrow: Stack, narrow_backend: Backend) -> None:
    """Requests in flight get UNAVAILABLE at once, the model is no longer ready, and loading it again helps."""
    (engine,) = [
        pid
        for pid in narrow.service("triton").pids()
        if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"VLLM::EngineCore")
    ]
    with narrow_backend.open(text_input="Hello", send_admission=True, sampling_parameters=LONG) as events:
        next(events)
        next(events)
        os.kill(engine, signal.SIGKILL)
        killed = time.monotonic()
        last = list(events)[-1]
        took = time.monotonic() - killed
    assert last == {"error": "UNAVAILABLE: the engine has stopped; unload the model and load it again."}
    assert took < 5
    narrow_backend.wait_for_log(f"the engine of model {TINY} has stopped")
    while narrow_backend.is_ready:
        assert time.monotonic() < killed + 10
        time.sleep(0.05)
    narrow_backend.load()
    assert narrow_backend.is_ready
    assert narrow_backend.generate(text_input="Hello")["text_output"].startswith("Hello")
