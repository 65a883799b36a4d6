"""Finding the CPythons that the environments are made from."""

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from devtools.errors import DevError

ENGINE_VERSION = "3.11"

_PROBE = """
import importlib.util, json, os, platform, sys, sysconfig
name = sysconfig.get_config_var("INSTSONAME") or ""
folders = [sysconfig.get_config_var("LIBDIR") or "", os.path.join(sys.base_prefix, "lib")]
libraries = [os.path.join(folder, name) for folder in folders if ".so" in name]
print(json.dumps({
    "executable": sys.executable,
    "implementation": platform.python_implementation(),
    "version": platform.python_version(),
    "venv": all(importlib.util.find_spec(module) for module in ("venv", "ensurepip")),
    "headers": sysconfig.get_path("include"),
    "library": next((path for path in libraries if os.path.exists(path)), ""),
}))
"""


@dataclass(frozen=True)
class Python:
    """An interpreter as it describes itself. `library` is its shared library, None where it has none; `headers` the
    folder of its C headers, which may be absent."""

    executable: Path
    version: str
    has_venv: bool
    library: Path | None
    headers: Path

    @property
    def minor(self) -> str:
        return ".".join(self.version.split(".")[:2])


@cache
def probe(executable: str) -> Python | None:
    """What `executable` says of itself; None if it does not run or is no CPython."""
    try:
        found = subprocess.run([executable, "-I", "-c", _PROBE], capture_output=True, text=True, timeout=30, check=True)
        facts = json.loads(found.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    if facts["implementation"] != "CPython":
        return None
    library = Path(facts["library"]) if facts["library"] else None
    # Resolved: also asked from inside a virtual environment, the answer is the interpreter that it was made from.
    return Python(Path(facts["executable"]).resolve(), facts["version"], facts["venv"], library, Path(facts["headers"]))


def services_python() -> Python:
    """The interpreter that runs this command; the services take any from 3.11 on."""
    python = probe(sys.executable)
    if python is None or not python.has_venv:
        raise DevError(
            f"{sys.executable} has no venv module; install it (on Debian and Ubuntu the package "
            f"python{sys.version_info.major}.{sys.version_info.minor}-venv) and run this again."
        )
    return python


def engine_python() -> Python:
    """A CPython 3.11 with venv and a shared library, which Triton's Python stub loads."""
    problems = []
    for name in (sys.executable, f"python{ENGINE_VERSION}", "python3"):
        path = shutil.which(name)
        python = probe(path) if path else None
        if python is None or python.minor != ENGINE_VERSION:
            continue
        if not python.has_venv:
            problems.append(f"{python.executable} has no venv module (Debian package python{ENGINE_VERSION}-venv)")
        elif python.library is None:
            problems.append(
                f"{python.executable} has no shared library (Debian package libpython{ENGINE_VERSION}; "
                "a Python of your own needs --enable-shared)"
            )
        else:
            return python
    if problems:
        raise DevError(f"The engine cannot use this Python: {problems[0]}; install that and run this again.")
    raise DevError(
        f"The engine needs CPython {ENGINE_VERSION} on PATH as python{ENGINE_VERSION}, with venv and its shared "
        "library; install it and run this again, or start the mock engine with ./dev up --engine mock."
    )
