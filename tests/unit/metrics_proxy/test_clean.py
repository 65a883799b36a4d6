"""`python -m metrics_proxy clean`."""

import os
import subprocess
import sys
from pathlib import Path

from devtools.paths import ROOT
from metrics_proxy.directory import Directory
from tests.support.metrics_writer import Writer, process


def clean(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "metrics_proxy", "clean", *arguments]
    return subprocess.run(command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, timeout=60)


def test_it_removes_what_a_run_leaves_and_nothing_else(tmp_path: Path) -> None:
    for i in range(3):
        Writer(tmp_path, 5_000_001 + i).tokens.inc(1)
        (tmp_path / f"{5_000_001 + i}.alive").write_bytes(b"")
        Directory(tmp_path, compact_after=(3, 100, 0)[i]).read()
    for name in ("5.alive.new", "compacted.json.tmp"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "notes.db").write_text("mine")
    ended = clean(str(tmp_path))
    assert (ended.returncode, ended.stderr) == (0, "")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["maintenance.lock", "notes.db"]
    assert Directory(tmp_path).read().families == []


def test_the_directory_is_the_variables_and_made_if_need_be(tmp_path: Path) -> None:
    ended = clean(PROMETHEUS_MULTIPROC_DIR=str(tmp_path / "a" / "b"))
    assert ended.returncode == 0
    assert (tmp_path / "a" / "b").is_dir()


def test_not_while_a_process_writes(tmp_path: Path) -> None:
    with process(tmp_path, "--alive") as one:
        ended = clean(str(tmp_path))
        assert ended.returncode == 1
        assert f"in use: the process {one.pid}" in ended.stderr
        one.add(1)
    assert clean(str(tmp_path)).returncode == 0


def test_what_is_wrong_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for arguments, code in (([str(tmp_path / "file")], 1), ([], 2), ([""], 2)):
        ended = clean(*arguments, PROMETHEUS_MULTIPROC_DIR="")
        assert ended.returncode == code
        (line,) = ended.stderr.splitlines()
        assert line.startswith("metrics_proxy: ")


def test_a_folder_in_the_place_of_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "summary_3.db").mkdir()
    ended = clean(str(tmp_path))
    assert ended.returncode == 1
    assert "summary_3.db is a folder" in ended.stderr
