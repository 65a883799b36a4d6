"""The Unix-domain socket: who may connect, what it takes the place of and what it does not, and what is left of it."""

import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from gateway.listening import unix_socket
from gateway.settings import load
from tests.support.permissions import as_somebody
from tests.support.refusals import refusal, refusal_of_process
from tests.support.waiting import wait_for

# sun_path of unix(7), but for the zero behind a path.
MOST_BYTES = 107


@pytest.fixture
def folder() -> Iterator[Path]:
    """Nearer to the root than those of pytest: a path has to be short enough."""
    made = Path(tempfile.mkdtemp(prefix="gw"))
    yield made
    shutil.rmtree(made)


@pytest.fixture
def path(folder: Path) -> Path:
    return folder / "s"


def leave_stale(path: Path) -> None:
    """As a process that was killed does."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()


def is_later(path: Path) -> bool:
    """Than when the file was made, by the file system's clock, which may tick slowly."""
    now = path.with_name("now")
    now.touch()
    return now.stat().st_mtime_ns > path.lstat().st_mtime_ns


def refused(path: Path) -> str:
    def listen() -> None:
        with unix_socket(path):
            raise AssertionError(f"it listens on {path}")

    text = refusal(listen)
    assert str(path) in text
    assert "--unix-socket" in text
    return text


@pytest.mark.parametrize("mask", [0, 0o022, 0o077])
def test_the_user_and_the_group_may_connect_whatever_the_umask(mask: int, path: Path) -> None:
    before = os.umask(mask)
    try:
        with unix_socket(path) as listener:
            assert stat.S_IMODE(path.stat().st_mode) == 0o660
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(path))
                accepted, _ = listener.accept()
                accepted.close()
        assert not path.exists()
    finally:
        os.umask(before)


def test_one_that_nobody_listens_on_is_replaced(path: Path) -> None:
    leave_stale(path)
    with unix_socket(path), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))


def test_one_that_is_listened_on_is_refused_and_goes_on(path: Path) -> None:
    with unix_socket(path):
        assert "Another process listens" in refused(path)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))


def test_one_whose_queue_is_full_is_listened_on(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as first:
        listener.bind(str(path))
        listener.listen(0)
        first.connect(str(path))
        with socket.socket(socket.AF_UNIX) as second:
            second.setblocking(False)
            with pytest.raises(BlockingIOError):
                second.connect(str(path))
        assert "Another process listens" in refused(path)


def test_one_of_another_kind_is_somebody_elses(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(str(path))
        assert "Another process listens" in refused(path)


def test_one_that_this_user_may_not_connect_to_is_not_touched(folder: Path, path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        path.chmod(0)
        listener.listen()
        with as_somebody(folder):
            assert "permission denied" in refused(path)
        assert path.exists()


def a_file(path: Path) -> None:
    path.write_text("precious")


def a_link(path: Path) -> None:
    leave_stale(path.with_name("target"))
    path.symlink_to("target")


@pytest.mark.parametrize("make", [a_file, Path.mkdir, a_link])
def test_what_is_no_socket_stays(make: Callable[[Path], None], path: Path) -> None:
    make(path)
    before = path.lstat()
    assert "is there and is no socket" in refused(path)
    after = path.lstat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_folder_that_does_not_exist(folder: Path) -> None:
    assert f"the folder '{folder / 'no'}' does not exist" in refused(folder / "no" / "s")
    (folder / "file").touch()
    assert f"the folder '{folder / 'file'}' does not exist" in refused(folder / "file" / "s")


def test_a_folder_that_this_user_may_not_write_to(folder: Path, path: Path) -> None:
    with as_somebody(folder):
        assert f"permission denied; let this user write to '{folder}'" in refused(path)


def test_a_folder_that_is_nowhere(folder: Path) -> None:
    (folder / "loop").symlink_to("loop")
    assert "Too many levels of symbolic links" in refused(folder / "loop" / "s")


@pytest.mark.parametrize("letter", ["a", "é"])
def test_the_longest_path(letter: str, folder: Path) -> None:
    room = MOST_BYTES - len(os.fsencode(folder)) - 1
    name = letter * (room // len(letter.encode()))
    name += "a" * (room - len(name.encode()))
    longest = load(["--unix-socket", str(folder / name)]).unix_socket
    assert longest is not None
    with unix_socket(longest):
        assert longest.is_socket()
    text = refusal(lambda: load(["--unix-socket", f"{longest}a"]))
    assert "'unix_socket' (--unix-socket)" in text
    assert "108 bytes" in text


def test_the_socket_of_a_successor_stays(path: Path) -> None:
    with ExitStack() as successor:
        with unix_socket(path) as listener:
            # As at the beginning of the time to finish. On some file systems the next file has the same number.
            listener.close()
            wait_for(lambda: is_later(path), "the file system's next moment")
            successor.enter_context(unix_socket(path))
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
    assert not path.exists()


@pytest.mark.parametrize("change", [os.unlink, lambda path: os.chmod(path, 0o666)], ids=["removed", "opened"])
def test_an_operator_may_change_it(change: Callable[[Path], None], path: Path) -> None:
    with unix_socket(path):
        change(path)
    assert not path.exists()


def test_one_that_cannot_be_removed_is_logged(folder: Path, path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with ExitStack() as later, unix_socket(path):
        later.enter_context(as_somebody(folder))
    assert f"{path} cannot be removed: Permission denied" in caplog.text


def test_the_gateway_ends_with_the_sentence_and_code_2(path: Path) -> None:
    path.write_text("precious")
    flags = ["--port", "0", "--unix-socket", str(path), "--models", '[{"triton_model": "m"}]', "--log-level", "error"]
    for workers in ("1", "2"):
        line = refusal_of_process("gateway", *flags, "--workers", workers)
        assert "is there and is no socket" in line
    assert path.read_text() == "precious"
