"""In CI a skipped test fails the run, unless it is marked `gpu`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from devtools.paths import ROOT

TESTS = """
import pytest

@pytest.mark.gpu
def test_gpu():
    pytest.skip("no GPU here")

def test_by_call():
    pytest.skip("no network here")

@pytest.mark.skip(reason="not today")
def test_by_mark():
    pass

@pytest.mark.xfail(strict=True)
def test_known_fault():
    assert False
"""
WHOLE_MODULE = 'import pytest\npytest.importorskip("no_such_module_anywhere")\n'


def run(folder: Path, ci: str, tests: str) -> str:
    (folder / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (folder / "test_some.py").write_text(tests)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = gpu: needs a GPU\n")
    command = [sys.executable, "-m", "pytest", "-ra", "-p", "no:cacheprovider", str(folder)]
    return subprocess.run(command, cwd=folder, env=os.environ | {"CI": ci}, capture_output=True, text=True).stdout


def test_in_ci(tmp_path: Path) -> None:
    output = run(tmp_path, "true", TESTS)
    assert "In CI only a test marked gpu may be skipped. Skipped: no network here" in output
    assert "In CI only a test marked gpu may be skipped. Skipped: not today" in output
    assert "1 failed, 1 skipped, 1 xfailed, 1 error" in output


def test_in_ci_a_whole_module(tmp_path: Path) -> None:
    output = run(tmp_path, "true", WHOLE_MODULE)
    assert "In CI only a test marked gpu may be skipped. Skipped: could not import 'no_such_module_anywhere'" in output
    assert "1 error" in output


@pytest.mark.parametrize("ci", ["", "false"])
def test_elsewhere_a_skip_says_why(tmp_path: Path, ci: str) -> None:
    output = run(tmp_path, ci, TESTS)
    assert "3 skipped, 1 xfailed" in output
    assert "no network here" in output
