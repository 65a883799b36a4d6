"""Runs `python -m gateway check` for a test."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from devtools.paths import ROOT


@dataclass(frozen=True)
class Checked:
    """How the check ended. `report` is its JSON, empty for one that printed none."""

    code: int
    report: dict[str, Any]
    errors: str

    def verdicts(self, model: str, api: str) -> dict[str, str]:
        """By field."""
        (found,) = [one for one in self.report["models"] if one["name"] == model]
        assert found["requests"][api]["plain"] is None
        return {name: verdict["verdict"] for name, verdict in found["requests"][api]["fields"].items()}

    def fields(self, model: str, verdict: str) -> set[str]:
        """Those with this verdict in either request type."""
        apis = ("chat", "completions")
        return {name for api in apis for name, found in self.verdicts(model, api).items() if found == verdict}


def command(*flags: str) -> list[str]:
    return [sys.executable, "-m", "gateway", "check", *flags]


def check(*flags: str) -> Checked:
    ended = subprocess.run(
        command("--json", *flags), cwd=ROOT, env=os.environ, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    return Checked(ended.returncode, json.loads(ended.stdout or "{}"), ended.stderr)
