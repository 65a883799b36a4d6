"""Publication, and the Triton that loads what is published (the mock engine stands for it)."""

import json
import threading
import time
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from bench.mock_engine.running import running_mock_engine
from prefetch import publish
from prefetch.errors import JobError
from prefetch.pull import Engine
from prefetch.store import Store
from prefetch.triton import TritonConfig
from tests.support.prefetch import Bucket, config, files_in, noise, run, safetensors

MODEL = {"config.json": b"{}", "model.safetensors": safetensors(5000, 1), "sub/x": noise(10)}


@pytest.fixture
def model(bucket: Bucket) -> Bucket:
    bucket.put_all(MODEL)
    return bucket


def test_a_reader_never_sees_half_a_model(model: Bucket, tmp_path: Path) -> None:
    """A reader that looks all the time: what `current` names is whole, whenever it looks."""
    engine = Engine(config(tmp_path, model.server.url))
    done = threading.Event()
    seen: set[str] = set()
    wrong: list[object] = []

    def look() -> None:
        link = tmp_path / "target" / "m" / "current"
        while not done.is_set():
            try:
                folder = link.resolve(strict=True)
            except FileNotFoundError:
                continue
            ready = json.loads((folder / "READY.json").read_text())
            seen.add(ready["version"])
            if files_in(folder) != MODEL:
                wrong.append(folder)

    reader = threading.Thread(target=look)
    reader.start()
    try:
        for version in map(str, range(8)):
            run(engine, model.source, version=version)
    finally:
        done.set()
        reader.join()
    assert not wrong
    assert seen


