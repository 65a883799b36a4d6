"""What is read of real processes: who listens, what lies below it, which thread works, and what that is of a core."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from bench.diagnose import procfs
from bench.diagnose.frontend import Frontend, find, is_engine, is_here, short_name
from bench.diagnose.watch import Seen, Watcher, core_shares, processes
from devtools.errors import DevError
from tests.support.waiting import wait_for

# A server that forks a worker, which holds the socket too; a thread of the worker works without a pause.
_SERVER = """
import os, socket, sys, threading, json
listening = socket.create_server(("127.0.0.1", 0))
child = os.fork()
if child == 0:
    def burn():
        while True: pass
    threading.Thread(target=burn, name="burner", daemon=True).start()
else:
    print(json.dumps([listening.getsockname()[1], os.getpid(), child]), flush=True)
sys.stdin.read()
if child: os.wait()
"""


@contextmanager
def server() -> Iterator[tuple[int, int, int]]:
    """Its port, its process, and that of its worker."""
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        port, parent, child = json.loads(process.stdout.readline())
        yield port, parent, child
    finally:
        process.stdin.close()
        process.wait(30)
        process.stdout.close()


def test_who_listens_is_found_with_all_below_it() -> None:
    with server() as (port, parent, child):
        found = find(f"http://127.0.0.1:{port}/v1", [])
        assert {parent, child} <= found.pids()
        assert os.getpid() not in found.pids()
        assert find("http://192.0.2.1:1", [child]).pids() == {child}
    assert parent not in found.pids()


def test_the_thread_that_works_is_seen_by_what_it_wants() -> None:
    with server() as (port, parent, child), Watcher(find(f"http://127.0.0.1:{port}", []), None, "m") as watcher:
        began = procfs.snapshot([]).at

        def working() -> Seen | None:
            """A kernel counts a wait when it is over, so that a short time on a full machine does not have it all."""
            found = watcher.seen(began, procfs.snapshot([]).at)
            busiest = max((one.busiest.wanted for one in found.frontend), default=0.0) if found else 0.0
            return found if busiest > 0.7 else None

        seen = wait_for(working, "a thread that wants most of a core")
        by_pid = {process.pid: process for process in seen.frontend}
    assert set(by_pid) == {parent, child}
    assert by_pid[child].is_python
    assert len(by_pid[child].threads) == 2
    assert by_pid[parent].wanted < by_pid[child].wanted
    assert by_pid[child].rss > 2**20
    assert len(seen.cores) == os.cpu_count()
    assert (seen.engine, seen.gpu) == (None, None)


def test_nothing_is_said_of_a_moment_without_samples() -> None:
    with Watcher(Frontend(frozenset()), None, "m") as watcher:
        assert watcher.seen(0, 1) is None


def test_shares_are_of_the_time_between() -> None:
    counters = {1: procfs.ThreadCounter("loop", 5.0, 1.0), 2: procfs.ThreadCounter("new", 1.0, 0.0)}
    process = procfs.ProcessCounter(9, "uvicorn app:app", "/usr/bin/python3.11", 1000, counters)
    last = procfs.Snapshot(110.0, {9: process}, ((30.0, 60.0), (5.0, 60.0)), {})
    before = {1: procfs.ThreadCounter("loop", 1.0, 0.0), 3: procfs.ThreadCounter("ended", 7.0, 0.0)}
    first = procfs.Snapshot(100.0, {9: replace(process, threads=before)}, ((20.0, 50.0), (5.0, 50.0)), {})
    (found,) = processes(first, last, {9, 10})
    assert [(one.name, one.on_cpu, one.wanted) for one in found.threads] == [("loop", 0.4, 0.5), ("new", 0.1, 0.1)]
    assert (found.busiest.name, found.is_python, found.rss) == ("loop", True, 1000)
    assert core_shares(first, last) == [1.0, 0.0]


def test_another_machine_is_not_this_one() -> None:
    assert is_here("127.0.0.1")
    assert is_here("localhost")
    assert not is_here("192.0.2.1")
    assert not is_here("no-such-host.invalid")
    assert find("https://192.0.2.1/v1", []).unseen == "192.0.2.1 is another machine"


def test_a_port_without_a_listener_is_said() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        found = find(f"http://127.0.0.1:{bound.getsockname()[1]}", [])
    assert found.pids() == set()
    assert found.unseen.startswith("nobody listens on port ")


def test_a_process_that_is_not_there_is_one_sentence() -> None:
    with pytest.raises(DevError, match="--pid 4194305: there is no such process"):
        find("http://127.0.0.1:1", [2**22 + 1])


@pytest.mark.parametrize(
    ("command", "program", "name", "engine"),
    [
        ("VLLM::EngineCore", "/usr/bin/python3.12", "VLLM::EngineCore", True),
        ("VLLM::Worker_TP0", "/usr/bin/python3.12", "VLLM::Worker_TP0", True),
        ("VLLM::APIServer_0", "/usr/bin/python3.12", "VLLM::APIServer_0", False),
        ("sglang::scheduler_TP0", "/usr/bin/python3.12", "sglang::scheduler_TP0", True),
        ("/opt/tritonserver/bin/tritonserver --model-repository /m", "", "tritonserver", True),
        ("/opt/backends/python/triton_python_backend_stub /m 1", "", "triton_python_backend_stub", True),
        ("/usr/bin/python3 -m gateway --triton http://tritonserver:8000", "", "python -m gateway", False),
        ("python3.12 /venv/bin/vllm serve m", "", "python vllm", False),
        ("/usr/bin/python -c import~x", "", "python -c", False),
        ("python", "/usr/bin/python3", "python", False),
        ("nginx: worker process", "/usr/sbin/nginx", "nginx", False),
        ("", "/usr/bin/x", "x", False),
    ],
)
def test_names(command: str, program: str, name: str, engine: bool) -> None:
    assert (short_name(command, program), is_engine(command)) == (name, engine)
