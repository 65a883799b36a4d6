"""A folder of the cache is there wholly or not at all."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from devtools import cache

# Begins to make a folder, leaves half of it, says so and works on in a child.
HALF = """
import sys
from pathlib import Path
from devtools import cache
from devtools.processes import run_logged
def make(making):
    (making.folder / "half").touch()
    command = [sys.executable, "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(600)"]
    run_logged(command, making.log, on_line=lambda pid: print(pid, flush=True), pass_fds=[making.lock])
cache.ensure(Path(sys.argv[1]), "Half", make)
"""


def test_it_is_made_once(tmp_path: Path) -> None:
    made: list[Path] = []
    for _ in range(2):
        assert cache.ensure(tmp_path / "x", "X", lambda making: made.append(making.folder)) == tmp_path / "x"
    assert made == [tmp_path / "x"]


def test_a_failed_making_is_begun_anew(tmp_path: Path) -> None:
    def fail(making: cache.Making) -> None:
        (making.folder / "half").touch()
        raise RuntimeError

    with pytest.raises(RuntimeError):
        cache.ensure(tmp_path / "x", "X", fail)
    assert not cache.is_made(tmp_path / "x")
    cache.ensure(tmp_path / "x", "X", lambda making: (making.folder / "whole").touch())
    assert {path.name for path in (tmp_path / "x").iterdir()} == {"whole", ".complete"}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_killed_making_is_begun_anew_when_its_children_are_gone(tmp_path: Path, number: int) -> None:
    folder = tmp_path / "x"
    with subprocess.Popen(
        [sys.executable, "-c", HALF, folder], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as one:
        assert one.stdout is not None
        child = int(one.stdout.readline())
        one.send_signal(number)
    assert not cache.is_made(folder)

    def make(making: cache.Making) -> None:
        # The lock is free only when nobody writes into the folder any more.
        assert not Path(f"/proc/{child}").exists()
        assert not list(making.folder.iterdir())

    cache.ensure(folder, "X", make)


def test_two_at_once_make_it_once(tmp_path: Path) -> None:
    made: list[int] = []

    def make(making: cache.Making) -> None:
        time.sleep(0.2)
        made.append(threading.get_ident())

    threads = [threading.Thread(target=cache.ensure, args=(tmp_path / "x", "X", make)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1


def test_the_key_depends_on_each_part() -> None:
    keys = {cache.key("ab", "c"), cache.key("a", "bc"), cache.key("abc"), cache.key(b"abc", b"")}
    assert len(keys) == 4
    assert os.sep not in "".join(keys)