@pytest.mark.parametrize("step", ["before the rename", "after the rename", "after READY.json"])
def test_a_crash_between_two_steps(step: str, model: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Crash(BaseException):
        pass

    def crash(*_: object) -> None:
        raise Crash

    engine = Engine(config(tmp_path, model.server.url))
    place = {"before the rename": "_make_read_only", "after the rename": "_finish", "after READY.json": "set_current"}
    with monkeypatch.context() as patched:
        patched.setattr(publish, place[step], crash)
        with pytest.raises(Crash):
            run(engine, model.source)
    assert not (tmp_path / "target" / "m" / "current").is_symlink()
    assert len(engine.store.all()) == (step == "after READY.json")
    published = run(engine, model.source)
    assert files_in(published.folder) == MODEL
    assert engine.store.current("m") == "1"
    assert not list((tmp_path / "target" / ".staging").iterdir())


def test_two_machines_do_the_same_job(model: Bucket, tmp_path: Path) -> None:
    """They share the target and not the state; the second finds it done."""
    one = config(tmp_path, model.server.url)
    engines = [Engine(one), Engine(replace(one, state=tmp_path / "other"))]
    threads = [threading.Thread(target=run, args=(engine, model.source)) for engine in engines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [(published.model, published.version) for published in engines[0].store.all()] == [("m", "1")]
    assert files_in(tmp_path / "target/m/1") == MODEL
    assert not list((tmp_path / "target" / ".staging").iterdir())


def test_current_names_what_was_announced_last(model: Bucket, tmp_path: Path) -> None:
    """Not what was finished last."""
    engine, now = Engine(config(tmp_path, model.server.url)), time.time()
    run(engine, model.source, version="2", announced=now)
    run(engine, model.source, version="1", announced=now - 60)
    assert engine.store.current("m") == "2"
    run(engine, model.source, version="1", announced=now + 60)
    assert engine.store.current("m") == "1"


def test_places_that_are_taken(model: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(config(tmp_path, model.server.url))
    run(engine, model.source, model="a", version="b")
    with pytest.raises(JobError, match=r"The model 'a/b' would lie inside the published .*/a/b; give it another name"):
        run(engine, model.source, model="a/b", version="1")
    (tmp_path / "target/n/1").mkdir(parents=True)
    (tmp_path / "target/n/1/file").touch()
    monkeypatch.setattr(publish, "_OTHER_SECONDS", 0.1)
    with pytest.raises(JobError, match=r"is there and is no published model: it has no READY.json"):
        run(engine, model.source, model="n")


def test_names_that_are_long(model: Bucket, tmp_path: Path) -> None:
    """As long as a folder's name can be, and three times that when it is percent-encoded."""
    engine = Engine(config(tmp_path, model.server.url))
    for name in ("模" * 85, "模" * 84 + "型"):
        published = run(engine, model.source, model=name, pin=True)
        assert files_in(published.folder) == MODEL
    assert [one.kept for one in engine.candidates()] == ["current", "current"]
    assert len(list((tmp_path / "target" / ".prefetch" / "pins").iterdir())) == 2


def test_failed_staging_is_removed_after_a_time(model: Bucket, tmp_path: Path) -> None:
    engine = Engine(config(tmp_path, model.server.url))
    model.put("model.safetensors", b"nothing")
    with pytest.raises(JobError):
        run(engine, model.source)
    (left,) = (tmp_path / "target" / ".staging").iterdir()
    assert engine.remove_stale_staging(3600) == []
    time.sleep(0.05)
    assert engine.remove_stale_staging(0.01) == [left]
    assert not left.exists()


# Triton.


@pytest.fixture
def template(tmp_path: Path) -> Path:
    folder = tmp_path / "template"
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(
        'backend: "vllm"\nmax_batch_size: 0\nmodel_transaction_policy { decoupled: true }\n# ${model} ${version}\n'
    )
    (folder / "1" / "model.json").write_text(
        '{"model": "${path}", "load": "${safetensors_load_strategy}", "cost": "$$"}'
    )
    return folder


def _with_triton(tmp_path: Path, endpoint: str, url: str, template: Path) -> Engine:
    triton = TritonConfig((url,), tmp_path / "repository", template, 60)
    return Engine(config(tmp_path, endpoint, triton=triton))


def test_the_entry_is_written_and_loaded(model: Bucket, template: Path, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    with running_mock_engine(models=["acme--m"]) as triton:
        engine = _with_triton(tmp_path, model.server.url, triton.url, template)
        published = run(engine, model.source, model="acme/m")
        assert httpx.get(f"{triton.url}/v2/models/acme--m/ready").status_code == 200
        entry = repository / "acme--m"
        assert json.loads((entry / "1" / "model.json").read_text()) == {
            "model": str(published.folder),
            "load": "lazy",
            "cost": "$",
        }
        assert "# acme/m 1" in (entry / "config.pbtxt").read_text()
        run(engine, model.source, model="acme/m", version="2")
        assert json.loads((entry / "1" / "model.json").read_text())["model"] == str(published.folder.with_name("2"))
        # What Triton has loaded is kept, also when `current` names another.
        publish.set_current(engine.store, "acme/m", "1", time.time() + 9)
        assert {(one.model, one.version): one.kept for one in engine.candidates()} == {
            ("acme/m", "1"): "current",
            ("acme/m", "2"): f"loaded in Triton at {triton.url}",
        }
        with pytest.raises(JobError, match="cannot load other: failed to load 'other', failed to poll"):
            run(engine, model.source, model="other")
        assert not (repository / "other").exists()
    # A Triton that does not answer may have it loaded.
    kept = {(one.model, one.version): one.kept for one in engine.candidates()}
    assert kept["acme/m", "2"] == f"Triton at {triton.url} does not say what it has loaded"
    with pytest.raises(JobError, match="cannot be asked to load acme--m"):
        run(engine, model.source, model="acme/m", version="3")
    # The entry is as it was.
    assert json.loads((entry / "1" / "model.json").read_text())["model"] == str(published.folder.with_name("2"))


def test_entries_that_are_not_ours_and_templates_that_are_wrong(model: Bucket, template: Path, tmp_path: Path) -> None:
    engine = _with_triton(tmp_path, model.server.url, "http://127.0.0.1:9", template)
    foreign = tmp_path / "repository" / "m"
    foreign.mkdir(parents=True)
    with pytest.raises(JobError, match=r"is not prefetch's \(no prefetch.json\)"):
        run(engine, model.source)
    assert list(foreign.iterdir()) == []
    (template / "1" / "model.json").write_text("${nothing}")
    with pytest.raises(JobError, match=r"model.json cannot be filled in: 'nothing'; write \$\$ for a dollar"):
        run(engine, model.source, model="other")
    assert not (tmp_path / "repository" / "other").exists()


def test_the_store_lists_only_what_is_published(tmp_path: Path) -> None:
    (tmp_path / "m" / "half").mkdir(parents=True)
    (tmp_path / ".staging" / "x").mkdir(parents=True)
    (tmp_path / ".staging" / "x" / "READY.json").write_text("{}")
    assert Store(tmp_path).all() == []
    assert Store(tmp_path / "absent").all() == []
