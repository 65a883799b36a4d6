"""`python -m bench`: one command for all, and the page that tells of them."""

import argparse
import importlib
import re
import sys
from types import ModuleType

import pytest

from bench import __main__ as bench
from devtools.errors import DevError
from devtools.paths import ROOT

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
