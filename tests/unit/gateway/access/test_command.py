"""`python -m gateway keys`: what it makes of the file, also of one that was written by hand."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from devtools.paths import ROOT
from gateway.access import command
from gateway.access.keys import Keys, read_entries


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys.yaml"


def run(file: Path, *arguments: str) -> int:
    return command.main([*arguments, "--keys-file", str(file)])


def made(file: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(file, "new", *arguments) == 0
    output = capsys.readouterr().out
    assert output.count("\n") == 1, "the key alone, for a pipe"
    return output.strip()


def refused(file: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(file, *arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("gateway keys: ")
    assert err.endswith(".\n")
    assert err.count("\n") == 1
    return err


def test_a_key_is_made_shown_once_and_works(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = made(file, capsys, "team-a", "--models", "a, b", "--requests-per-minute", "5", "--priority", "-1")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert key[12:] not in file.read_text()
    found = Keys(read_entries(file)).find(key.encode())
    assert found is not None
    assert (found.name, found.models, found.priority) == ("team-a", frozenset({"a", "b"}), -1)
    assert (found.limits.requests_per_minute, found.limits.tokens_per_minute, found.admin) == (5, None, False)
    assert run(file, "list") == 0
    output = capsys.readouterr().out
    assert output == f"team-a gw-{key[3:11]}-…; models: a, b; requests_per_minute: 5; priority: -1\n"
    assert os.listdir(file.parent) == ["keys.yaml"], "no scratch file is left"


def test_names_that_yaml_reads_otherwise(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("yes", "null", "123", "1.5", "~x".strip("~"), "2026-01-01"):
        made(file, capsys, name)
    assert list(read_entries(file)) == ["yes", "null", "123", "1.5", "x", "2026-01-01"]
    assert run(file, "revoke", "null") == 0
    assert "null" not in read_entries(file)


def test_what_was_written_by_hand_stays(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b", "c"):
        made(file, capsys, name)
    a, b, c = read_entries(file).values()
    text = (
        f"# whose is whose\na: {{id: '{a.id}', sha256: {a.sha256}}}\n\n"
        f"# of the team b\nb:  # soon to go\n  id: '{b.id}'\n  sha256: {b.sha256}\n  models:\n  - x\n\n"
        f"# the last one\nc: {{id: '{c.id}',\n  sha256: {c.sha256}}}"
    )
    file.write_text(text)
    file.chmod(0o640)
    assert run(file, "revoke", "b") == 0
    assert file.read_text() == (
        f"# whose is whose\na: {{id: '{a.id}', sha256: {a.sha256}}}\n\n# of the team b\n"
        f"\n# the last one\nc: {{id: '{c.id}',\n  sha256: {c.sha256}}}"
    )
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    made(file, capsys, "d")
    assert list(read_entries(file)) == ["a", "c", "d"]
    for name in ("a", "d", "c"):
        assert run(file, "revoke", name) == 0
    assert read_entries(file) == {}
    assert "# the last one" in file.read_text()


def test_a_file_that_cannot_be_changed_line_by_line_is_left_alone(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        made(file, capsys, name)
    a, b = read_entries(file).values()
    text = f"{{a: {{id: '{a.id}', sha256: {a.sha256}}}, b: {{id: '{b.id}', sha256: {b.sha256}}}}}\n"
    file.write_text(text)
    assert "edit it by hand" in refused(file, capsys, "revoke", "a")
    assert "edit it by hand" in refused(file, capsys, "new", "c")
    assert file.read_text() == text
    assert os.listdir(file.parent) == ["keys.yaml"]


def test_a_link_stays_a_link(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = file.parent / "real.yaml"
    target.write_text("")
    file.symlink_to("real.yaml")
    made(file, capsys, "a")
    assert file.is_symlink()
    assert list(read_entries(target)) == ["a"]


def test_what_cannot_be_done_is_one_sentence(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = made(file, capsys, "a")
    before = file.read_text()
    assert "There is a key a in" in refused(file, capsys, "new", "a")
    assert "There is no key 'b' in" in refused(file, capsys, "revoke", "b")
    assert "it is a key itself" in refused(file, capsys, "new", key)
    assert "1 to 64 letters" in refused(file, capsys, "new", "a b")
    assert "requests_per_minute" in refused(file, capsys, "new", "b", "--requests-per-minute", "0")
    assert "--requests-per-minute" in refused(file, capsys, "new", "b", "--requests-per-minute", "x")
    assert "new|list|revoke" in refused(file, capsys, "give")
    assert file.read_text() == before
    file.write_text("a: 5\n")
    assert "The key a in" in refused(file, capsys, "list")
    assert "cannot be opened" in refused(file.parent / "nowhere" / "keys.yaml", capsys, "new", "a")
    assert "cannot be read" in refused(file.parent / "none.yaml", capsys, "revoke", "a")
    assert command.main(["list"]) == 2
    assert "Give --keys-file" in capsys.readouterr().err


def test_as_a_process_with_the_file_from_the_environment(file: Path) -> None:
    def keys(*arguments: str) -> str:
        return subprocess.run(
            [sys.executable, "-m", "gateway", "keys", *arguments],
            cwd=ROOT, env=os.environ | {"GATEWAY_KEYS_FILE": str(file)}, capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip

    key = keys("new", "ops", "--admin").strip()
    found = Keys(read_entries(file)).find(key.encode())
    assert found is not None
    assert found.admin
    assert keys("list") == f"ops gw-{key[3:11]}-…; admin: True\n"
