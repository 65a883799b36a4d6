"""Catalogues for tests, made by the package's own command."""

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

PROCESSOR = "logits_processors:ConstraintProcessor"


def build_command(entries: Path, tokenizer: Path, target: Path) -> list[str | Path]:
    command: list[str | Path] = [sys.executable, "-I", "-m", "logits_processors", "build", entries]
    return [*command, "--tokenizer", tokenizer, "--output", target]


def build_catalog(entries: Iterable[str], tokenizer: Path, target: Path) -> None:
    source = target.with_suffix(".txt")
    source.write_text("".join(f"{entry}\n" for entry in entries), encoding="utf-8")
    built = subprocess.run(build_command(source, tokenizer, target), capture_output=True, text=True)
    assert built.returncode == 0, built.stderr


def with_catalogs(folder: Path) -> dict[str, Any]:
    """Engine arguments of a deployment that has the catalogues in this folder."""
    return {
        "logits_processors": [PROCESSOR],
        "additional_config": {"constraints": {"catalogs": str(folder), "threads": 2}},
    }
