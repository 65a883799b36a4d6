"""What networks, servers and disks do while a model is copied. Each ends with the right model or with a clear sentence,
and nothing is half published."""

import hashlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.s3_server import ACCESS_KEY, NEXT_ACCESS_KEY, NEXT_SECRET_KEY, SECRET_KEY
from prefetch.errors import Cancelled, JobError
from prefetch.progress import Progress
from prefetch.pull import Engine, EngineConfig
from tests.support.fault_proxy import FaultProxy, Rule, error_body
from tests.support.prefetch import PART_BYTES, Bucket, config, files_in, noise, run, safetensors
from tests.support.waiting import wait_for

MODEL = {
    "config.json": b'{"model_type": "llama"}',
    "model-00001-of-00002.safetensors": safetensors(7 * PART_BYTES + 11, 1),
    "model-00002-of-00002.safetensors": safetensors(3 * PART_BYTES, 2),
    "tokenizer.json": noise(900, 3),
}
SHARD = "model-00001-of-00002.safetensors"


@pytest.fixture
def model(bucket: Bucket) -> Bucket:
    bucket.put_all(MODEL)
    return bucket


def interrupt(engine: Engine, model: Bucket, proxy: FaultProxy, parts: int) -> None:
    """A copy that is stopped when so many parts of the large shard are there and the next one is in flight."""
    stop = threading.Event()
    rule = Rule(model.key(SHARD), after=parts, times=1, hang=True)
    proxy.rules.append(rule)
    with ThreadPoolExecutor(1) as pool:
        copy = pool.submit(run, engine, model.source, stop=stop)
        wait_for(lambda: rule.used, "the part")
        stop.set()
        with pytest.raises(Cancelled):
            copy.result()


def short_timeout(folder: Path, proxy: FaultProxy, **changes: Any) -> EngineConfig:
    settings = config(folder, proxy.url, **changes)
    return replace(settings, s3=replace(settings.s3, read_timeout=2))


def retries(progress: Progress) -> int:
    return sum(file.retries for file in progress.files.values())


@pytest.mark.parametrize("path", [SHARD, "tokenizer.json"])
@pytest.mark.parametrize(
    "fault",
    [
        {"reset_after": 500},
        {"reset_after": 0},
        {"status": 503, "body": error_body("SlowDown")},
        {"status": 500, "body": error_body("InternalError")},
        {"status": 429, "body": b""},
        {"status": 403, "body": error_body("AccessDenied"), "times": 1},
    ],
    ids=lambda fault: "-".join(str(value) for value in fault.values() if not isinstance(value, bytes)),
)
def test_a_part_that_fails_is_read_again(
    path: str, fault: dict[str, object], model: Bucket, proxy: FaultProxy, tmp_path: Path
) -> None:
    proxy.rules.append(Rule(model.key(path), **({"times": 2} | fault)))  # type: ignore[arg-type]
    progress = Progress()
    published = run(Engine(config(tmp_path, proxy.url)), model.source, progress=progress)
    assert files_in(published.folder) == MODEL
    assert progress.files[path].retries == retries(progress) == proxy.rules[0].used
    assert not any(file.restarts for file in progress.files.values())
    assert progress.totals() == (published.ready["bytes"],) * 2


def test_silence_is_a_timeout_and_the_part_is_read_again(model: Bucket, proxy: FaultProxy, tmp_path: Path) -> None:
    proxy.rules.append(Rule(model.key(SHARD), times=1, hang=True))
    settings = config(tmp_path, proxy.url)
    progress = Progress()
    published = run(Engine(replace(settings, s3=replace(settings.s3, read_timeout=2))), model.source, progress=progress)
    assert files_in(published.folder) == MODEL
    assert progress.files[SHARD].retries >= 1


