"""A file system that is small, full or read-only: a tmpfs of the test's own, which takes root to mount."""

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from prefetch.errors import JobError
from prefetch.pull import Engine
from prefetch.space import Policy
from tests.support.fault_proxy import FaultProxy, Rule
from tests.support.prefetch import BUCKET, Bucket, config, files_in, noise, run

MIB = 1024 * 1024
_DISK = 32 * MIB

pytestmark = pytest.mark.long


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_DISK}", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def _bucket(bucket: Bucket, name: str) -> Bucket:
    return Bucket(bucket.server, f"{bucket.prefix}{name}/")


def _engine(bucket: Bucket, tmp_path: Path, disk: Path, policy: Policy, endpoint: str | None = None) -> Engine:
    settings = config(tmp_path, endpoint or bucket.server.url, policy=policy)
    return Engine(replace(settings, target=disk / "models", copy=replace(settings.copy, part_bytes=MIB)))


_NO_RESERVE = Policy(high=1.0, low=1.0, reserve_bytes=0)


def test_what_does_not_fit_is_refused_before_anything_is_written(bucket: Bucket, tmp_path: Path, disk: Path) -> None:
    bucket.put_in_parts("w.bin", noise(20 * MIB))
    engine = _engine(bucket, tmp_path, disk, replace(_NO_RESERVE, reserve_bytes=16 * MIB))
    with pytest.raises(JobError, match=r"20\.0 MiB are needed below .* 16\.0 MiB as the reserve .*Free space"):
        run(engine, bucket.source)
    assert not list((disk / "models" / ".staging").rglob("w.bin"))
    assert files_in(run(_engine(bucket, tmp_path, disk, _NO_RESERVE), bucket.source).folder).keys() == {"w.bin"}


def test_a_disk_that_fills_meanwhile(bucket: Bucket, tmp_path: Path, disk: Path, proxy: FaultProxy) -> None:
    """Somebody else takes the space between the check and the writing."""
    bucket.put("a.bin", noise(1000))
    bucket.put_in_parts("w.bin", noise(20 * MIB))

    def fill() -> None:
        (disk / "other").write_bytes(bytes(28 * MIB))

    proxy.rules.append(Rule(bucket.key("w.bin"), method="HEAD", times=1, before=fill))
    engine = _engine(bucket, tmp_path, disk, _NO_RESERVE, proxy.url)
    with pytest.raises(JobError, match=r"w\.bin cannot be written: the file system is full; free space"):
        run(engine, bucket.source)
    assert not engine.store.all()
    (disk / "other").unlink()
    assert files_in(run(engine, bucket.source).folder).keys() == {"a.bin", "w.bin"}


def test_a_full_disk(bucket: Bucket, tmp_path: Path, disk: Path) -> None:
    bucket.put("a.bin", noise(1000))
    (disk / "models").mkdir()
    with pytest.raises(OSError, match="No space left"):
        (disk / "other").write_bytes(bytes(_DISK + 1))
    with pytest.raises(JobError, match=r"the file system is full; free space|are needed below"):
        run(_engine(bucket, tmp_path, disk, _NO_RESERVE), bucket.source)
    assert not (disk / "models" / "m").exists()


def test_a_read_only_target(bucket: Bucket, tmp_path: Path, disk: Path) -> None:
    bucket.put("a.bin", noise(1000))
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    with pytest.raises(JobError, match=r"cannot be written: the file system is read-only; mount it for writing"):
        run(_engine(bucket, tmp_path, disk, _NO_RESERVE), bucket.source)


def test_room_is_made_for_a_job(bucket: Bucket, tmp_path: Path, disk: Path) -> None:
    """Of five versions of 6 MiB on 32 MiB two may go: the one that was used longest ago does."""
    engine = _engine(bucket, tmp_path, disk, _NO_RESERVE)
    for number in range(5):
        _bucket(bucket, str(number)).put_in_parts("w.bin", noise(6 * MIB, number))
    store = engine.store

    def pull(number: int, version: str) -> None:
        run(engine, f"s3://{BUCKET}/{bucket.prefix}{number}/", version=version)

    for number, version in enumerate(("pinned", "leased", "older", "newer")):
        pull(number, version)
    pull(4, "latest")
    assert {one.version for one in store.all()} == {"pinned", "leased", "older", "newer", "latest"}
    store.pin("m", "pinned")
    store.lease("m", "leased", "somebody", 3600)
    store.use("m", "newer")
    (disk / "models" / "m" / "newer" / "w.bin").read_bytes()
    _bucket(bucket, "5").put_in_parts("w.bin", noise(6 * MIB, 5))
    pull(5, "next")
    assert {one.version for one in store.all()} == {"pinned", "leased", "newer", "latest", "next"}
    # What is left is kept, but for one; that is not enough.
    _bucket(bucket, "6").put_in_parts("w.bin", noise(20 * MIB, 6))
    with pytest.raises(JobError, match="nothing more can be removed"):
        pull(6, "too-large")


def test_the_high_watermark(bucket: Bucket, tmp_path: Path, disk: Path) -> None:
    engine = _engine(bucket, tmp_path, disk, Policy(high=0.7, low=0.5, reserve_bytes=0))
    for number in range(4):
        one = _bucket(bucket, str(number))
        one.put_in_parts("w.bin", noise(7 * MIB, number))
        run(engine, one.source, version=str(number))
    # The fourth would be above 70 percent of 32 MiB, so two went, down to 50.
    assert [one.version for one in engine.store.all()] == ["2", "3"]
    assert engine.make_room() == []
