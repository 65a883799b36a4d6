"""Each case of object keys, layouts and object states: the real S3 server, with the fault proxy where a case wants what
a bucket of this server cannot hold (a key with `..`, a backslash, an archive class)."""

import base64
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.s3_server import S3Server
from prefetch import metrics
from prefetch.errors import JobError
from prefetch.progress import Progress
from prefetch.pull import Engine
from tests.support.fault_proxy import FaultProxy, Rule
from tests.support.prefetch import BUCKET, Bucket, config, files_in, run
from tests.support.prefetch_cases import cases, objects

CASES = cases(webhooks=False)
_PREFIX = "team-a/m/"


def _is_kept_as_it_is(key: str) -> bool:
    """Whether this server stores the key under its own name."""
    return ".." not in key.split("/") and "\\" not in key


def _fill(server: S3Server, proxy: FaultProxy, case_input: dict[str, Any]) -> None:
    client = server.client()
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=_PREFIX):
        for entry in page.get("Contents", []):
            client.delete_object(Bucket=BUCKET, Key=entry["Key"])
    wanted = {}
    for number, (key, body) in enumerate(objects(case_input)):
        if not _is_kept_as_it_is(key):
            proxy.aliases[key] = f"{_PREFIX}1/stand-in-{number}"
        wanted[proxy.aliases.get(key, key)] = body
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: client.put_object(Bucket=BUCKET, Key=key, Body=wanted[key]), wanted))


def _set_up(proxy: FaultProxy, bucket: Bucket, server: dict[str, Any]) -> dict[str, bytes]:
    """The server's behaviour; the object that takes another's place, if one does."""
    on = server["on"]
    for method in ("head", "get"):
        if method in server:
            answer = server[method]
            proxy.rules.append(
                Rule(
                    on, method.upper(), status=answer["status"], headers=answer["headers"], body=answer["body"].encode()
                )
            )
    if "list" in server:
        proxy.storage_classes[on] = server["list"]["StorageClass"]
    if "etag" in server:
        proxy.etags[on] = server["etag"]
    if "replace_after_parts" not in server:
        return {}
    path = on.removeprefix(bucket.prefix)
    old = bucket.client.get_object(Bucket=BUCKET, Key=on)["Body"].read()
    # The same header, other weights: a mixture of the two would be sound as safetensors.
    new = old[:-16] + bytes(byte ^ 0xFF for byte in old[-16:])
    proxy.rules.append(Rule(on, times=1, then=lambda: bucket.put(path, new)))
    return {path: new}


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_case(case: dict[str, Any], s3: S3Server, proxy: FaultProxy, tmp_path: Path) -> None:
    case_input, expect = case["input"], case["expect"]
    _fill(s3, proxy, case_input)
    new = _set_up(proxy, Bucket(s3, f"{_PREFIX}1/"), case_input["server"]) if "server" in case_input else {}
    # Thousands of requests need no proxy to pass.
    settings = config(tmp_path, s3.url if "generate" in case_input else proxy.url)
    if new:
        # Several parts of an object of 104 bytes, one after the other.
        settings = replace(settings, copy=replace(settings.copy, part_bytes=32), concurrency=1)
    engine = Engine(settings)
    outside = set(tmp_path.iterdir())
    progress = Progress()
    if expect["result"] == "failed":
        with pytest.raises(JobError) as caught:
            run(engine, case_input["source"], progress=progress)
        sentence = str(caught.value)
        assert expect.get("error_names", "") in sentence
        assert expect.get("error_says", "") in sentence
        assert sentence.endswith(".")
        assert not engine.store.all()
        assert not (tmp_path / "target" / "m").exists()
    else:
        published = run(engine, case_input["source"], progress=progress)
        _check_published(expect, case_input, files_in(published.folder), published.ready, new)
    if "bytes_downloaded" in expect:
        assert proxy.downloaded() == expect["bytes_downloaded"]
    if "bytes_downloaded_max" in expect:
        assert proxy.downloaded() <= expect["bytes_downloaded_max"]
    if "retries_max" in expect:
        assert sum(file.retries for file in progress.files.values()) <= expect["retries_max"]
        assert proxy.gets(case_input["server"]["on"]) <= 1 + expect["retries_max"]
    if "restarted_files" in expect:
        assert [path for path, file in progress.files.items() if file.restarts] == expect["restarted_files"]
    if expect.get("outside_untouched"):
        assert set(tmp_path.iterdir()) - outside <= {tmp_path / "target"}
        assert not Path("/etc/cron.d/x").exists()


def _check_published(
    expect: dict[str, Any],
    case_input: dict[str, Any],
    files: dict[str, bytes],
    ready: dict[str, Any],
    new: dict[str, bytes],
) -> None:
    assert set(files) == set(ready["files"])
    if "files" in expect:
        assert set(files) == set(expect["files"])
    if "count" in expect:
        assert len(files) == expect["count"]
    for choice in expect.get("any_of", [])[:1]:
        # Nothing is left out: there is no filter.
        assert len(files) == choice["count"]
    for name, value in expect.get("ready", {}).items():
        assert ready[name] == value
    assert not set(expect.get("no_files", [])) & set(files)
    prefix = case_input["source"].split("/", 3)[3].removesuffix("/") + "/"
    given = {entry["key"]: base64.b64decode(entry["body_b64"]) for entry in case_input.get("objects", [])}
    for path, body in files.items():
        assert body == new.get(path, given.get(prefix + path, body))


def test_the_cases_count_failures(s3: S3Server, proxy: FaultProxy, tmp_path: Path) -> None:
    before = metrics.verify_failures_total._value.get()
    case = next(case for case in CASES if case["id"].startswith("p59"))
    _fill(s3, proxy, case["input"])
    with pytest.raises(JobError):
        run(Engine(config(tmp_path, proxy.url)), case["input"]["source"])
    # Once, and once more when it was fetched again.
    assert metrics.verify_failures_total._value.get() == before + 2