def test_a_server_that_does_not_recover_fails_the_job(model: Bucket, proxy: FaultProxy, tmp_path: Path) -> None:
    proxy.rules.append(Rule(model.key(SHARD), status=503, body=error_body("SlowDown", "Please reduce your rate.")))
    engine = Engine(config(tmp_path, proxy.url))
    with pytest.raises(
        JobError, match=rf"{SHARD} could not be read .* Please reduce your rate.* Retry the job later\."
    ):
        run(engine, model.source)
    assert not engine.store.all()
    proxy.rules.clear()
    # What was copied is not read again.
    before = proxy.downloaded()
    assert files_in(run(engine, model.source).folder) == MODEL
    assert proxy.downloaded(model.key("tokenizer.json")) == len(MODEL["tokenizer.json"])
    assert proxy.downloaded() - before < sum(map(len, MODEL.values()))


@pytest.mark.parametrize("path", [SHARD, "tokenizer.json"])
def test_wrong_bytes_are_fetched_once_more(path: str, model: Bucket, proxy: FaultProxy, tmp_path: Path) -> None:
    """Large objects too: the server has a checksum of each, as S3 has for what its SDKs upload."""
    proxy.rules.append(Rule(model.key(path), times=1, corrupt_at=700))
    progress = Progress()
    # One request at a time: the first one is for the first part.
    published = run(Engine(config(tmp_path, proxy.url, concurrency=1)), model.source, progress=progress)
    assert files_in(published.folder) == MODEL
    assert {name for name, file in progress.files.items() if file.restarts} == {path}
    assert proxy.downloaded(model.key(path)) == 2 * len(MODEL[path])


@pytest.mark.parametrize("path", [SHARD, "tokenizer.json"])
def test_bytes_that_are_wrong_twice_fail_the_job_with_the_files_name(
    path: str, model: Bucket, proxy: FaultProxy, tmp_path: Path
) -> None:
    proxy.rules.append(Rule(model.key(path), corrupt_at=700))
    engine = Engine(config(tmp_path, proxy.url))
    with pytest.raises(JobError, match=rf"{path} is damaged, also when fetched again: its CRC"):
        run(engine, model.source)
    assert not engine.store.all()


@pytest.mark.parametrize("algorithm", ["CRC64NVME", "CRC32", "CRC32C"])
def test_a_multipart_uploads_checksum_is_combined_from_our_parts(
    algorithm: str, bucket: Bucket, proxy: FaultProxy, tmp_path: Path
) -> None:
    """The upload's parts of 5 MiB are not ours of 64 KiB, nor is the last one full."""
    body = noise(6 * 1024 * 1024 + 321)
    bucket.put_in_parts("weights.bin", body, algorithm)
    published = run(Engine(config(tmp_path, proxy.url)), bucket.source)
    described = published.ready["files"]["weights.bin"]
    assert described["checked"] == ["size", algorithm.lower()]
    assert described["etag"].endswith('-2"')
    proxy.rules.append(Rule(bucket.key("weights.bin"), corrupt_at=5 * 1024 * 1024))
    with pytest.raises(JobError, match=f"its {algorithm} is not the one"):
        run(Engine(config(tmp_path / "again", proxy.url)), bucket.source)


def test_sha256_of_the_manifest(model: Bucket, proxy: FaultProxy, tmp_path: Path) -> None:
    manifest = {
        path: {"size": len(body), "sha256": hashlib.sha256(body).hexdigest().upper()} for path, body in MODEL.items()
    }
    published = run(Engine(config(tmp_path, proxy.url)), model.source, manifest=manifest)
    assert "sha256" in published.ready["files"][SHARD]["checked"]
    manifest[SHARD]["sha256"] = "0" * 64
    with pytest.raises(JobError, match=f"{SHARD} is damaged, also when fetched again: its SHA-256"):
        run(Engine(config(tmp_path / "again", proxy.url)), model.source, manifest=manifest)
    for wrong, sentence in (
        ({"more.json": {}}, "The manifest names more.json, which is not in"),
        ({SHARD: {"size": 5}}, f"{SHARD} has .* and 5 in the manifest"),
    ):
        before = proxy.downloaded()
        with pytest.raises(JobError, match=sentence):
            run(Engine(config(tmp_path / "third", proxy.url)), model.source, manifest=wrong)
        assert proxy.downloaded() == before


