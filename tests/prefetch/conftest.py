"""The real S3 server, started once, the fault proxy in front of it, and services that read through that."""

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.s3_server import S3Server, environment
from tests.support.fault_proxy import FaultProxy
from tests.support.prefetch import BUCKET, MODEL, Bucket
from tests.support.prefetch_service import RunningService, StartService, settings


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    server = S3Server(tmp_path_factory.mktemp("s3"))
    server.start()
    server.client().create_bucket(Bucket=BUCKET)
    yield server
    server.stop()


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's, and none of the developer's."""
    wanted = environment()
    for name in set(os.environ) - set(wanted):
        monkeypatch.delenv(name)
    for name, value in wanted.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def bucket(s3: S3Server) -> Bucket:
    """A prefix of the test's own."""
    return Bucket(s3, f"team-a/{uuid.uuid4().hex}/1/")


@pytest.fixture
def proxy(s3: S3Server) -> Iterator[FaultProxy]:
    made = FaultProxy(s3.port)
    yield made
    made.close()


@pytest.fixture
def model(bucket: Bucket) -> Bucket:
    bucket.put_all(MODEL)
    return bucket


@pytest.fixture
def start(proxy: FaultProxy, tmp_path: Path) -> Iterator[StartService]:
    """Starts a service that reads through the fault proxy, as on a machine of that name with its own state; the target
    is shared. `changes` are to the settings of the tests."""
    started: list[RunningService] = []

    def one(machine: str = "one", env: dict[str, str] | None = None, **changes: Any) -> RunningService:
        folder = tmp_path / machine
        given = settings(folder, proxy.url, target=str(tmp_path / "target")) | changes
        service = RunningService(folder, given, **(env or {}))
        started.append(service)
        service.start()
        return service

    yield one
    for service in started:
        service.close()
