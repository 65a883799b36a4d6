"""Multiprocess directories, written by prometheus_client itself: what counts, what is gone, what costs only itself."""

import fcntl
import gc
import os
import random
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from metrics_proxy import compacted, render
from metrics_proxy.directory import Directory, DirectoryError, Report
from tests.support.metrics import Samples
from tests.support.metrics_writer import Writer, process

TOKENS = 'vllm:generation_tokens_total{engine="0",model_name="m"}'
WAITING = 'vllm:num_requests_waiting{engine="0",model_name="m"}'
USAGE = 'vllm:kv_cache_usage_perc{engine="0",model_name="m"}'
TTFT = "vllm:time_to_first_token_seconds"

# No process has these pids: Linux gives none above 2 ** 22.
A, B, C = 5_000_001, 5_000_002, 5_000_003


def samples(report: Report) -> Samples:
    return Samples(render.text(report.families))


def read(directory: Path, **options: Any) -> Samples:
    return samples(Directory(directory, **options).read())


def bucket(le: str) -> str:
    return f'{TTFT}_bucket{{engine="0",model_name="m",le="{le}"}}'


class Lock:
    """The lock of a process's backend; its end is that of the process."""

    def __init__(self, directory: Path, pid: int) -> None:
        self._file = (directory / f"{pid}.alive").open("w")
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def end(self) -> None:
        self._file.close()


def reference(directory: Path) -> Samples:
    registry = CollectorRegistry()
    MultiProcessCollector(registry, str(directory))  # type: ignore[no-untyped-call]
    return Samples(generate_latest(registry).decode())


def test_the_same_as_prometheus_client_for_live_processes(tmp_path: Path) -> None:
    chance = random.Random(1)
    for pid in (A, B, C):
        writer = Writer(tmp_path, pid, labels={"model_name": f"m{pid}", "engine": "0"})
        writer.tokens.inc(chance.random())
        writer.waiting.set(chance.randrange(9))
        for _ in range(50):
            writer.ttft.observe(chance.random() * 20)
    assert read(tmp_path).values == reference(tmp_path).values


def test_a_gauge_that_was_never_set_is_absent(tmp_path: Path) -> None:
    writer = Writer(tmp_path, A)
    page = read(tmp_path)
    assert WAITING not in page
    assert page[TOKENS] == 0
    writer.waiting.set(0)
    assert read(tmp_path)[WAITING] == 0


def test_the_dead_keep_counting_but_show_no_gauges(tmp_path: Path) -> None:
    directory = Directory(tmp_path)
    locks = {pid: Lock(tmp_path, pid) for pid in (A, B)}
    for pid, number in ((A, 1), (B, 10)):
        writer = Writer(tmp_path, pid)
        writer.tokens.inc(number)
        writer.waiting.set(number)
        writer.ttft.observe(number)
    both = samples(directory.read())
    assert (both[TOKENS], both[WAITING], both[bucket("1.0")], both[bucket("+Inf")]) == (11, 11, 1, 2)
    locks[A].end()
    report = directory.read()
    one = samples(report)
    assert (one[TOKENS], one[WAITING], one[bucket("1.0")], one[bucket("+Inf")]) == (11, 10, 1, 2)
    assert report.processes == {"live": 1, "dead": 1}
    locks[B].end()
    none = samples(directory.read())
    assert none[TOKENS] == 11
    assert WAITING not in none


@pytest.mark.parametrize("mode", ["all", "liveall", "min", "max", "sum", "livesum", "mostrecent", "livemostrecent"])
def test_gauges_of_every_mode_end_with_their_process(mode: str, tmp_path: Path) -> None:
    locks = {pid: Lock(tmp_path, pid) for pid in (A, B)}
    for pid, number in ((A, 1), (B, 10)):
        Writer(tmp_path, pid, gauge_mode=mode).waiting.set(number)
    live = {frozenset(labels): value for labels, value in read(tmp_path).named("vllm:num_requests_waiting").items()}
    if mode.endswith("all"):
        assert {dict(labels)["pid"]: value for labels, value in live.items()} == {str(A): 1, str(B): 10}
    else:
        assert list(live.values()) == [{"min": 1, "max": 10}.get(mode, 11)]
    for lock in locks.values():
        lock.end()
    assert read(tmp_path).named("vllm:num_requests_waiting") == {}


