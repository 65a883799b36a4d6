"""A run's own model repository and backend folder, made from the shipped ones."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from devtools.paths import ROOT

SHIPPED = ROOT / "model_repository"


def write_model(target: Path, deployment: str, model: Path, overrides: Mapping[str, Any]) -> None:
    """Copies a shipped deployment into the repository `target`, with the model's folder and changed engine arguments.

    An override of None removes the argument.
    """
    source = SHIPPED / deployment
    folder = target / deployment
    (folder / "1").mkdir(parents=True)
    shutil.copy(source / "config.pbtxt", folder)
    arguments = json.loads((source / "1" / "model.json").read_text()) | {"model": str(model)} | dict(overrides)
    kept = {name: value for name, value in arguments.items() if value is not None}
    (folder / "1" / "model.json").write_text(json.dumps(kept, indent=2) + "\n")


def write_backends(target: Path, server: Path, model: Path, *packages: Path) -> None:
    """Triton's backend folder: its own Python backend, and under the name `vllm` the file `model` with the packages
    that it imports.

    Links, so that the server's library still finds its neighbours and a change of the backend needs no copy.
    """
    target.mkdir(parents=True)
    (target / "python").symlink_to(server / "backends" / "python")
    ours = target / "vllm"
    ours.mkdir()
    (ours / "model.py").symlink_to(model)
    for package in packages:
        (ours / package.name).symlink_to(package)
