"""The measure of large requests: bodies that a gateway takes, and a table of what each one took."""

import subprocess
import sys

import pytest

from bench import large
from devtools.paths import ROOT
from gateway.openai.schema import LARGE_BODY
from gateway.settings import Settings


@pytest.mark.parametrize("name", large.CASES)
def test_the_bodies_are_large_and_are_taken(name: str) -> None:
    _, _, make = large.CASES[name]
    assert LARGE_BODY < len(make()) <= Settings.model_fields["max_body_bytes"].default


def test_a_word_that_is_in_no_name_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Beside one that is in some, too: it is a slip in either case."""
    monkeypatch.setattr(sys, "argv", ["bench large", "--only", "tools", "--only", "nothing"])
    with pytest.raises(SystemExit) as ended:
        large.main()
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "no body has 'nothing' in its name; there are: 9,999 messages; " in said
    assert all(name in said for name in large.CASES)


def test_what_was_measured_is_shown() -> None:
    command = [sys.executable, "-m", "bench", "large", "--rounds", "1", "--only", "60 prompts of text"]
    command += ["--only", "no JSON"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    # Whether the target is met is the machine's business.
    assert done.returncode in (0, 1), done.stderr
    assert "60 prompts of text (4.0 MB)" in done.stdout, done.stderr
    assert "no JSON, at its end (4.1 MB)" in done.stdout
