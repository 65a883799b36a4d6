"""`./dev lock`: resolves the bounds of pyproject.toml into the exact versions and hashes of locks/.

pip resolves nothing at set-up: it installs the locks with --no-deps. Versions and hashes are asked of uv's index
(uv reads its own settings, not pip's); torch's CPU build is taken from pip's sources, as at set-up.
"""

import hashlib
import re
import subprocess
import tempfile
from pathlib import Path

from devtools import environments
from devtools.errors import DevError
from devtools.paths import LOCKS, ROOT
from devtools.progress import step
from devtools.pythons import ENGINE_VERSION

_HEADER = "# Exact versions of the bounds in pyproject.toml. Made by ./dev lock; do not edit.\n"
_ENGINE_TARGET = ("--python-version", ENGINE_VERSION, "--python-platform", "x86_64-manylinux_2_35")
# Ubuntu 24.04, which NVIDIA's Triton images are made of.
_GPU_TARGET = ("--python-version", "3.12", "--python-platform", "x86_64-manylinux_2_39")
_ANY_TARGET = ("--universal", "--python-version", "3.11")

# The services, by the names of their extras; each has a lock of its own.
_PARTS = ("gateway", "metrics-proxy", "prefetch")

# opencv asks for numpy 2, which the stub cannot use; vLLM reads images with it and nothing here does.
_ENGINE_OVERRIDES = "numpy<2\n"
# torch's sister packages have no build that fits the CPU one, and triton (1 GB) compiles for GPUs.
_ENGINE_EXCLUDES = "torchvision\ntorchaudio\ntorchcodec\ntriton\n"


def renew() -> None:
    environment = environments.linters()
    with tempfile.TemporaryDirectory() as scratch:
        _renew(environment, Path(scratch))


def _renew(environment: environments.Environment, scratch: Path) -> None:
    def compile(lock: str, *arguments: str) -> None:
        with step(f"locks/{lock}"):
            command = [str(environment.program("uv")), "pip", "compile", "--quiet", "--upgrade", "--generate-hashes"]
            result = subprocess.run(
                [*command, "--no-header", "--no-annotate", *arguments],
                cwd=ROOT,
                capture_output=True,
                text=True,
            )
            if result.returncode != 0:
                raise DevError(f"uv cannot resolve locks/{lock}: {result.stderr.strip()}")
            (LOCKS / lock).write_text(_HEADER + result.stdout)

    extras: list[str] = []
    constraints: list[str] = []
    for part in _PARTS:
        # All services run the same versions of what they share.
        compile(f"{part}.txt", "pyproject.toml", "--extra", part, *constraints, *_ANY_TARGET)
        extras += ["--extra", part]
        constraints += ["--constraints", f"locks/{part}.txt"]
    tracing = ("--extra", "gateway", "--extra", "tracing")
    compile("gateway-tracing.txt", "pyproject.toml", *tracing, *constraints, *_ANY_TARGET)
    extras += ["--extra", "tracing"]
    constraints += ["--constraints", "locks/gateway-tracing.txt"]
    # The tests run what the services run.
    compile("dev.txt", "pyproject.toml", *extras, "--extra", "dev", *constraints, *_ANY_TARGET)
    compile("build.txt", "--group", "build", *_ANY_TARGET)
    compile("artifacts.txt", "--group", "artifacts", "--no-deps", *_ENGINE_TARGET)
    compile("engine-gpu.txt", "--group", "engine-gpu", *_GPU_TARGET)

    wheels = scratch / "wheels"
    with step("locks/torch.txt"):
        (LOCKS / "torch.txt").write_text(_HEADER + _torch(environment, wheels))
    overrides, excludes = scratch / "overrides.txt", scratch / "excludes.txt"
    overrides.write_text(_ENGINE_OVERRIDES)
    excludes.write_text(_ENGINE_EXCLUDES)
    compile(
        "engine.txt",
        *("--group", "engine", "--find-links", str(wheels), "--no-emit-package", "torch"),
        *("--overrides", str(overrides), "--excludes", str(excludes)),
        *_ENGINE_TARGET,
    )


def _torch(environment: environments.Environment, wheels: Path) -> str:
    """The lock line of torch's CPU build, downloaded into `wheels` from pip's sources."""
    pinned = re.search(r'"(torch==[^"]+)"', (ROOT / "pyproject.toml").read_text())
    assert pinned is not None
    arguments = ["download", "--quiet", "--no-deps", "--only-binary", ":all:", "--python-version", ENGINE_VERSION]
    result = subprocess.run(
        [environment.python, "-m", "pip", *arguments, "--dest", wheels, pinned[1]],
        stderr=subprocess.PIPE,
        text=True,
    )
    if result.returncode != 0:
        raise DevError(environments.explain_pip(result.stderr, LOCKS / "torch.txt"))
    (wheel,) = wheels.glob("torch-*.whl")
    return f"{pinned[1]} \\\n    --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n"
