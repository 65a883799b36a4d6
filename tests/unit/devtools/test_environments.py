"""What pip says when it fails, turned into what to do (each text is asked of a real pip), and what the package of this
checkout is built by."""

import dataclasses
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from devtools import environments, pythons
from devtools.environments import check_compiler, explain_pip
from devtools.errors import DevError
from devtools.paths import LOCKS


def pip_says(lock: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "pip", "--isolated", "--retries", "1", "--no-cache-dir", "install", "--dry-run"]
    command += ["--ignore-installed", "--no-deps", "--require-hashes", "--only-binary", ":all:", "-r", str(lock)]
    # Without this machine's own settings.
    env = os.environ | {"PIP_CONFIG_FILE": os.devnull}
    ended = subprocess.run([*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
    assert ended.returncode != 0, ended.stdout
    return ended.stdout


@pytest.fixture
def empty_index(tmp_path: Path) -> str:
    (tmp_path / "empty").mkdir()
    return f"file://{tmp_path}/empty"


def test_no_cpu_build_of_torch(empty_index: str) -> None:
    lock = LOCKS / "torch.txt"
    said = explain_pip(pip_says(lock, "--index-url", empty_index), lock)
    assert said.startswith("pip's configured sources have no torch==")
    assert "PIP_EXTRA_INDEX_URL" in said


def test_no_wheel_of_something_else(empty_index: str) -> None:
    lock = LOCKS / "gateway.txt"
    said = explain_pip(pip_says(lock, "--index-url", empty_index), lock)
    assert said.startswith("pip's configured sources have no ")
    assert "as a wheel" in said


def test_an_unreachable_index() -> None:
    lock = LOCKS / "gateway.txt"
    said = explain_pip(pip_says(lock, "--index-url", "http://127.0.0.1:1/simple"), lock)
    assert said.startswith("pip cannot reach its package index")


def test_another_file_than_the_locked_one(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    (wheels / "thing-1.0-py3-none-any.whl").write_bytes(b"changed")
    lock = tmp_path / "lock.txt"
    lock.write_text(f"thing==1.0 --hash=sha256:{'0' * 64}\n")
    said = explain_pip(pip_says(lock, "--no-index", "--find-links", str(wheels)), lock)
    assert "is not the file that lock.txt names" in said


def test_no_space() -> None:
    assert "TVS_HOME" in explain_pip("ERROR: Could not install: [Errno 28] No space left on device", LOCKS / "dev.txt")


def test_anything_else_is_quoted() -> None:
    assert explain_pip("noise\nERROR: something odd\n", LOCKS / "dev.txt") == "pip failed: something odd"


def test_the_locks_name_no_index() -> None:
    for lock in LOCKS.glob("*.txt"):
        text = lock.read_text()
        assert "://" not in text, lock
        assert "--hash=sha256:" in text, lock


def test_the_dev_lock_holds_what_the_services_run() -> None:
    def pinned(name: str) -> set[str]:
        # Without the markers: what one part needs on some platforms, another may need on all.
        return {line.split()[0] for line in (LOCKS / name).read_text().splitlines() if "==" in line}

    for part in ("gateway.txt", "metrics-proxy.txt", "prefetch.txt"):
        assert pinned(part) <= pinned("dev.txt")


def own_python() -> pythons.Python:
    found = pythons.probe(sys.executable)
    assert found is not None
    return found


def test_without_a_compiler_it_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DevError, match=r"no g\+\+; install it \(.* package g\+\+\)"):
        check_compiler(own_python(), environments.PROCESSORS)


def test_without_headers_of_python_their_package_is_named(tmp_path: Path) -> None:
    python = own_python()
    check_compiler(python, environments.RELAY)
    with pytest.raises(DevError, match=rf"no C headers; install them \(.* python{python.minor}-dev\)"):
        check_compiler(dataclasses.replace(python, headers=tmp_path), environments.RELAY)


def test_without_a_compiler_the_services_have_no_relay(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(environments, "_ensure", lambda recipe: environments.Environment(tmp_path / recipe.name))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert environments.services().folder == tmp_path / "services"
    assert "The gateway's native relay is built on this machine, which has no g++" in capsys.readouterr().err


@pytest.mark.parametrize("package", [environments.PROCESSORS, environments.RELAY])
def test_a_package_is_built_again_when_a_source_of_it_changes(tmp_path: Path, package: environments.Package) -> None:
    copy = dataclasses.replace(package, folder=tmp_path / "package")
    shutil.copytree(package.folder, copy.folder)
    before = environments._wheel_folder(own_python(), package)
    assert environments._wheel_folder(own_python(), copy) == before
    (copy.folder / package.name / "__pycache__").mkdir(exist_ok=True)
    (copy.folder / package.name / "__pycache__" / "rows.cpython-311.pyc").write_bytes(b"")
    assert environments._wheel_folder(own_python(), copy) == before
    for place in ("src/third.cpp", f"{package.name}/third.py"):
        (copy.folder / place).write_text("")
        after = environments._wheel_folder(own_python(), copy)
        assert after != before
        before = after
