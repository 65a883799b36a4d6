"""The commands for people."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from bench.s3_server import environment
from prefetch.command_line import main
from tests.support.prefetch import Bucket, files_in, noise, safetensors
from tests.support.prefetch_service import command

MODEL = {"config.json": b"{}", "model.safetensors": safetensors(200_000, 1), "tokenizer.json": noise(500)}


@pytest.fixture
def place(tmp_path: Path, bucket: Bucket) -> dict[str, str]:
    """The settings that every command takes from the environment."""
    bucket.put_all(MODEL)
    return {
        "PREFETCH_TARGET": str(tmp_path / "target"),
        "PREFETCH_STATE": str(tmp_path / "state"),
        "PREFETCH_S3_ENDPOINT": bucket.server.url,
        "PREFETCH_RESERVE_BYTES": "0",
    }


class Shell:
    """Runs the short commands without a process of their own."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str, code: int = 0) -> str:
        """What the command says, on stderr if it fails."""
        assert main(arguments) == code
        said = self._capsys.readouterr()
        return said.err or said.out

    def rows(self) -> list[list[str]]:
        return [line.split() for line in self("ls").splitlines()]


@pytest.fixture
def shell(place: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    return Shell(capsys)


def test_from_pull_to_gc(place: dict[str, str], bucket: Bucket, tmp_path: Path, shell: Shell) -> None:
    name = bucket.prefix.split("/")[-3]
    said = command("pull", bucket.source, env=place)
    assert said.returncode == 0, said.stderr
    folder = tmp_path / "target" / name / "1"
    assert said.stdout.startswith(f"{folder}  195.9 KiB, 195.9 KiB read in ")
    assert said.stderr == ""
    assert files_in(folder) == MODEL
    assert ", 0 B read in " in command("pull", bucket.source, env=place).stdout
    command("pull", bucket.source, "--model", "acme/m", "--version", "2", "--pin", env=place)
    assert shell.rows()[0] == ["model", "version", "size", "last", "used", "kept"]
    kept = {(row[0], row[1], row[-1]) for row in shell.rows()[1:]}
    assert kept == {(name, "1", "current"), ("acme/m", "2", "current")}
    command("pull", bucket.source, "--model", "acme/m", "--version", "3", env=place)
    kept = {(row[0], row[1], row[-1]) for row in shell.rows()[1:]}
    assert kept == {(name, "1", "current"), ("acme/m", "2", "pinned"), ("acme/m", "3", "current")}
    low = ["--high-watermark", "0.000001", "--low-watermark", "0.000001"]
    assert shell("gc", *low) == "There is nothing to remove.\n"
    assert shell("unpin", "acme/m", "2") == "acme/m 2 is not pinned any more.\n"
    assert shell("unpin", "acme/m", "2") == "acme/m 2 was not pinned.\n"
    assert shell("gc", "--dry-run", *low) == "acme/m 2 (195.9 KiB) would be removed\n"
    assert (tmp_path / "target/acme/m/2").exists()
    assert shell("gc", *low) == "acme/m 2 (195.9 KiB) removed\n"
    assert not (tmp_path / "target/acme/m/2").exists()
    assert shell("pin", "acme/m") == "acme/m 3 is pinned.\n"
    assert shell("pin", "acme/m", "9", code=1) == f"prefetch: acme/m 9 is not published below {tmp_path / 'target'}.\n"


def test_verify(place: dict[str, str], bucket: Bucket, tmp_path: Path, shell: Shell) -> None:
    (tmp_path / "target").mkdir()
    assert shell("verify") == "Nothing is published.\n"
    assert command("pull", bucket.source, "--model", "m", env=place).returncode == 0
    assert shell("verify", "m", "1") == "m 1: ok\n"
    weights = tmp_path / "target/m/1/model.safetensors"
    weights.chmod(0o644)
    with open(weights, "r+b") as file:
        file.seek(5000)
        file.write(b"damage")
    weights.with_name("config.json").unlink()
    said = shell("verify", code=1)
    assert said == "m 1: config.json cannot be read (No such file or directory); model.safetensors is damaged\n"


def test_a_progress_bar_on_a_terminal(place: dict[str, str], bucket: Bucket) -> None:
    ours, theirs = pty.openpty()
    full = [sys.executable, "-m", "prefetch", "pull", bucket.source, "--model", "m"]
    full += ["--bytes-per-second", "100000", "--part-bytes", "65536"]
    process = subprocess.Popen(full, env=environment(TERM="xterm", **place), stdout=subprocess.PIPE, stderr=theirs)
    os.close(theirs)
    shown = b""
    try:
        while piece := os.read(ours, 4096):
            shown += piece
    except OSError:  # the terminal ends with its last user
        pass
    os.close(ours)
    assert process.wait() == 0
    assert process.stdout
    process.stdout.close()
    assert "copying" in shown.decode()
    assert "━" in shown.decode()
    assert "/s" in shown.decode()


def test_a_failed_pull_says_why(place: dict[str, str], bucket: Bucket) -> None:
    bucket.put("model.safetensors", MODEL["model.safetensors"][:-1])
    said = command("pull", bucket.source, env=place)
    assert said.returncode == 1
    assert said.stdout == ""
    assert said.stderr.startswith("prefetch: model.safetensors is damaged, also when fetched again:")
    assert said.stderr.count("\n") == 1