def test_expired_credentials_are_read_anew(
    model: Bucket, proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old key expires while parts are read; another process has written the new one into the file, as AWS's tools
    do."""
    file = tmp_path / "credentials"

    def write(key: str, secret: str) -> None:
        file.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n")

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    write(ACCESS_KEY, SECRET_KEY)
    expired = Rule(model.key(SHARD), after=2, status=400, body=error_body("ExpiredToken"), only_access_key=ACCESS_KEY)
    proxy.rules.append(expired)
    engine = Engine(config(tmp_path, proxy.url))
    assert engine.s3
    write(NEXT_ACCESS_KEY, NEXT_SECRET_KEY)
    progress = Progress()
    published = run(engine, model.source, progress=progress)
    assert files_in(published.folder) == MODEL
    assert expired.used >= 1
    assert progress.files[SHARD].retries == expired.used


def test_credentials_that_stay_expired_fail_the_job(model: Bucket, proxy: FaultProxy, tmp_path: Path) -> None:
    proxy.rules.append(Rule(model.key(SHARD), status=400, body=error_body("ExpiredToken")))
    with pytest.raises(JobError, match=r"the AWS credentials have expired .*; renew them\."):
        run(Engine(config(tmp_path, proxy.url)), model.source)


def test_an_object_that_is_replaced_again_and_again(model: Bucket, proxy: FaultProxy, tmp_path: Path) -> None:
    count = iter(range(100))
    rule = Rule(model.key(SHARD), then=lambda: model.put(SHARD, safetensors(7 * PART_BYTES + 11, 10 + next(count))))
    proxy.rules.append(rule)
    engine = Engine(config(tmp_path, proxy.url, concurrency=1))
    with pytest.raises(JobError, match=f"{SHARD} was replaced in S3 4 times"):
        run(engine, model.source)
    assert not engine.store.all()


def test_an_object_replaced_by_a_smaller_one(model: Bucket, proxy: FaultProxy, tmp_path: Path) -> None:
    """It now is one part: the listing's size and the journal's parts are void."""
    new = safetensors(100, 9)
    proxy.rules.append(Rule(model.key(SHARD), times=1, then=lambda: model.put(SHARD, new)))
    progress = Progress()
    published = run(Engine(config(tmp_path, proxy.url, concurrency=1)), model.source, progress=progress)
    assert files_in(published.folder) == MODEL | {SHARD: new}
    assert published.ready["files"][SHARD]["size"] == len(new)
    assert {name for name, file in progress.files.items() if file.restarts} == {SHARD}


def test_a_staged_file_that_vanishes(model: Bucket, proxy: FaultProxy, tmp_path: Path) -> None:
    engine = Engine(config(tmp_path, proxy.url, concurrency=1))

    def remove() -> None:
        for file in (tmp_path / "target" / ".staging").glob(f"*/files/{SHARD}"):
            file.unlink()

    proxy.rules.append(Rule(model.key(SHARD), after=2, times=1, then=remove))
    with pytest.raises(JobError, match=rf"{SHARD} cannot be written: it vanished; something else removed it"):
        run(engine, model.source)
    assert not engine.store.all()
    assert files_in(run(engine, model.source).folder) == MODEL


def test_a_cancelled_copy_is_resumed(model: Bucket, proxy: FaultProxy, tmp_path: Path) -> None:
    engine = Engine(short_timeout(tmp_path, proxy))
    interrupt(engine, model, proxy, 4)
    assert not engine.store.all()
    assert files_in(run(engine, model.source).folder) == MODEL
    again = proxy.downloaded() - sum(map(len, MODEL.values()))
    assert again <= engine.limits.concurrency * PART_BYTES


def test_a_small_file_is_in_flight_until_the_journal_has_it(
    bucket: Bucket, proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Else a kill loses every small file that waits for its verification, beside the parts in flight.
    bucket.put_all({f"{number}.txt": noise(50, number) for number in range(20)})
    engine, stop = Engine(config(tmp_path, proxy.url)), threading.Event()
    verifying: list[str] = []
    verified = threading.Event()

    def slow(path: str, _fd: int) -> None:
        verifying.append(path)
        verified.wait()

    monkeypatch.setattr("prefetch.copy.header_problem", slow)
    with ThreadPoolExecutor(1) as pool:
        copy = pool.submit(run, engine, bucket.source, stop=stop)
        try:
            wait_for(lambda: len(verifying) == engine.limits.concurrency, "as many files as requests")
            assert proxy.downloaded() <= engine.limits.concurrency * 50
        finally:
            stop.set()
            verified.set()
        with pytest.raises(Cancelled):
            copy.result()


def test_a_bucket_and_a_folder_that_are_not_there(bucket: Bucket, tmp_path: Path) -> None:
    engine = Engine(config(tmp_path, bucket.server.url))
    with pytest.raises(JobError, match=r"There is no object below s3://models-prod/team-a/.*; announce the folder"):
        run(engine, bucket.source)
    with pytest.raises(JobError, match="cannot be read from s3://no-such-bucket/x/: NoSuchBucket"):
        run(engine, "s3://no-such-bucket/x/")


def test_no_credentials(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with pytest.raises(JobError, match="no AWS credentials can be had"):
        run(Engine(config(tmp_path, bucket.server.url)), bucket.source)


def test_after_the_machine_failed_parts_are_read_from_the_disk_before_they_count(
    model: Bucket, proxy: FaultProxy, tmp_path: Path
) -> None:
    """The journal was written under another boot, and a part's bytes never reached the disk."""
    engine = Engine(short_timeout(tmp_path, proxy, concurrency=1))
    interrupt(engine, model, proxy, 4)
    (journal,) = (tmp_path / "target" / ".staging").glob("*/journal")
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    journal.write_text(journal.read_text().replace(boot, "another-boot"))
    staged = journal.parent / "files" / SHARD
    with open(staged, "r+b") as file:
        file.write(bytes(PART_BYTES))
    lost = journal.parent / "files" / "tokenizer.json"
    lost.write_bytes(bytes(len(MODEL["tokenizer.json"])))
    proxy.seen.clear()
    published = run(engine, model.source)
    assert files_in(published.folder) == MODEL
    ranges = [one.range for one in proxy.seen if one.key == model.key(SHARD) and one.method == "GET"]
    assert f"bytes=0-{PART_BYTES - 1}" in ranges
    assert f"bytes={PART_BYTES}-{2 * PART_BYTES - 1}" not in ranges
    assert proxy.gets(model.key("tokenizer.json")) == 1
    assert proxy.gets(model.key("config.json")) == 0


def test_the_rate_is_limited(model: Bucket, proxy: FaultProxy, tmp_path: Path) -> None:
    """Whatever the machine does, so many bytes cannot come sooner."""
    total = sum(map(len, MODEL.values()))
    began = time.monotonic()
    run(Engine(config(tmp_path, proxy.url, bytes_per_second=total)), model.source)
    # All but the last part of each thread have been waited for.
    assert time.monotonic() - began > 0.5


def test_one_process_at_a_time_copies_a_model(model: Bucket, proxy: FaultProxy, tmp_path: Path) -> None:
    rule = Rule(model.key(SHARD), hang=True, times=1)
    proxy.rules.append(rule)
    with ThreadPoolExecutor(1) as pool:
        copy = pool.submit(run, Engine(short_timeout(tmp_path, proxy)), model.source)
        wait_for(lambda: rule.used, "the first copy")
        with pytest.raises(JobError, match="Another process on this machine is copying this model"):
            run(Engine(config(tmp_path, proxy.url)), model.source)
        assert files_in(copy.result().folder) == MODEL
