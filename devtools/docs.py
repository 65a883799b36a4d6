"""`./dev docs`: writes the pages of docs/ that are generated. The writing itself needs the services' environment."""

import subprocess
from pathlib import Path

from devtools import environments
from devtools.paths import ROOT
from devtools.processes import service_environment


def write() -> int:
    """0 if the pages are written."""
    command: list[str | Path] = [environments.services().python, "-m", "devtools.fields_page"]
    return subprocess.run(command, cwd=ROOT, env=service_environment()).returncode