def test_a_lock_tells_whatever_the_process_table_says(tmp_path: Path) -> None:
    """As across containers: a pid that lives elsewhere is none here, and one that is dead there is another's here."""
    lock = Lock(tmp_path, A)
    Writer(tmp_path, A).waiting.set(1)
    Writer(tmp_path, os.getpid(), labels={"model_name": "other", "engine": "0"}).waiting.set(1)
    Lock(tmp_path, os.getpid()).end()
    report = Directory(tmp_path, shared_pid_namespace=True).read()
    assert report.processes == {"live": 1, "dead": 1}
    assert len(samples(report).named("vllm:num_requests_waiting")) == 1
    assert WAITING in samples(report)
    lock.end()


def test_without_lock_and_namespace_gauges_stay_and_it_is_said(tmp_path: Path) -> None:
    for pid, number in ((A, 1), (B, 10)):
        Writer(tmp_path, pid).waiting.set(number)
    report = Directory(tmp_path).read()
    assert report.processes == {"unknown": 2}
    # Perhaps a reload: only the last writer can be the one that lives.
    assert samples(report)[WAITING] == 10


def test_a_shared_pid_namespace_tells(tmp_path: Path) -> None:
    with process(tmp_path) as one:
        assert read(tmp_path, shared_pid_namespace=True)[WAITING] == 1
        one.kill()
        report = Directory(tmp_path, shared_pid_namespace=True).read()
    assert report.processes == {"dead": 1}
    assert WAITING not in samples(report)
    assert samples(report)[TOKENS] == 1


