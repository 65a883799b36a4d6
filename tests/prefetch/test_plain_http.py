"""Requests over plain HTTP: which connection each one takes, and when botocore sends it itself."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from botocore.awsrequest import AWSPreparedRequest, AWSRequest

from bench.s3_server import S3Server
from prefetch.plain_http import Connections
from prefetch.pull import Engine
from prefetch.s3 import S3, S3Config
from tests.support.fault_proxy import FaultProxy, Rule
from tests.support.prefetch import BUCKET, MODEL, Bucket, config, files_in, run
from tests.support.waiting import wait_for

SHARD = "model.safetensors"


@pytest.fixture
def other(s3: S3Server) -> Iterator[FaultProxy]:
    made = FaultProxy(s3.port)
    yield made
    made.close()


def _request(server: FaultProxy, bucket: Bucket, scheme: str = "http") -> AWSPreparedRequest:
    url = f"{server.url}/{BUCKET}/{bucket.key(SHARD)}".replace("http", scheme, 1)
    return AWSRequest("GET", url).prepare()


def test_each_host_is_asked_itself(model: Bucket, proxy: FaultProxy, other: FaultProxy) -> None:
    """As buckets are that have a name of their own."""
    connections = Connections(5, 20)
    for server in (proxy, other, proxy):
        answer = connections.send(_request(server, model))
        assert answer is not None
        assert answer.content == MODEL[SHARD]
    # The proxy notes a request when it has sent the answer.
    wait_for(lambda: (proxy.gets(model.key(SHARD)), other.gets(model.key(SHARD))) == (2, 1), "each request")


def test_tls_is_left_to_botocore(model: Bucket, proxy: FaultProxy) -> None:
    assert Connections(5, 20).send(_request(proxy, model, "https")) is None


def test_an_answer_that_is_left_costs_its_connection(model: Bucket, proxy: FaultProxy) -> None:
    """What is left of one answer is never taken for the next one."""
    connections = Connections(5, 20)
    left = connections.send(_request(proxy, model))
    assert left is not None
    left.raw.read(10)
    left.raw.close()
    answer = connections.send(_request(proxy, model))
    assert answer is not None
    assert answer.content == MODEL[SHARD]


def test_a_connection_that_the_server_closes(model: Bucket, proxy: FaultProxy) -> None:
    connections = Connections(5, 20)
    proxy.rules.append(Rule(times=1, status=200, headers={"Connection": "close"}, body=b"bye"))
    for body in (b"bye", MODEL[SHARD]):
        answer = connections.send(_request(proxy, model))
        assert answer is not None
        assert answer.content == body


def test_a_proxy_is_left_to_botocore(
    model: Bucket, proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name of the server is known to the proxy alone."""
    monkeypatch.setenv("http_proxy", proxy.url)
    published = run(Engine(config(tmp_path, "http://s3.invalid:8333")), model.source)
    assert files_in(published.folder) == MODEL
    assert proxy.gets(model.key(SHARD)) > 1


def test_credentials_that_are_renewed(model: Bucket, proxy: FaultProxy) -> None:
    """A client that is made anew sends in the same way."""
    s3 = S3(S3Config(proxy.url))
    old = s3.client
    s3.renew_credentials(old)
    assert s3.client is not old
    assert s3.head(BUCKET, model.key(SHARD)).size == len(MODEL[SHARD])
