"""How a service refuses a wrong setting: with one sentence, and as a process with exit code 2."""

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from devtools.paths import ROOT
from service_base.errors import SettingsError


def refusal(load: Callable[[], object]) -> str:
    """The one sentence that `load` raises."""
    with pytest.raises(SettingsError) as caught:
        load()
    text = str(caught.value)
    assert text.isprintable()
    assert len(text) < 1500
    assert text.endswith(".")
    return text


def refusal_of_process(module: str, *arguments: str, **environment: str) -> str:
    """What `python -m MODULE` prints, which is one line, before it ends."""
    command = [sys.executable, "-m", module, *arguments]
    ended = subprocess.run(command, env=os.environ | environment, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"{module}: ")
    return line
