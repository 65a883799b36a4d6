"""The virtual environments, made from the lock files, and the packages of this checkout that are compiled.

Each lives in the cache under a name with the hash of its locks and of its Python, so that another branch's locks make
another environment and never change this one. Packages come from whatever sources pip is configured with.
`logits_processors/` and `gateway_relay/` are built once for each state of their sources, and stand in environments of
their own that have all else from the one below: a change of them costs no more than their building.
"""

import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from devtools import cache
from devtools import engine as engine_extras
from devtools.errors import DevError
from devtools.paths import LOCKS, ROOT, home
from devtools.processes import run_logged, service_environment
from devtools.progress import note
from devtools.pythons import Python, engine_python, services_python

# Wheels only: of what is not this project's, nothing is built from source on a user's machine.
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


_BUILD_LOCK = LOCKS / "build.txt"
_SERVICES = _Recipe("services", "Environment of the services", services_python, ("gateway.txt",))
_DEV = _Recipe("dev", "Environment of tests and linters", services_python, ("dev.txt",))
_ENGINE = _Recipe(
    "engine", "Environment of the engine (vLLM and torch)", engine_python, ("torch.txt", "engine.txt"), engine_extras
)


@dataclass(frozen=True)
class Package:
    """A distribution of this checkout that is compiled, in a folder of its own. `name` is its module's too; `subject`
    begins a sentence about it."""

    folder: Path
    name: str
    subject: str

    def sources(self) -> list[Path]:
        patterns = ("pyproject.toml", "CMakeLists.txt", "README.md", "src/**/*", f"{self.name}/**/*")
        found = (path for pattern in patterns for path in self.folder.glob(pattern))
        return sorted(path for path in found if path.is_file() and path.suffix != ".pyc")


PROCESSORS = Package(ROOT / "logits_processors", "logits_processors", "The logits processors are")
RELAY = Package(ROOT / "gateway_relay", "gateway_relay", "The gateway's native relay is")


class CannotCompile(DevError):
    """What a package needs to be built is not on this machine."""


def services() -> Environment:
    """The gateway and the mock engine; with `gateway_relay`, an optional part of the gateway, where it can be built."""
    python = _SERVICES.find_python()
    try:
        check_compiler(python, RELAY)
    except CannotCompile as problem:
        note(f"{problem} Without the relay the gateway does the same, at a higher cost per token.")
        return _ensure(_SERVICES)
    return _with_packages(_SERVICES, RELAY)


def linters() -> Environment:
    """The services' packages and what tests, linters and locks need."""
    return _ensure(_DEV)


def dev() -> Environment:
    """The same with the compiled packages, for the tests."""
    return _with_packages(_DEV, PROCESSORS, RELAY)


def engine() -> Environment:
    """vLLM with torch for the CPU and `logits_processors`, on the Python that Triton's stub was built for."""
    return _with_packages(_ENGINE, PROCESSORS)


def bare_engine() -> Environment:
    """The same without `logits_processors`, for an image, which compiles that in a stage of its own."""
    return _ensure(_ENGINE)


def is_services_made() -> bool:
    return _is_made(_SERVICES)


def is_dev_made() -> bool:
    return _is_made(_DEV)


def is_engine_made() -> bool:
    return _is_made(_ENGINE)


def is_builder_made() -> bool:
    """What builds the packages for the services; the engine's Python is the same, or another small environment. Nothing
    is missing where they cannot be built."""
    python = _SERVICES.find_python()
    try:
        check_compiler(python, RELAY)
    except CannotCompile:
        return True
    return _is_made(_builder(python))


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


def _with_packages(recipe: _Recipe, *packages: Package) -> Environment:
    """An environment that has the packages themselves, and all else from the recipe's."""
    python = recipe.find_python()
    # First: should there be no compiler, nothing has been downloaded in vain.
    wheels = [_wheel(python, package) for package in packages]
    base = _ensure(recipe)
    folder = home() / "envs" / f"{recipe.name}-{cache.key(base.folder.name, *(wheel.parent.name for wheel in wheels))}"

    def make(making: cache.Making) -> None:
        _make_venv(making, python, "--without-pip")
        install = ["--python", str(folder / "bin" / "python3"), "install", "--no-deps", "--no-index"]
        run_pip([*install, *map(str, wheels)], making, _BUILD_LOCK, lambda _: None, base.python)
        packages = Path("lib") / f"python{python.minor}" / "site-packages"
        # Its own .pth files too.
        line = f"import site; site.addsitedir({str(base.folder / packages)!r})\n"
        (folder / packages / "_base.pth").write_text(line)
        for place in (Path(), Path("bin")):
            for entry in (base.folder / place).iterdir():
                if not entry.name.startswith(".") and not (folder / place / entry.name).exists():
                    (folder / place / entry.name).symlink_to(entry)

    names = " and ".join(package.name for package in packages)
    cache.ensure(folder, f"{recipe.title}, with {names}", make)
    return Environment(folder)


def _builder(python: Python) -> _Recipe:
    return _Recipe("build", "Environment that builds packages in C++", lambda: python, (_BUILD_LOCK.name,))


def _wheel_folder(python: Python, package: Package) -> Path:
    inputs = [
        part
        for path in package.sources()
        for part in (str(path.relative_to(package.folder)).encode(), path.read_bytes())
    ]
    key = cache.key(python.version, str(python.executable), _BUILD_LOCK.read_bytes(), *inputs)
    return home() / "packages" / f"{package.name.replace('_', '-')}-{key}"


def _wheel(python: Python, package: Package) -> Path:
    """The package, built for this Python."""
    folder = _wheel_folder(python, package)
    if not cache.is_made(folder):
        check_compiler(python, package)
        tools = _ensure(_builder(python))

        def make(making: cache.Making) -> None:
            making.say("compiling")
            arguments = ["wheel", "--no-build-isolation", "--no-deps", "--no-index", "--wheel-dir", str(folder)]
            path = f"{tools.folder / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
            run_pip([*arguments, str(package.folder)], making, _BUILD_LOCK, lambda _: None, tools.python, PATH=path)

        cache.ensure(folder, f"Package {package.name}", make)
    (wheel,) = folder.glob("*.whl")
    return wheel


def check_compiler(python: Python, package: Package) -> None:
    """Raises unless the package can be built here for this Python."""
    if shutil.which("g++") is None:
        raise CannotCompile(
            f"{package.subject} built on this machine, which has no g++; install it (on Debian and Ubuntu the package "
            "g++) and run this again."
        )
    if not (python.headers / "Python.h").is_file():
        raise CannotCompile(
            f"{package.subject} built for {python.executable}, which has no C headers; install them (on Debian and "
            f"Ubuntu the package python{python.minor}-dev) and run this again."
        )


def _make_venv(making: cache.Making, python: Python, *options: str) -> None:
    making.say("venv")
    command: list[str | Path] = [python.executable, "-I", "-m", "venv", *options, making.folder]
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
    arguments: list[str],
    making: cache.Making,
    lock: Path,
    on_line: cache.Say,
    python: Path | None = None,
    **changes: str,
) -> None:
    """Runs the pip of `making`'s folder, or of `python`, with `changes` of the environment; a failure becomes one
    sentence that says what to do."""
    command: list[str | Path] = [python or making.folder / "bin" / "python3", "-I", *_PIP, *arguments]
    env = service_environment(PYTHONUNBUFFERED="1", **changes)
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
