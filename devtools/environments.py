"""The virtual environments, made from the lock files and nothing else.

Each lives in the cache under a name with the hash of its locks and of its Python, so that another branch's locks make
another environment and never change this one. Packages come from whatever sources pip is configured with.
"""

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

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
    name: str
    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python3"

    def program(self, name: str) -> Path:
        return self.folder / "bin" / name


def services() -> Environment:
    """The gateway and the mock engine."""
    return _environment("services", services_python(), ("gateway.txt",))


def dev() -> Environment:
    """The services' packages and what tests, linters and locks need."""
    return _environment("dev", services_python(), ("dev.txt",))


def engine() -> Environment:
    """vLLM with torch for the CPU, on the Python that Triton's stub was built for."""
    return _environment("engine", engine_python(), ("torch.txt", "engine.txt"))


def located_engine() -> Environment:
    """Where `engine` is or would be, without making it."""
    return Environment("engine", _folder("engine", engine_python(), ("torch.txt", "engine.txt")))


def _folder(name: str, python: Python, locks: tuple[str, ...]) -> Path:
    texts = [(LOCKS / lock).read_bytes() for lock in locks]
    if name == "engine":
        texts.append(Path(engine_extras.__file__).read_bytes())
    return home() / "envs" / f"{name}-{cache.key(python.version, str(python.executable), *texts)}"


def _environment(name: str, python: Python, locks: tuple[str, ...]) -> Environment:
    folder = _folder(name, python, locks)

    def make(making: cache.Making) -> None:
        _make_venv(making, python)
        for lock in locks:
            _install(making, LOCKS / lock)
        if name == "engine":
            engine_extras.finish(folder, python)

    cache.ensure(folder, f"Python environment of the {name}", make)
    return Environment(name, folder)


def _make_venv(making: cache.Making, python: Python) -> None:
    making.say("venv")
    command = [python.executable, "-I", "-m", "venv", making.folder]
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
        elif line.startswith("Installing collected packages"):
            making.say(f"{lock.name}: installing {packages} packages")

    run_pip(["install", *_FROM_LOCK, "-r", str(lock)], making, lock, on_line)


def run_pip(
    arguments: list[str], making: cache.Making, lock: Path, on_line: "cache.Say", python: Path | None = None
) -> None:
    """Runs the pip of `making`'s folder, or of `python`; a failure becomes one sentence that says what to do."""
    command = [python or making.folder / "bin" / "python3", "-I", *_PIP, *arguments]
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
    if missing and missing[1].startswith("torch=="):
        return (
            f"pip's configured sources have no {missing[1]}; set PIP_EXTRA_INDEX_URL to PyTorch's CPU wheel index, "
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
