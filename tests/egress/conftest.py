"""Batched egress on the real tritonserver with the synthetic engine, behind the proxy that breaks it, and gateways as
processes of their own."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from devtools.models import TINY
from devtools.stack import Stack, StackConfig
from tests.support.backend import Backend
from tests.support.egress_proxy import EgressProxy, running_egress_proxy
from tests.support.gateway import Gateway, running_gateway

STEP_MILLISECONDS = 5


def synthetic(**settings: Any) -> StackConfig:
    """A tritonserver with the synthetic engine, and no gateway. `settings` are the engine's."""
    arguments = {"synthetic": {"step_milliseconds": STEP_MILLISECONDS} | settings}
    return StackConfig(engine="synthetic", models={TINY: arguments}, gateway=False)


@pytest.fixture(scope="session")
def triton(engine_platform: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Shared: a test leaves its model loaded and without requests."""
    stack = Stack(synthetic(), tmp_path_factory.mktemp("synthetic") / "stack", Path(sys.executable))
    stack.start()
    yield stack
    stack.kill()


@pytest.fixture
def fresh_triton(engine_platform: None, tmp_path: Path) -> Iterator[Stack]:
    """For a test that ends it."""
    stack = Stack(synthetic(), tmp_path / "stack", Path(sys.executable))
    stack.start()
    yield stack
    stack.kill()


@pytest.fixture
def backend(triton: Stack) -> Iterator[Backend]:
    client = backend_of(triton)
    yield client
    client.close()


@pytest.fixture
def proxy(triton: Stack) -> Iterator[EgressProxy]:
    with running_egress_proxy(triton.triton_url) as proxy:
        yield proxy


def backend_of(stack: Stack) -> Backend:
    return Backend(stack.triton_url, TINY, stack.service("triton").log)


@contextmanager
def gateway_before(url: str, stack: Stack, *flags: str) -> Iterator[Gateway]:
    """A gateway that reaches the stack's tritonserver at `url`, when it is ready."""
    with running_gateway("--triton", url, "--model-repository", str(stack.repository), *flags) as gateway:
        yield gateway.wait_until_ready()
