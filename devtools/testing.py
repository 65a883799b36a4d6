"""`./dev test`, `python` and `lint`: the environments they need, then the tools themselves."""

import os
import subprocess
from pathlib import Path

from devtools import container_tools, environments, models, preconditions, todo, triton
from devtools.errors import DevError
from devtools.paths import ROOT
from devtools.processes import service_environment
from devtools.progress import note
from devtools.pythons import engine_python

# Tiers beside the default one: an option of ./dev test, a marker and what its tests are.
TIERS = {
    "containers": "need a container engine",
    "long": "take minutes each",
    "soak": "let everything happen at once for ten minutes (SOAK_SECONDS=60: for one)",
}
# The tests that start a real tritonserver.
_REAL = (ROOT / "tests" / "real", ROOT / "tests" / "egress")
_NO_TESTS = 5  # pytest's exit code when it selected nothing.


def set_up() -> environments.Environment:
    """Makes everything that the tests use and that can be had on this machine; the developers' environment."""
    preconditions.check_linux()
    python = None
    try:
        preconditions.check_engine_platform()
        python = engine_python()
    except DevError as problem:
        note(f"No real stack on this machine, its tests say so: {problem}")
    todo.announce(todo.SERVICES, todo.BUILDER, todo.DEV, todo.TINY, *(todo.REAL if python else ()))
    environments.services()
    dev = environments.dev()
    models.tiny(dev.python)
    container_tools.compose()
    container_tools.hadolint()
    if python is None:
        return dev
    environments.engine()
    triton.server(python)
    models.smollm2()
    return dev


def run_tests(tier: str | None, arguments: list[str]) -> int:
    """Runs pytest, the default tier in place of this process, so that signals and the terminal are pytest's own."""
    dev = set_up() if _needs_engine(arguments) else environments.dev()
    selection = tier or " and ".join(f"not {name}" for name in TIERS)
    command = [str(dev.python), "-m", "pytest", "-m", selection, "--durations=15", *arguments]
    os.chdir(ROOT)
    if tier is None:
        os.execve(command[0], command, service_environment())
    code = subprocess.run(command, env=service_environment()).returncode
    if code == _NO_TESTS:
        note(f"There are no tests yet that {TIERS[tier]} (marker {tier}).")
        return 0
    return code


def run_python(arguments: list[str]) -> None:
    """The developers' Python in place of this process: it finds the checkout's packages from anywhere, and has all that
    they and `bench/` need."""
    python = str(environments.dev().python)
    os.execve(python, [python, *arguments], service_environment(PYTHONPATH=str(ROOT)))


def _needs_engine(arguments: list[str]) -> bool:
    """Only if no path is given, or one from which tests of the real stack are collected."""
    paths = [argument.partition("::")[0] for argument in arguments if (ROOT / argument.partition("::")[0]).exists()]
    resolved = [(ROOT / path).resolve() for path in paths]
    return not paths or any(
        path.is_relative_to(real) or real.is_relative_to(path) for path in resolved for real in _REAL
    )


def lint() -> int:
    """ruff and mypy over the checkout; 0 if both are content."""
    dev = environments.linters()
    commands: list[list[str | Path]] = [[dev.program("ruff"), "check", "."], [dev.program("mypy")]]
    return max(subprocess.run(command, cwd=ROOT, env=service_environment()).returncode for command in commands)
