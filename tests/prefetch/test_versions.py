"""A bucket that keeps versions: a file is copied from the version it began with, whatever becomes of the object."""

import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.s3_server import S3Server
from prefetch.errors import Cancelled, JobError
from prefetch.progress import Progress
from prefetch.pull import Engine
from tests.support.fault_proxy import FaultProxy, Rule
from tests.support.prefetch import MODEL, PART_BYTES, Bucket, config, files_in, run, safetensors

SHARD = "model.safetensors"
# The same size, so that nothing but the version tells the two apart while parts are read.
NEXT = safetensors(5 * PART_BYTES, 2)


@pytest.fixture
def versioned(s3: S3Server) -> Bucket:
    """A bucket of the test's own, with the model in it."""
    bucket = Bucket(s3, "team-a/m/1/", f"versions-{uuid.uuid4().hex[:12]}")
    bucket.client.create_bucket(Bucket=bucket.name)
    _keep_versions(bucket)
    bucket.put_all(MODEL)
    return bucket


def _keep_versions(bucket: Bucket) -> None:
    bucket.client.put_bucket_versioning(Bucket=bucket.name, VersioningConfiguration={"Status": "Enabled"})


def _version(bucket: Bucket, path: str) -> str:
    return str(bucket.client.head_object(Bucket=bucket.name, Key=bucket.key(path))["VersionId"])


def _delete(bucket: Bucket, version: str) -> Callable[[], Any]:
    """Deletes this version of the shard for good."""
    return lambda: bucket.client.delete_object(Bucket=bucket.name, Key=bucket.key(SHARD), VersionId=version)


def test_each_file_names_its_version(versioned: Bucket, proxy: FaultProxy, tmp_path: Path) -> None:
    published = run(Engine(config(tmp_path, proxy.url)), versioned.source)
    assert files_in(published.folder) == MODEL
    for path in MODEL:
        assert published.ready["files"][path]["version_id"] == _version(versioned, path)


@pytest.mark.parametrize("change", ["replaced", "deleted"])
def test_the_version_goes_on(change: str, versioned: Bucket, proxy: FaultProxy, tmp_path: Path) -> None:
    version = _version(versioned, SHARD)
    changed = {"replaced": lambda: versioned.put(SHARD, NEXT), "deleted": lambda: versioned.delete(SHARD)}[change]
    proxy.rules.append(Rule(versioned.key(SHARD), times=1, then=changed))
    progress = Progress()
    published = run(Engine(config(tmp_path, proxy.url, concurrency=1)), versioned.source, progress=progress)
    assert files_in(published.folder) == MODEL
    assert published.ready["files"][SHARD]["version_id"] == version
    assert not any(file.restarts for file in progress.files.values())


def test_a_version_that_is_deleted_for_good(versioned: Bucket, proxy: FaultProxy, tmp_path: Path) -> None:
    deletion = _delete(versioned, _version(versioned, SHARD))
    proxy.rules.append(Rule(versioned.key(SHARD), times=1, then=deletion))
    engine = Engine(config(tmp_path, proxy.url, concurrency=1))
    with pytest.raises(JobError, match=rf"{SHARD} is gone: s3://.* was deleted after it was listed"):
        run(engine, versioned.source)
    assert not engine.store.all()


def test_what_is_resumed_is_the_present_version(versioned: Bucket, proxy: FaultProxy, tmp_path: Path) -> None:
    engine, stop = Engine(config(tmp_path, proxy.url, concurrency=1)), threading.Event()
    proxy.rules.append(Rule(versioned.key(SHARD), after=2, times=1, then=stop.set))
    with pytest.raises(Cancelled):
        run(engine, versioned.source, stop=stop)
    versioned.put(SHARD, NEXT)
    published = run(engine, versioned.source)
    assert files_in(published.folder) == MODEL | {SHARD: NEXT}
    assert published.ready["files"][SHARD]["version_id"] == _version(versioned, SHARD)


def test_an_object_from_before_versions_were_kept(s3: S3Server, proxy: FaultProxy, tmp_path: Path) -> None:
    """Its version "null" is overwritten by the next one of that name, so it pins nothing."""
    bucket = Bucket(s3, "team-a/m/1/", f"versions-{uuid.uuid4().hex[:12]}")
    bucket.client.create_bucket(Bucket=bucket.name)
    bucket.put_all(MODEL)
    _keep_versions(bucket)
    proxy.rules.append(Rule(bucket.key(SHARD), times=1, then=lambda: bucket.put(SHARD, NEXT)))
    progress = Progress()
    published = run(Engine(config(tmp_path, proxy.url, concurrency=1)), bucket.source, progress=progress)
    assert files_in(published.folder) == MODEL | {SHARD: NEXT}
    assert {path for path, file in progress.files.items() if file.restarts} == {SHARD}
    assert "version_id" not in published.ready["files"]["config.json"]
    assert published.ready["files"][SHARD]["version_id"] == _version(bucket, SHARD)