def test_a_zombie_is_dead(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.read()
    while b") Z " not in Path(f"/proc/{child.pid}/stat").read_bytes():
        os.sched_yield()
    Writer(tmp_path, child.pid).waiting.set(1)
    assert Directory(tmp_path, shared_pid_namespace=True).read().processes == {"dead": 1}
    child.wait()
    child.stdout.close()


def test_a_process_that_another_reused_the_pid_of_shows_no_gauges(tmp_path: Path) -> None:
    """Of a stock backend: nothing but the times tells that the values are not this process's."""
    for mode in ("mostrecent", "sum"):
        writer = Writer(tmp_path, os.getpid(), gauge_mode=mode, labels={"model_name": mode, "engine": "0"})
        writer.waiting.set(1)
        writer.tokens.inc(5)
    assert len(read(tmp_path, shared_pid_namespace=True).named("vllm:num_requests_waiting")) == 2
    _make_older(tmp_path)
    page = read(tmp_path, shared_pid_namespace=True)
    assert page.named("vllm:num_requests_waiting") == {}
    assert sum(page.named("vllm:generation_tokens_total").values()) == 10


def _make_older(directory: Path) -> None:
    """As if written long before this process started."""
    import struct

    for file in directory.glob("gauge_*.db"):
        data = bytearray(file.read_bytes())
        (used,) = struct.unpack_from("i", data)
        at = 8
        while at < used:
            (length,) = struct.unpack_from("i", data, at)
            at += 4 + length + 8 - (length + 4) % 8 + 16
            value, when = struct.unpack_from("dd", data, at - 16)
            struct.pack_into("dd", data, at - 16, value, 1e9 if when else 0.0)
        file.write_bytes(data)
        os.utime(file, (1e9, 1e9))


def test_a_reused_pid_does_not_continue_an_old_file(tmp_path: Path) -> None:
    directory = Directory(tmp_path, compact_after=100)
    lock = Lock(tmp_path, A)
    old = Writer(tmp_path, A)
    old.tokens.inc(5)
    old.waiting.set(3)
    assert samples(directory.read())[TOKENS] == 5
    lock.end()
    assert samples(directory.read())[TOKENS] == 5
    assert list(tmp_path.glob(f"*_{A}.db")) == []
    # The same pid again, before it holds its lock.
    new = Writer(tmp_path, A)
    page = samples(directory.read())
    assert page[TOKENS] == 5
    assert WAITING not in page
    new.tokens.inc(2)
    assert samples(directory.read())[TOKENS] == 7
    assert read(tmp_path)[TOKENS] == 7


def test_what_a_backend_put_aside_counts_once(tmp_path: Path) -> None:
    """It found files under its own pid; nobody had looked at the directory in between."""
    old = Writer(tmp_path, A)
    old.tokens.inc(5)
    (tmp_path / f"counter_{A}.db").rename(tmp_path / f"counter_ended-p{A}-1f.db")
    Writer(tmp_path, A).tokens.inc(2)
    directory = Directory(tmp_path, compact_after=100)
    for _ in range(3):
        assert samples(directory.read())[TOKENS] == 7
    assert read(tmp_path)[TOKENS] == 7


class TestSeveralProcessesWithTheSameSeries:
    def test_are_summed_and_it_is_said(self, tmp_path: Path) -> None:
        locks = [Lock(tmp_path, pid) for pid in (A, B)]
        for pid, number in ((A, 1), (B, 10)):
            writer = Writer(tmp_path, pid)
            writer.tokens.inc(number)
            writer.waiting.set(number)
            writer.usage.set(number / 20)
            writer.ttft.observe(0.5)
        report = Directory(tmp_path).read()
        page = samples(report)
        assert (page[TOKENS], page[WAITING], page[bucket("1.0")]) == (11, 11, 2)
        # A share of a cache each: the fuller one, not more than all of it.
        assert page[USAGE] == 0.5
        assert report.combined.shared == 4
        locks[0].end()
        assert Directory(tmp_path).read().combined.shared == 0

    def test_are_told_apart_by_a_label(self, tmp_path: Path) -> None:
        locks = [Lock(tmp_path, pid) for pid in (A, B)]
        for pid, number in ((A, 1), (B, 10)):
            writer = Writer(tmp_path, pid)
            writer.tokens.inc(number)
            writer.usage.set(number / 20)
            writer.ttft.observe(0.5)
        report = Directory(tmp_path, with_places=True).read()
        page = samples(report)
        assert _by_place(page, "vllm:generation_tokens_total") == {"0": 1, "1": 10}
        assert _by_place(page, "vllm:kv_cache_usage_perc") == {"0": 0.05, "1": 0.5}
        assert _by_place(page, f"{TTFT}_count") == {"0": 1, "1": 1}
        assert report.combined.shared == 0
        for lock in locks:
            lock.end()

    def test_keep_their_places_over_deaths_and_restarts(self, tmp_path: Path) -> None:
        def places() -> dict[str, float]:
            page = read(tmp_path, with_places=True, compact_after=2)
            return _by_place(page, "vllm:generation_tokens_total")

        locks = {pid: Lock(tmp_path, pid) for pid in (A, B)}
        for pid, number in ((A, 1), (B, 10)):
            Writer(tmp_path, pid).tokens.inc(number)
        assert places() == {"0": 1, "1": 10}
        locks[A].end()
        assert places() == {"0": 1, "1": 10}
        # Takes the place that is free, and goes on with its counters.
        locks[C] = Lock(tmp_path, C)
        Writer(tmp_path, C).tokens.inc(100)
        assert places() == {"0": 101, "1": 10}
        locks[B].end()
        locks[C].end()
        assert places() == {"0": 101, "1": 10}
        assert list(tmp_path.glob("*.db")) == []
        locks[B] = Lock(tmp_path, B)
        Writer(tmp_path, B).tokens.inc(1000)
        assert places() == {"0": 1101, "1": 10}
        locks[B].end()


def _by_place(page: Samples, name: str) -> dict[str, float]:
    return {dict(labels)["process"]: value for labels, value in page.named(name).items()}


def test_histograms_with_other_buckets_give_no_wrong_counts(tmp_path: Path) -> None:
    for pid, buckets in ((A, (0.1, 1.0, 10.0)), (B, (0.2, 1.0, 20.0))):
        writer = Writer(tmp_path, pid, buckets=buckets)
        for value in (0.15, 0.9, 5, 15, 100):
            writer.ttft.observe(value)
    report = Directory(tmp_path).read()
    page = samples(report)
    counts = {dict(labels)["le"]: value for labels, value in page.named(f"{TTFT}_bucket").items()}
    # Only these bounds are known for every observation; a union would say 1 + 1 below 0.2.
    assert counts == {"1.0": 4, "+Inf": 10}
    assert page[f'{TTFT}_count{{engine="0",model_name="m"}}'] == 10
    assert page[f'{TTFT}_sum{{engine="0",model_name="m"}}'] == pytest.approx(242.1)
    assert report.combined.conflicts == {(TTFT, "buckets"): 1}


def test_they_stay_apart_in_the_compacted_file(tmp_path: Path) -> None:
    for pid, buckets in ((A, (0.1, 1.0)), (B, (0.2, 1.0))):
        Writer(tmp_path, pid, buckets=buckets).ttft.observe(0.15)
        Lock(tmp_path, pid).end()
    before = read(tmp_path)
    assert Directory(tmp_path, compact_after=1).read().compactions == 1
    after = read(tmp_path)
    assert {k: v for k, v in after.values.items() if "sum" not in k[0]} == {
        k: v for k, v in before.values.items() if "sum" not in k[0] and not k[0].startswith("vllm:num")
    }


def _half_written(file: Path) -> None:
    """`used` covers an entry that is not there yet."""
    data = bytearray(file.read_bytes())
    data[0:4] = (int.from_bytes(data[0:4], sys.byteorder) + 64).to_bytes(4, sys.byteorder)
    file.write_bytes(data)


def _with_wild_lengths(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[8:12] = (2**31 - 1).to_bytes(4, sys.byteorder)
    file.write_bytes(data)


def _with_keys_of_another(key: bytes) -> Callable[[Path], None]:
    def write(file: Path) -> None:
        data = bytearray(file.read_bytes())
        length = int.from_bytes(data[8:12], sys.byteorder)
        data[12 : 12 + length] = key.ljust(length)
        file.write_bytes(data)

    return write


def _sqlite(file: Path) -> None:
    file.unlink()
    with sqlite3.connect(file) as database:
        database.execute("create table t (a)")
    database.close()


def _fifo(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def _folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def _link(file: Path) -> None:
    file.unlink()
    file.symlink_to("/proc/self/mem")


def _text(file: Path) -> None:
    file.write_text("# HELP a b\na 1\n" * 9)


def _noise(file: Path) -> None:
    noise = random.Random(1).randbytes(4096)
    file.write_bytes((4096).to_bytes(4, sys.byteorder) + noise[4:])


BAD_FILES: dict[str, tuple[str, Callable[[Path], None]]] = {
    "truncated": ("truncated", lambda file: os.truncate(file, 60)),
    "half-written": ("corrupt", _half_written),
    "wild lengths": ("corrupt", _with_wild_lengths),
    "text": ("foreign", _text),
    "random": ("corrupt", _noise),
    "no JSON": ("corrupt", _with_keys_of_another(b"hello")),
    "other JSON": ("corrupt", _with_keys_of_another(b'{"a":1}')),
    "a bad name": ("corrupt", _with_keys_of_another(b'["a b","a b",{},""]')),
    "a bad label": ("corrupt", _with_keys_of_another(b'["a","a",{"b c":""},""]')),
    "a lone surrogate": ("corrupt", _with_keys_of_another(rb'["a","a",{"b":"\ud800"},""]')),
    "no UTF-8": ("corrupt", _with_keys_of_another(b'["a","a",{"b":"\xff"},""]')),
    "an sqlite file": ("foreign", _sqlite),
    "a FIFO": ("foreign", _fifo),
    "a folder": ("foreign", _folder),
    "a link": ("unreadable", _link),
}


@pytest.mark.parametrize("what", BAD_FILES)
def test_a_bad_file_costs_only_itself(what: str, tmp_path: Path) -> None:
    reason, spoil = BAD_FILES[what]
    for pid in (A, B):
        writer = Writer(tmp_path, pid)
        writer.tokens.inc(5)
        writer.ttft.observe(1)
    directory = Directory(tmp_path, compact_after=100)
    assert samples(directory.read())[TOKENS] == 10
    spoil(tmp_path / f"counter_{A}.db")
    for one in (directory, Directory(tmp_path)):
        report = one.read()
        page = samples(report)
        assert {name: problem.reason for name, problem in report.bad.items()} == {f"counter_{A}.db": reason}
        assert page[TOKENS] == 5
        assert page[bucket("+Inf")] == 2


def test_foreign_names_cost_only_themselves(tmp_path: Path) -> None:
    Writer(tmp_path, A).tokens.inc(5)
    with sqlite3.connect(tmp_path / "cache.db") as database:
        database.execute("create table t (a)")
    database.close()
    for name in ("counter_x.db", "gauge_odd_1.db", "counter_1_2.db"):
        (tmp_path / name).write_bytes(b"")
    for name in ("notes.txt", "1.alive.new"):
        (tmp_path / name).write_bytes(b"")
    report = Directory(tmp_path).read()
    assert sorted(report.bad) == ["cache.db", "counter_1_2.db", "counter_x.db", "gauge_odd_1.db"]
    assert samples(report)[TOKENS] == 5


def test_files_that_nobody_may_read_cost_only_themselves(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    for pid in (A, B):
        Writer(tmp_path, pid).tokens.inc(5)
    (tmp_path / f"counter_{A}.db").chmod(0)
    with _unprivileged(tmp_path):
        report = Directory(tmp_path).read()
    assert report.bad[f"counter_{A}.db"].reason == "unreadable"
    assert samples(report)[TOKENS] == 5


class _unprivileged:
    """As a user whom file modes stop, also where the tests run as root."""

    def __init__(self, directory: Path) -> None:
        self._parents = [path for path in (directory, *directory.parents) if path.stat().st_uid == os.geteuid()]
        self._modes = [path.stat().st_mode for path in self._parents]

    def __enter__(self) -> None:
        self._was = os.geteuid()
        if self._was == 0:
            for path, mode in zip(self._parents, self._modes, strict=True):
                path.chmod(mode | 0o055)
            os.seteuid(65534)

    def __exit__(self, *_: object) -> None:
        if self._was == 0:
            os.seteuid(0)
            for path, mode in zip(self._parents, self._modes, strict=True):
                path.chmod(mode)


def test_a_file_that_was_only_just_made_is_empty(tmp_path: Path) -> None:
    Writer(tmp_path, A).tokens.inc(5)
    (tmp_path / f"counter_{B}.db").write_bytes(b"")
    (tmp_path / f"histogram_{B}.db").write_bytes(bytes(65536))
    (tmp_path / f"gauge_mostrecent_{B}.db").write_bytes(b"\x08" + bytes(3))
    report = Directory(tmp_path).read()
    assert report.bad == {}
    assert samples(report)[TOKENS] == 5


def test_a_histogram_that_is_only_just_being_made_is_absent(tmp_path: Path) -> None:
    """Its buckets are written one by one."""
    Writer(tmp_path, A).ttft.observe(1)
    file = tmp_path / f"histogram_{A}.db"
    whole = file.read_bytes()
    used = int.from_bytes(whole[:4], sys.byteorder)
    directory = Directory(tmp_path)
    seen = set()
    for end in range(8, used + 1, 8):
        file.write_bytes(end.to_bytes(4, sys.byteorder) + whole[4:])
        report = directory.read()
        page = samples(report)
        if not report.bad:
            assert page.named(f"{TTFT}_count") in ({}, {frozenset({("engine", "0"), ("model_name", "m")}): 1})
            seen.add(len(page.named(f"{TTFT}_bucket")))
    assert seen == {0, 4}


def test_files_grow_and_get_new_series(tmp_path: Path) -> None:
    directory = Directory(tmp_path)
    Writer(tmp_path, A).tokens.inc(1)
    assert samples(directory.read())[TOKENS] == 1
    for i in range(400):
        writer = Writer(tmp_path, B, labels={"model_name": f"a model with a long name {i}" * 5, "engine": "0"})
        writer.tokens.inc(i)
        if i % 100 == 0:
            assert directory.read().bad == {}
    page = samples(directory.read())
    assert sum(page.named("vllm:generation_tokens_total").values()) == 1 + sum(range(400))
    assert (tmp_path / f"counter_{B}.db").stat().st_size > 65536


def test_a_directory_that_is_not_there_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(DirectoryError, match="nowhere cannot be read: No such file"):
        Directory(tmp_path / "nowhere").read()
    (tmp_path / "file").write_text("")
    with pytest.raises(DirectoryError, match="file cannot be read: Not a directory"):
        Directory(tmp_path / "file").read()
    assert Directory(tmp_path).read().families == []


def test_limits(tmp_path: Path) -> None:
    Writer(tmp_path, A).tokens.inc(1)
    report = Directory(tmp_path, max_bytes=1024).read()
    assert {problem.reason for problem in report.bad.values()} == {"too_large"}
    with pytest.raises(DirectoryError, match="max_samples"):
        Directory(tmp_path, max_samples=3).read()


class TestCompaction:
    NUMBER = 30

    @pytest.fixture
    def dead(self, tmp_path: Path) -> tuple[Path, dict[Any, list[float]]]:
        """A directory of dead processes, and what it shows."""
        chance = random.Random(7)
        for i in range(self.NUMBER):
            writer = Writer(tmp_path, A + i)
            # Sums that floating point rounds differently in another order.
            writer.tokens.inc(chance.random() * 10 ** chance.randrange(-3, 9))
            for _ in range(5):
                writer.ttft.observe(chance.random() * 10 ** chance.randrange(-2, 3))
            writer.waiting.set(1)
            Lock(tmp_path, A + i).end()
        return tmp_path, read(tmp_path).values

    def test_many_files_become_one(self, dead: tuple[Path, Any]) -> None:
        path, before = dead
        directory = Directory(path, compact_after=10)
        for _ in range(3):
            report = directory.read()
            assert samples(report).values == before
            assert (report.compactions, report.tidying) == (1, None)
        assert sorted(file.name for file in path.iterdir()) == [compacted.NAME, "maintenance.lock"]
        # Also for one that starts now.
        assert read(path).values == before

    def test_few_files_are_put_aside_only(self, dead: tuple[Path, Any]) -> None:
        path, before = dead
        directory = Directory(path, compact_after=1000)
        assert samples(directory.read()).values == before
        assert len(list(path.glob("*_ended-*.db"))) == 2 * self.NUMBER
        assert list(path.glob("*.alive")) == list(path.glob("gauge*")) == []
        assert samples(directory.read()).values == before

    def test_zero_changes_nothing(self, dead: tuple[Path, Any]) -> None:
        path, before = dead
        names = sorted(file.name for file in path.iterdir())
        directory = Directory(path, compact_after=0)
        for _ in range(2):
            assert samples(directory.read()).values == before
        assert sorted(file.name for file in path.iterdir()) == names

    def test_a_crash_at_any_point_loses_nothing_and_counts_nothing_twice(
        self, dead: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        path, before = dead
        for file in sorted(path.iterdir()):
            # Fewer, so that every step can be the last one.
            if not file.name.split(".")[0].endswith(tuple(str(A + i) for i in range(3))):
                file.unlink()
        before = read(path).values
        original = {name: getattr(os, name) for name in ("rename", "unlink", "fsync")}
        steps = 0
        while True:
            copy = tmp_path_factory.mktemp("crash")
            for file in path.iterdir():
                (copy / file.name).write_bytes(file.read_bytes())
            left = steps

            def crashing(name: str) -> Callable[..., object]:
                def call(*arguments: Any, **options: Any) -> object:
                    nonlocal left
                    if left == 0:
                        raise _Crash
                    left -= 1
                    return original[name](*arguments, **options)

                return call

            for name in original:
                monkeypatch.setattr(os, name, crashing(name))
            crashed = True
            try:
                Directory(copy, compact_after=1).read()
                crashed = False
            except _Crash:
                pass
            for name, function in original.items():
                monkeypatch.setattr(os, name, function)
            assert read(copy).values == before, steps
            # Whoever tidies next ends it.
            survivor = Directory(copy, compact_after=1)
            for _ in range(2):
                report = survivor.read()
                assert samples(report).values == before, steps
                assert report.tidying is None
            assert sorted(file.name for file in copy.iterdir()) == [compacted.NAME, "maintenance.lock"]
            if not crashed:
                break
            steps += 1
        assert steps > 15

    def test_what_grows_back_is_compacted_again(self, dead: tuple[Path, Any]) -> None:
        path, _ = dead
        directory = Directory(path, compact_after=4)
        total = samples(directory.read())[TOKENS]
        for i in range(20):
            lock = Lock(path, B)
            Writer(path, B).tokens.inc(i)
            directory.read()
            lock.end()
            total += i
            report = directory.read()
            assert samples(report)[TOKENS] == pytest.approx(total)
            assert report.tidying is None
            assert len(list(path.glob("*.db"))) <= 4

    def test_no_counter_goes_backwards(self, tmp_path: Path) -> None:
        """While processes are born, count, die and are compacted."""
        chance = random.Random(3)
        directory = Directory(tmp_path, compact_after=5)
        live: dict[int, tuple[Lock, Writer]] = {}
        last: dict[Any, float] = {}

        def check() -> None:
            nonlocal last
            now = {
                key: values[0]
                for key, values in samples(directory.read()).values.items()
                if key[0].endswith(("_total", "_bucket", "_sum", "_count"))
            }
            assert all(now[key] >= value for key, value in last.items())
            last = now

        for step in range(400):
            if len(live) < 3 or chance.random() < 0.1:
                pid = A + step % 50
                if pid not in live:
                    live[pid] = (Lock(tmp_path, pid), Writer(tmp_path, pid))
            for _, writer in live.values():
                writer.tokens.inc(chance.random())
                writer.ttft.observe(chance.random() / 3)
            check()
            # Nothing is counted any more until the next look: not even the last digit may be smaller then.
            if chance.random() < 0.2:
                lock, _ = live.pop(chance.choice(list(live)))
                lock.end()
            if chance.random() < 0.05:
                directory = Directory(tmp_path, compact_after=5)
            check()

    def test_only_one_of_several_proxies_tidies_and_all_see_the_same(self, tmp_path: Path) -> None:
        total = 0
        wrong: list[float] = []
        stop = threading.Event()

        def watch() -> None:
            directory = Directory(tmp_path, compact_after=4)
            last = 0.0
            while not stop.is_set():
                now = sum(samples(directory.read()).named("vllm:generation_tokens_total").values())
                if now < last or now > total + 1:
                    wrong.append(now)
                last = now

        watchers = [threading.Thread(target=watch) for _ in range(3)]
        for watcher in watchers:
            watcher.start()
        for i in range(60):
            lock = Lock(tmp_path, A + i)
            writer = Writer(tmp_path, A + i)
            total += 1
            writer.tokens.inc(1)
            lock.end()
        stop.set()
        for watcher in watchers:
            watcher.join()
        assert wrong == []
        assert read(tmp_path)[TOKENS] == total == 60

    def test_a_file_that_cannot_be_read_is_kept(self, dead: tuple[Path, Any]) -> None:
        path, _ = dead
        _half_written(path / f"counter_{A}.db")
        before = read(path).values
        directory = Directory(path, compact_after=10)
        for _ in range(2):
            report = directory.read()
            assert samples(report).values == before
            (name,) = report.bad
            assert (path / name).exists()

    @pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"version":1}', b'{"version":2}', b"\xff"])
    def test_a_damaged_compacted_file_costs_only_itself(self, content: bytes, dead: tuple[Path, Any]) -> None:
        path, before = dead
        (path / compacted.NAME).write_bytes(content)
        report = Directory(path, compact_after=10).read()
        assert list(report.bad) == [compacted.NAME]
        assert samples(report).values == before
        assert (path / compacted.NAME).read_bytes() == content

    def test_a_directory_that_cannot_be_written_to_is_read_all_the_same(self, dead: tuple[Path, Any]) -> None:
        path, before = dead
        path.chmod(0o555)
        with _unprivileged(path):
            directory = Directory(path, compact_after=10)
            for _ in range(2):
                report = directory.read()
                assert samples(report).values == before
                assert report.tidying is not None
                assert "Permission denied" in report.tidying
        path.chmod(0o755)


class _Crash(BaseException):
    pass


def test_reading_leaves_no_file_open(tmp_path: Path) -> None:
    writer = Writer(tmp_path, A)
    Lock(tmp_path, A).end()
    (tmp_path / f"counter_{B}.db").write_bytes(b"SQLite format 3\0")
    # What earlier tests have left to the collector must not go meanwhile.
    gc.collect()
    before = _open_files()
    for compact_after in (0, 1):
        Directory(tmp_path, compact_after=compact_after).read()
    assert _open_files() == before
    del writer


def _open_files() -> int:
    return len([name for name in os.listdir("/proc/self/fd") if Path("/proc/self/fd", name).is_symlink()])


@pytest.mark.long
@pytest.mark.parametrize("compact_after", [0, 100])
def test_2000_dead_processes(compact_after: int, tmp_path: Path) -> None:
    for i in range(20):
        writer = Writer(tmp_path, A + i)
        writer.tokens.inc(i / 7)
        writer.ttft.observe(i / 2)
        for file in list(tmp_path.glob(f"*_{A + i}.db")):
            data = file.read_bytes()
            for pid in range(A + i + 20, A + 2000, 20):
                (tmp_path / f"{file.name.rpartition('_')[0]}_{pid}.db").write_bytes(data)
    for pid in range(A, A + 2000):
        (tmp_path / f"{pid}.alive").write_bytes(b"")
    before = reference(tmp_path).values
    directory = Directory(tmp_path, compact_after=compact_after)
    for _ in range(3):
        report = directory.read()
        found = samples(report).values
        assert {key: values for key, values in before.items() if key[0].endswith(("_bucket", "_count"))} == {
            key: values for key, values in found.items() if key[0].endswith(("_bucket", "_count"))
        }
        assert samples(report)[TOKENS] == pytest.approx(100 * sum(range(20)) / 7)
        assert samples(report).named("vllm:num_requests_waiting") == {}
    assert len(list(tmp_path.iterdir())) == (2 if compact_after else 8000)
