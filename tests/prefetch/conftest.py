"""The real S3 server, started once, and the fault proxy in front of it."""

import os
import uuid
from collections.abc import Iterator

import pytest

from bench.s3_server import S3Server, environment
from tests.support.fault_proxy import FaultProxy
from tests.support.prefetch import BUCKET, Bucket


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
