"""The backend's part in the directory, with processes that really live and die, seen by the proxy's reader."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from devtools.paths import ROOT
from metrics_proxy.directory import Directory
from tests.support.metrics_writer import Process, Writer, process
from tests.support.waiting import wait_for
from tests.unit.metrics_proxy.test_directory import TOKENS, WAITING, samples
from vllm_backend import alive
from vllm_backend.contract import StartError


def test_a_killed_process_is_dead_at_once_and_its_counters_stay(tmp_path: Path) -> None:
    directory = Directory(tmp_path, compact_after=1)
    with process(tmp_path, "--alive") as one, process(tmp_path, "--alive") as other:
        one.add(4)
        report = directory.read()
        assert report.processes == {"live": 2}
        assert (samples(report)[TOKENS], samples(report)[WAITING]) == (6, 2)
        one.kill()
        report = directory.read()
        assert (samples(report)[TOKENS], samples(report)[WAITING]) == (6, 1)
        assert report.compactions == 1
        assert sorted(file.name for file in tmp_path.glob("*.alive")) == [f"{other.pid}.alive"]
        other.end()
        report = directory.read()
        assert samples(report)[TOKENS] == 6
        assert WAITING not in samples(report)


def test_programs_that_the_process_starts_do_not_keep_it_alive(tmp_path: Path) -> None:
    script = (
        "import subprocess, sys; from pathlib import Path; from vllm_backend import alive;"
        "alive.hold(Path(sys.argv[1]));"
        "print(subprocess.Popen(['sleep', '60'], stdout=subprocess.DEVNULL).pid)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    )
    try:
        (name,) = tmp_path.glob("*.alive")
        Writer(tmp_path, int(name.stem)).waiting.set(1)
        assert Directory(tmp_path).read().processes == {"dead": 1}
    finally:
        os.kill(int(ended.stdout), 9)


def test_a_process_that_finds_files_of_its_pid_does_not_continue_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container that starts again, with the proxy absent meanwhile."""
    old = Writer(tmp_path, os.getpid())
    old.tokens.inc(5)
    old.waiting.set(3)
    (tmp_path / f"{os.getpid()}.alive").write_bytes(b"")
    other = Writer(tmp_path, 5_000_001)
    other.tokens.inc(1)
    alive.claim(tmp_path)
    new = Writer(tmp_path, os.getpid())
    directory = Directory(tmp_path, compact_after=100)
    # The engine starts, and that takes long.
    report = directory.read()
    assert report.processes == {"unknown": 2}
    assert samples(report)[TOKENS] == 6
    assert WAITING not in samples(report)
    new.tokens.inc(2)
    new.waiting.set(1)
    held: list[int] = []
    monkeypatch.setattr(alive, "_held", held)
    assert alive.hold(tmp_path) is None
    report = directory.read()
    assert report.processes == {"live": 1, "unknown": 1}
    assert (samples(report)[TOKENS], samples(report)[WAITING]) == (8, 1)
    os.close(held[0])
    assert directory.read().processes == {"unknown": 1}


def test_two_containers_with_one_directory_are_refused(tmp_path: Path) -> None:
    """The same pid in both: the other's lock is held, and it is not ours."""
    with (tmp_path / f"{os.getpid()}.alive").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(StartError, match="a process of another container has the same pid"):
            alive.claim(tmp_path)


def test_a_directory_that_cannot_be_used_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"PROMETHEUS_MULTIPROC_DIR: .*nowhere cannot be used: No such file"):
        alive.claim(tmp_path / "nowhere")
    # By then the engine runs: no reason to end it.
    assert "cannot be used: No such file" in str(alive.hold(tmp_path / "nowhere"))


def test_who_tidies_is_waited_for(tmp_path: Path) -> None:
    lock = (tmp_path / "maintenance.lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    script = (
        "import sys; from pathlib import Path; from vllm_backend import alive;"
        "alive.hold(Path(sys.argv[1])); sys.stdin.read()"
    )
    child = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], cwd=ROOT, stdin=subprocess.PIPE)
    assert child.stdin is not None
    try:
        # It has the file open and waits.
        wait_for(lambda: str(child.pid) in _openers(tmp_path / "maintenance.lock"))
        assert list(tmp_path.glob("*.alive")) == []
        lock.close()
        wait_for(lambda: list(tmp_path.glob("*.alive")))
    finally:
        child.stdin.close()
        child.wait()


def _openers(path: Path) -> list[str]:
    found = []
    for process_ in Path("/proc").glob("[0-9]*"):
        try:
            if any(os.readlink(fd) == str(path) for fd in (process_ / "fd").iterdir()):
                found.append(process_.name)
        except OSError:
            continue  # It has ended, or is another user's.
    return found


def test_one_process_after_another_under_load(tmp_path: Path) -> None:
    directory = Directory(tmp_path, compact_after=3)
    last = 0.0
    for _ in range(5):
        one = Process(tmp_path, "--alive")
        for _ in range(20):
            one.add(0.1)
            now = samples(directory.read())[TOKENS]
            assert now > last
            last = now
        one.kill()
    assert samples(directory.read())[TOKENS] == pytest.approx(5 * 3)
