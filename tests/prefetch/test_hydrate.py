"""A source that a data repository association covers: read through and verified where it is, published as links.

No Lustre can be had here. A plain folder stands for the association's, and for `lfs` a program that records its calls
and answers as Lustre's manual says.
"""

import json
import os
from pathlib import Path

import pytest

from prefetch import lustre
from prefetch.errors import JobError
from prefetch.hydrate import Association, covering
from prefetch.progress import Progress
from prefetch.pull import Engine
from prefetch.source import Source
from tests.support.fault_proxy import FaultProxy
from tests.support.prefetch import BUCKET, PART_BYTES, Bucket, config, files_in, noise, run, safetensors

MODEL = {
    "config.json": b"{}",
    "model.safetensors": safetensors(9 * PART_BYTES + 5, 1),
    "sub/tokenizer.json": noise(500),
    "empty": b"",
}

_LFS = """#!/bin/sh
echo "$@" >> "{log}"
case "$1" in
    hsm_state) if [ -e "{released}/$(basename "$2")" ]
        then echo "$2: (0x0000000d) released exists archived, archive_id:1"
        else echo "$2: (0x00000009) exists archived, archive_id:1"; fi ;;
    hsm_restore) {restore} ;;
esac
"""


@pytest.fixture
def shown(bucket: Bucket, tmp_path: Path) -> Path:
    """The folder in which the association shows the model."""
    bucket.put_all(MODEL)
    folder = tmp_path / "fsx" / bucket.prefix
    for path, body in MODEL.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(body)
    return folder


@pytest.fixture
def engine(bucket: Bucket, shown: Path, proxy: FaultProxy, tmp_path: Path) -> Engine:
    association = Association(tmp_path / "fsx", Source.parse(f"s3://{BUCKET}/"), auto_export=True)
    return Engine(config(tmp_path, proxy.url, associations=(association,)))


def _lfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, released: list[str], restore: str) -> Path:
    log = tmp_path / "lfs.log"
    (tmp_path / "released").mkdir()
    for name in released:
        (tmp_path / "released" / name).touch()
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "lfs"
    program.write_text(_LFS.format(log=log, released=tmp_path / "released", restore=restore))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return log


def test_read_through_and_published_as_links(engine: Engine, bucket: Bucket, shown: Path, proxy: FaultProxy) -> None:
    progress = Progress()
    published = run(engine, bucket.source, progress=progress)
    assert files_in(published.folder) == MODEL
    assert (published.folder / "model.safetensors").readlink() == shown / "model.safetensors"
    assert proxy.downloaded() == 0
    assert progress.totals() == (sum(map(len, MODEL.values())),) * 2
    ready = json.loads((published.folder / "READY.json").read_text())
    assert ready["files"]["model.safetensors"]["checked"] == ["size", "crc32", "safetensors"]
    # Links make no room: they are never removed for it.
    assert [one.bytes for one in engine.candidates()] == [0]
    # What the association shows is not changed.
    assert (shown / "model.safetensors").stat().st_mode & 0o200


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda file: file.write_bytes(file.read_bytes()[:-1]), "bytes on the file system and"),
        (lambda file: file.write_bytes(file.read_bytes()[:-1] + b"?"), "its CRC32 is not the one that S3 has"),
        (lambda file: file.unlink(), "cannot be read: No such file or directory; is the association's import"),
    ],
    ids=["short", "wrong", "absent"],
)
def test_what_is_damaged_on_the_file_system(
    damage: object, sentence: str, engine: Engine, bucket: Bucket, shown: Path
) -> None:
    assert callable(damage)
    damage(shown / "model.safetensors")
    with pytest.raises(JobError, match=sentence) as caught:
        run(engine, bucket.source)
    assert "model.safetensors" in str(caught.value)
    assert not engine.store.all()


def test_released_files_are_restored_first(
    engine: Engine, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    restore = f'shift; for file in "$@"; do rm "{tmp_path}/released/$(basename "$file")"; done'
    log = _lfs(tmp_path, monkeypatch, ["model.safetensors"], restore)
    run(engine, bucket.source)
    calls = [line.split()[0] for line in log.read_text().splitlines()]
    assert calls.count("hsm_restore") == 1
    (asked,) = [line.split()[1:] for line in log.read_text().splitlines() if line.startswith("hsm_restore")]
    assert [Path(path).name for path in asked] == ["model.safetensors"]


def test_a_restore_that_stalls_is_left_for_reading(
    bucket: Bucket, shown: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _lfs(tmp_path, monkeypatch, ["config.json"], "true")
    files = [shown / path for path in MODEL]
    assert lustre.restore(files, 0.2, lambda: False, pause=0.05) is False


def test_a_restore_that_is_not_permitted_is_left_for_reading(
    engine: Engine, bucket: Bucket, shown: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _lfs(tmp_path, monkeypatch, ["config.json"], "exit 1")
    assert lustre.restore([shown / "config.json"], 100, lambda: False) is False
    assert files_in(run(engine, bucket.source).folder) == MODEL


def test_nothing_is_striped_where_it_is_not_lustre(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = _lfs(tmp_path, monkeypatch, [], "true")
    lustre.stripe(tmp_path)
    assert not log.exists()
    monkeypatch.setattr(lustre, "file_system", lambda path: "lustre")
    lustre.stripe(tmp_path)
    assert log.read_text() == f"setstripe -c -1 {tmp_path}\n"


def test_which_association_covers_a_source() -> None:
    associations = [
        Association(Path("/fsx/a"), Source.parse("s3://bkt/a/")),
        Association(Path("/w"), Source.parse("s3://www")),
    ]
    assert covering(Source.parse("s3://bkt/a/m/1"), associations) == Path("/fsx/a/m/1")
    assert covering(Source.parse("s3://www/x/"), associations) == Path("/w/x")
    assert covering(Source.parse("s3://bkt/ab/"), associations) is None
