"""Nothing that a guard runs outlives it or its owner, however badly the processes behave."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from devtools import guard
from devtools.processes import Service, run_logged

# Starts a process in a session of its own whose parent is gone, deaf to polite signals; then does the same itself.
BAD = """
import os, signal, sys, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open(sys.argv[1], "w").write(str(os.getpid()))
        time.sleep(600)
    os._exit(0)
os.wait()
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
print("started", flush=True)
time.sleep(600)
"""

# An owner: runs BAD as a service, says so, and waits.
OWNER = f"""
import sys, time
from pathlib import Path
from devtools.processes import Service
log = Path(sys.argv[1])
service = Service("bad", [sys.executable, "-c", {BAD!r}, sys.argv[2]], log, grace=0.3)
while "started" not in service.output():
    time.sleep(0.01)
print(*service.pids(), flush=True)
time.sleep(600)
"""


def until(holds: Callable[[], bool], seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


@pytest.fixture
def bad(tmp_path: Path) -> Service:
    command = [sys.executable, "-c", BAD, str(tmp_path / "pid")]
    service = Service("bad", command, tmp_path / "log", grace=0.3, leftovers=[f"{tmp_path}/left-*"])
    assert until(lambda: "started" in service.output())
    return service


def test_stopping_ends_the_daemon_too(bad: Service, tmp_path: Path) -> None:
    pids = bad.pids()
    assert int((tmp_path / "pid").read_text()) in pids
    (tmp_path / "left-1").touch()
    assert bad.stop() == 128 + signal.SIGKILL
    assert not alive(pids)
    assert not (tmp_path / "left-1").exists()


def test_the_command_s_death_ends_the_daemon_too(bad: Service, tmp_path: Path) -> None:
    pids = bad.pids()
    (command,) = [pid for pid in pids if pid != int((tmp_path / "pid").read_text())]
    os.kill(command, signal.SIGKILL)
    assert bad.wait() == 128 + signal.SIGKILL
    assert not alive(pids)


def test_kill_does_not_wait(tmp_path: Path) -> None:
    service = Service("bad", [sys.executable, "-c", BAD, tmp_path / "pid"], tmp_path / "log", grace=600)
    assert until(lambda: "started" in service.output())
    service.ask_to_stop()
    service.kill()
    assert service.wait() == 128 + signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_owner_s_death_ends_everything(tmp_path: Path, number: int) -> None:
    arguments = [sys.executable, "-c", OWNER, str(tmp_path / "log"), str(tmp_path / "pid")]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as owner:
        assert owner.stdout is not None
        pids = [int(pid) for pid in owner.stdout.readline().split()]
        owner.send_signal(number)
    assert len(pids) == 2
    assert until(lambda: not alive(pids)), alive(pids)


def test_a_killed_guard_takes_its_command_along(tmp_path: Path) -> None:
    service = Service("sleep", ["sleep", "600"], tmp_path / "log")
    assert until(lambda: len(service.pids()) == 1)
    (command,) = service.pids()
    os.kill(service._process.pid, signal.SIGKILL)
    assert until(lambda: not alive([command]))


@pytest.mark.parametrize(("script", "code"), [("exit 7", 7), ("kill -9 $$", 137)])
def test_the_exit_code_is_the_command_s(tmp_path: Path, script: str, code: int) -> None:
    assert run_logged(["bash", "-c", script], tmp_path / "log") == code


def test_a_command_that_does_not_exist_is_said(tmp_path: Path) -> None:
    assert run_logged(["/no/such/program"], tmp_path / "log") == 127
    assert (tmp_path / "log").read_text() == "cannot start /no/such/program: No such file or directory\n"


def test_output_comes_line_by_line(tmp_path: Path) -> None:
    lines: list[str] = []
    assert run_logged(["printf", "a\\nb ü\\n"], tmp_path / "log", on_line=lines.append) == 0
    assert lines == ["a", "b ü"]


def test_a_killed_process_s_semaphores_are_removed(tmp_path: Path) -> None:
    code = (
        "import multiprocessing as m, time; s = m.get_context('spawn').Semaphore();"
        "print(s._semlock.name, flush=True); time.sleep(600)"
    )
    service = Service("semaphore", [sys.executable, "-c", code], tmp_path / "log")
    assert until(lambda: service.output().endswith("\n"))
    semaphore = Path("/dev/shm") / f"sem.{service.output().strip().removeprefix('/')}"
    assert semaphore.exists()
    service.kill()
    assert service.wait() == 128 + signal.SIGKILL
    assert not semaphore.exists()


def test_descendants_of_a_name_with_spaces_and_parentheses(tmp_path: Path) -> None:
    odd = tmp_path / "a) R (b"
    odd.symlink_to("/bin/sleep")
    with subprocess.Popen([odd, "600"]) as process:
        assert until(lambda: process.pid in guard.descendants(os.getpid()))
        process.kill()
