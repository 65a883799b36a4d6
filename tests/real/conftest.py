"""Real stacks for the tests: tritonserver, our backend, vLLM on the CPU, the gateway.

`stack` is started once and shared: a test leaves it as it found it. `fresh_stack(config)` starts one for a test that
kills, reloads or reconfigures it.
"""

import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from devtools import models
from devtools.stack import Stack, StackConfig
from tests.support.backend import Backend

FreshStack = Callable[[StackConfig], Stack]

# Seconds for a test, the start of its stack included.
_TIMEOUT = 300


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(_TIMEOUT))


@pytest.fixture(scope="session")
def stack(engine_platform: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The shared stack, with both models loaded: the tiny random one and SmolLM2."""
    config = StackConfig(models={models.TINY: {}, models.SMOLLM2: {}})
    running = Stack(config, tmp_path_factory.mktemp("shared") / "stack", Path(sys.executable))
    running.start()
    yield running
    running.stop()


@pytest.fixture(scope="session")
def backend(stack: Stack) -> Iterator[Backend]:
    """The tiny model of the shared stack, without the gateway."""
    client = Backend(stack.triton_url, models.TINY, stack.service("triton").log)
    yield client
    client.close()


@pytest.fixture
def fresh_stack(engine_platform: None, tmp_path: Path) -> Iterator[FreshStack]:
    """A function that starts a stack of the test's own; all of them end with the test."""
    started: list[Stack] = []
    numbers = itertools.count()

    def start(config: StackConfig) -> Stack:
        one = Stack(config, tmp_path / f"stack-{next(numbers)}", Path(sys.executable))
        started.append(one)
        one.start()
        return one

    yield start
    for one in started:
        one.kill()
