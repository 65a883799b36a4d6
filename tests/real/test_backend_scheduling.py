"""What depends on how the engine schedules and caches, on an engine of its own: one request at a time, by priority,
prompts in chunks, with a prefix cache."""

import json
import random
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector

from devtools import models
from devtools.stack import Stack, StackConfig
from tests.support.backend import Backend, Event, sampling

pytestmark = pytest.mark.long

CHUNK = 64
"""Tokens of a prompt in one step. A block of the prefix cache has twice as many."""

ENGINE = {
    "max_num_seqs": 1,
    "scheduling_policy": "priority",
    "enable_chunked_prefill": True,
    "max_num_batched_tokens": CHUNK,
    "enable_prefix_caching": True,
}


@pytest.fixture(scope="module")
def own_stack(engine_platform: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    config = StackConfig(models={models.TINY: ENGINE}, gateway=False)
    own = Stack(config, tmp_path_factory.mktemp("scheduling") / "stack", Path(sys.executable))
    own.start()
    yield own
    own.stop()


@pytest.fixture
def backend(own_stack: Stack) -> Iterator[Backend]:
    client = Backend(own_stack.triton_url, models.TINY, own_stack.service("triton").log)
    yield client
    client.close()


def random_prompt(length: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(5, 900) for _ in range(length)]


def test_the_request_of_higher_priority_is_answered_first(backend: Backend) -> None:
    """Three wait behind one that runs. When the most urgent of them has been answered, the least urgent, which came
    first, has got nothing: the one between them has thousands of tokens to go."""

    def admitted(stack: ExitStack, name: str, priority: int, tokens: int) -> Iterator[Event]:
        """The events that follow the admission. A stream whose events nobody holds is closed."""
        wanted = sampling(max_tokens=tokens, ignore_eos=True)
        inputs: dict[str, Any] = {"id": name, "text_input": "Hello", "sampling_parameters": wanted}
        events = stack.enter_context(backend.open(**inputs, priority=priority, send_admission=True))
        next(events)
        return events

    with ExitStack() as between, ExitStack() as least, ExitStack() as running:
        first = admitted(running, "running", 0, 4000)
        # From its first token on it has the engine.
        next(first)
        waiting = [admitted(least, "least urgent", 5, 4000), admitted(between, "between", 1, 4000)]
        urgent = admitted(between, "urgent", -5, 20)
        running.close()
        assert len(list(urgent)) > 1
        least.close()
        line = backend.wait_for_log("request 'least urgent' cancelled by its client")
        del waiting
    assert "after 0 tokens" in line


@pytest.mark.parametrize("length", [CHUNK, CHUNK + 1, CHUNK + 2, 2 * CHUNK, 2 * CHUNK + 1, 5 * CHUNK + 7])
def test_prompt_logprobs_of_every_position_in_chunks_and_from_the_cache(backend: Backend, length: int) -> None:
    """A chunk gives the logprobs of its own positions only, and what is read from the cache gives none."""
    ids = random_prompt(length, seed=length)
    backend.generate(input_ids=ids, sampling_parameters=sampling(max_tokens=1))
    answer = backend.generate(
        input_ids=ids, return_prompt_logprobs=True, sampling_parameters=sampling(max_tokens=1, prompt_logprobs=1)
    )
    first, *rest = json.loads(answer["prompt_logprobs"])
    assert first is None
    assert [int(next(iter(position))) for position in rest] == ids[1:]
    for place in {1, CHUNK - 1, CHUNK, CHUNK + 1, length - 1} & set(range(1, length)):
        # The same token, sampled after the same tokens.
        sampled = backend.generate(
            input_ids=ids[:place],
            return_logprobs=True,
            sampling_parameters=sampling(max_tokens=1, logprobs=0, allowed_token_ids=[ids[place]]),
        )
        (expected,) = json.loads(sampled["logprobs"])
        (token,) = expected
        assert rest[place - 1][token]["logprob"] == pytest.approx(expected[token]["logprob"], abs=1e-3)


def test_a_salt_keeps_prompts_apart_in_the_cache(backend: Backend, own_stack: Stack) -> None:
    ids = random_prompt(10 * CHUNK, seed=0)

    def hits() -> float:
        registry = CollectorRegistry()
        MultiProcessCollector(registry, str(own_stack.state / "metrics"))  # type: ignore[no-untyped-call]
        samples = (sample for metric in registry.collect() for sample in metric.samples)
        return sum(sample.value for sample in samples if sample.name == "vllm:prefix_cache_hits_total")

    def read_from_cache(**inputs: str) -> bool:
        before = hits()
        backend.generate(input_ids=ids, sampling_parameters=sampling(max_tokens=1), **inputs)
        return hits() > before

    assert not read_from_cache(cache_salt="one")
    assert read_from_cache(cache_salt="one")
    assert not read_from_cache(cache_salt="two")
    assert not read_from_cache()
    assert read_from_cache()


def test_a_seed_is_refused_where_a_prompt_in_chunks_would_end_the_engine(backend: Backend) -> None:
    text = backend.refusal(text_input="Hello", sampling_parameters=sampling(seed=1))
    assert text.startswith("INVALID_ARG sampling_parameters.seed: not supported on the CPU while chunked prefill is on")
