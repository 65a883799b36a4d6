"""What a diagnosis shows while it warms the engine, and how it ends early."""

import os
import signal
from pathlib import Path

import pytest

from bench.diagnose import run
from bench.diagnose.frontend import Frontend
from bench.diagnose.run import Settings, measure
from bench.load.check import Outcome
from bench.load.run import Progress, Run, Target
from bench.status_line import StatusLine
from bench.upstream.running import running_upstream
from bench.upstream.script import Model
from tests.unit.bench.test_load_run import on_a_terminal, until


class Line(StatusLine):
    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []
        self.notes: list[str] = []

    def say(self, what: str) -> None:
        self.said.append(what)

    def note(self, sentence: str) -> None:
        self.notes.append(sentence)


@pytest.mark.parametrize("is_slow", [False, True])
def test_warming_says_how_far_it_is_and_that_it_is_slow(is_slow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(target, load, arrivals, limit, processes, show):  # type: ignore[no-untyped-def]
        for ended in (0, 0, 3, 8):
            show(Progress(8, ended))
        return Run([Outcome("x", 0.0, 1.0, 200, ttft=0.1)])

    monkeypatch.setattr(run, "run_in_processes", load)
    line, seconds = Line(), -1.0 if is_slow else 1000.0
    settings = Settings(Target("http://127.0.0.1:1"), "m", [1], seconds, 1000, 8, 1)
    next(measure(settings, Frontend(frozenset()), line))
    title = "preprocess-heavy: warming the prefix cache"
    assert line.said[0] == title
    counts = [said.removeprefix(f"{title}, ").partition(" of 16 requests, ")[0] for said in line.said[1:]]
    assert counts == ["0", "0", "3", "8", "8", "8", "11", "16"]
    quicker = "--concurrency 1,8 --seconds 4 --prompt-bytes 500 --answer-tokens 16"
    assert [note.endswith(f"quicker: {quicker}") for note in line.notes] == [True] * is_slow


def test_ctrl_c_ends_it_without_traces(tmp_path: Path) -> None:
    with running_upstream([Model("bench", most_tokens=300, tokens_per_second=50)]) as upstream:
        flags = ["--url", upstream.url, "--answer-tokens", "8", "--report", str(tmp_path / "r.html")]
        with on_a_terminal("diagnose", *flags) as (done, terminal):
            shown = until(terminal, b"1 streams: ")
            os.killpg(done.pid, signal.SIGINT)
            assert done.wait(30) == 130
            os.set_blocking(terminal, False)
            shown += until(terminal, b"Traceback")
    assert b"warming the prefix cache, 16 of 16 requests" in shown
    assert b"Traceback" not in shown
    assert b"Process " not in shown
