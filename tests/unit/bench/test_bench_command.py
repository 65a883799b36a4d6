"""`python -m bench`: one command for all, and the page that tells of them."""

import argparse
import importlib
import re
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import pytest

from bench import __main__ as bench
from bench.flags import written_file
from devtools.errors import DevError
from devtools.paths import ROOT
from tests.support.permissions import as_somebody

PAGE = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")


def parser(name: str) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser()
    importlib.import_module(f"bench.{name}.command").add_arguments(made)
    return made


def flags(made: argparse.ArgumentParser) -> set[str]:
    return set(re.findall(r"--[a-z-]+", made.format_help()))


@pytest.mark.parametrize("arguments", [[], ["no-such-command"]])
def test_what_there_is_not_ends_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        bench.main(arguments)
    assert ended.value.code == 2
    assert "COMMAND" in capsys.readouterr().err


def test_every_command_is_listed_and_helps(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench.main(["--help"])
    listed = capsys.readouterr().out
    for name in ("load", "diagnose", "parity", "compare", "logits", "metrics", "prefetch"):
        assert f"\n    {name} " in listed
    for name in ("load", "compare"):
        with pytest.raises(SystemExit) as ended:
            bench.main([name, "--help"])
        assert ended.value.code == 0
        assert f"usage: python -m bench {name}" in capsys.readouterr().out


def test_a_command_of_one_file_gets_its_flags(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [])
    with pytest.raises(SystemExit) as ended:
        bench.main(["metrics", "--help"])
    assert ended.value.code == 0
    assert "--scrapes" in capsys.readouterr().out


def test_an_error_is_its_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    module = ModuleType("bench.load.command")

    def main(arguments: argparse.Namespace) -> int:
        raise DevError("There is no compiler.")

    module.add_arguments = lambda parser: None  # type: ignore[attr-defined]
    module.main = main  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "bench.load.command", module)
    assert bench.main(["load"]) == 1
    assert capsys.readouterr().err == "bench load: There is no compiler.\n"


_WRITTEN = [
    ("load", "--json"),
    ("diagnose", "--report"),
    ("diagnose", "--json"),
    ("parity", "--json"),
    ("compare", "--json"),
    ("compare", "--plot"),
    ("compare", "--into"),
    ("egress", "--json"),
    ("egress", "--into"),
    ("large", "--into"),
    ("logits", "--picture"),
]


def refusal(name: str, flag: str, file: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What is said of a file before anything is measured."""
    needed = {
        "load": ["--url", "http://127.0.0.1:1", "--model", "m"],
        "diagnose": ["--url", "http://127.0.0.1:1"],
        "parity": ["--url", "http://127.0.0.1:1", "--against", "http://127.0.0.1:1"],
    }
    with pytest.raises(SystemExit) as ended:
        sys.exit(bench.main([name, *needed.get(name, []), flag, str(file)]))
    assert ended.value.code == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    return shown.err


@pytest.mark.parametrize(("name", "flag"), _WRITTEN)
def test_a_file_that_could_not_be_written_is_told_ahead(
    name: str, flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [])
    # Other tests import it.
    monkeypatch.delitem(sys.modules, f"bench.{name}", raising=False)
    said = refusal(name, flag, tmp_path / "absent" / "file", capsys)
    assert f"there is no folder {tmp_path / 'absent'}; make it, or give another" in said
    assert flag in said


def test_a_file_that_is_a_folder_or_not_ours_is_told_ahead(capsys: pytest.CaptureFixture[str]) -> None:
    assert "/ is a folder; give a file" in refusal("load", "--json", Path("/"), capsys)
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "report"
        file.touch(0o444)
        with as_somebody(Path(name)):
            assert f"{file} cannot be written; give another file" in refusal("load", "--json", file, capsys)


def test_a_page_without_marks_is_told_ahead(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "page.md"
    assert "No such file" in refusal("compare", "--into", file, capsys)
    file.write_text("A page.\n")
    assert "has no lines <!-- egress: begin -->" in refusal("egress", "--into", file, capsys)
    assert file.read_text() == "A page.\n"


def test_files_that_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("x")
    for text in (str(tmp_path / "new"), str(tmp_path / "there"), "new", "/dev/null"):
        assert written_file(text) == Path(text)
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("there", "x")]


def test_the_page_names_every_command_and_no_flag_that_there_is_not() -> None:
    for name in ("load", "diagnose", "parity", "compare"):
        assert f"`python -m bench {name}`" in PAGE
    theirs = {"--host", "--policy", "--prometheus-port", "--worker-urls", "--config"}
    ours = flags(parser("load")) | flags(parser("compare")) | {"--port", "--tokens-per-second", "--triton", "--models"}
    assert set(re.findall(r"--[a-z][a-z-]+", PAGE)) <= ours | theirs


def test_the_page_has_its_measures_and_its_plot() -> None:
    measured = PAGE.partition("<!-- measured: begin -->\n")[2].partition("<!-- measured: end -->")[0]
    assert "| gateway |" in measured
    assert (ROOT / "docs" / "performance.svg").is_file()
