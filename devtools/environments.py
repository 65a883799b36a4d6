"""The virtual environments, made from the lock files and nothing else.

Each lives in the cache under a name with the hash of its locks and of its Python, so that another branch's locks make
another environment and never change this one. Packages come from whatever sources pip is configured with.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from devtools import cache
from devtools import engine as engine_extras
from devtools.errors import DevError
from devtools.paths import LOCKS, home
from devtools.processes import run_logged, service_environment
from devtools.pythons import Python, engine_python, services_python

# Wheels only: nothing is built from source on a user's machine, so nothing there needs a compiler.
_PIP = ("-m", "pip", "--disable-pip-version-check", "--no-input")
_FROM_LOCK = ("--no-deps", "--require-hashes", "--only-binary", ":all:", "--progress-bar", "off")


@dataclass(frozen=True)
class Environment:
    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python3"

    def program(self, name: str) -> Path:
        return self.folder / "bin" / name


@dataclass(frozen=True)
class _Recipe:
    """How an environment is made. `extras` are steps after the packages, as code that counts as input."""

    name: str
    title: str
    find_python: Callable[[], Python]
    locks: tuple[str, ...]
    extras: ModuleType | None = None

    def folder(self, python: Python) -> Path:
        inputs = [(LOCKS / lock).read_bytes() for lock in self.locks]
        if self.extras is not None:
            inputs.append(Path(str(self.extras.__file__)).read_bytes())
        return home() / "envs" / f"{self.name}-{cache.key(python.version, str(python.executable), *inputs)}"


_SERVICES = _Recipe("services", "Environment of the services", services_python, ("gateway.txt",))
_DEV = _Recipe("dev", "Environment of tests and linters", services_python, ("dev.txt",))
_ENGINE = _Recipe(
    "engine", "Environment of the engine (vLLM and torch)", engine_python, ("torch.txt", "engine.txt"), engine_extras
)


def services() -> Environment:
    """The gateway and the mock engine."""
    return _ensure(_SERVICES)


def dev() -> Environment:
    """The services' packages and what tests, linters and locks need."""
    return _ensure(_DEV)


def engine() -> Environment:
    """vLLM with torch for the CPU, on the Python that Triton's stub was built for."""
    return _ensure(_ENGINE)


def is_services_made() -> bool:
    return _is_made(_SERVICES)


def is_dev_made() -> bool:
    return _is_made(_DEV)


def is_engine_made() -> bool:
    return _is_made(_ENGINE)


def _is_made(recipe: _Recipe) -> bool:
    return cache.is_made(recipe.folder(recipe.find_python()))


def _ensure(recipe: _Recipe) -> Environment:
    python = recipe.find_python()
    folder = recipe.folder(python)

    def make(making: cache.Making) -> None:
        _make_venv(making, python)
        for lock in recipe.locks:
            _install(making, LOCKS / lock)
        if recipe.extras is not None:
            recipe.extras.finish(folder, python)

    cache.ensure(folder, recipe.title, make)
    return Environment(folder)


def _make_venv(making: cache.Making, python: Python) -> None:
    making.say("venv")
    command: list[str | Path] = [python.executable, "-I", "-m", "venv", making.folder]
    if run_logged(command, making.log, env=service_environment(), pass_fds=[making.lock]) != 0:
        raise DevError(f"{python.executable} could not make a virtual environment; see {making.log}.")


def _install(making: cache.Making, lock: Path) -> None:
    packages = len(re.findall(r"^[a-zA-Z0-9]", lock.read_text(), re.MULTILINE))
    seen, package = 0, ""

    def on_line(line: str) -> None:
        nonlocal seen, package
        if line.startswith("Collecting "):
            seen += 1
            package = line.split()[1].partition("==")[0]
            making.say(f"{lock.name}: {seen} of {packages}, {package}")
        elif found := re.match(r"\s+Downloading \S+ \((.*)\)", line):
            making.say(f"{lock.name}: {seen} of {packages}, {package} ({found[1]})")
        elif "Retrying (" in line:
            making.say(f"{lock.name}: {seen} of {packages}, {package}; the index does not answer, trying again")
        elif line.startswith("Installing collected packages"):
            making.say(f"{lock.name}: installing {packages} packages")

    run_pip(["install", *_FROM_LOCK, "-r", str(lock)], making, lock, on_line)


def run_pip(
    arguments: list[str], making: cache.Making, lock: Path, on_line: cache.Say, python: Path | None = None
) -> None:
    """Runs the pip of `making`'s folder, or of `python`; a failure becomes one sentence that says what to do."""
    command: list[str | Path] = [python or making.folder / "bin" / "python3", "-I", *_PIP, *arguments]
    env = service_environment(PYTHONUNBUFFERED="1")
    if run_logged(command, making.log, on_line=on_line, env=env, pass_fds=[making.lock]) != 0:
        raise DevError(explain_pip(making.log.read_text(errors="replace"), lock) + f" (pip's log: {making.log})")


_UNREACHABLE = (
    "Failed to establish a new connection",
    "Temporary failure in name resolution",
    "Max retries exceeded",
    "Read timed out",
    "ProxyError",
    "SSLError",
    "connection timed out",
)


def explain_pip(output: str, lock: Path) -> str:
    """Why pip failed, from its output, as one sentence that says what to do."""
    missing = re.search(r"No matching distribution found for (\S+)", output)
    if "No space left on device" in output:
        return f"The disk is full; make room where {home()} and pip's cache are, or set TVS_HOME to a folder elsewhere."
    if any(sign in output for sign in _UNREACHABLE):
        return (
            "pip cannot reach its package index; check the network, or point pip to an index you can reach "
            "(PIP_INDEX_URL, or index-url in pip's configuration)."
        )
    if lock.name == "torch.txt" and (missing or "ResolutionImpossible" in output):
        build = re.search(r"^torch==\S+", lock.read_text(), re.MULTILINE)
        assert build is not None
        return (
            f"pip's configured sources have no {build[0]}; set PIP_EXTRA_INDEX_URL to PyTorch's CPU wheel index, "
            "or PIP_FIND_LINKS to a folder that holds that wheel, and run this again."
        )
    if "DO NOT MATCH THE HASHES" in output:
        return (
            f"A downloaded package is not the file that {lock.name} names; run `pip cache purge`, and if it stays so, "
            "the package source serves changed files."
        )
    if missing:
        return (
            f"pip's configured sources have no {missing[1]} as a wheel for this machine and Python; "
            "check index-url in pip's configuration, or use CPython 3.11."
        )
    errors = [line for line in output.splitlines() if line.startswith("ERROR:")]
    return f"pip failed: {errors[-1].removeprefix('ERROR:').strip() if errors else 'no reason given'}"
