"""How busy the GPUs are, as `nvidia-smi` says it, and what becomes of one that says nothing."""

from pathlib import Path

import pytest

from bench.diagnose.gpu import utilization


@pytest.mark.parametrize(
    ("script", "share"),
    [
        ("echo 3; echo 97", 0.97),
        ("echo 0", 0.0),
        ("echo '[N/A]'", None),
        ("echo 50; exit 9", None),
        ("true", None),
    ],
)
def test_the_busiest_gpu_counts(
    script: str, share: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f'#!/bin/sh\n[ "$1" = --query-gpu=utilization.gpu ] || exit 1\n{script}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert utilization() == share


def test_a_machine_without_one_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert utilization() is None
