"""What has to hold before anything is made or started. A check that fails raises DevError: what it is, what to do."""

import os
import platform
import re
import shutil
from pathlib import Path

from devtools.errors import DevError
from devtools.stack import Ports, answers, is_free

GIB = 1024**3

# SmolLM2 in float32 with its KV cache and the tiny model, both loaded; measured with room to spare.
ENGINE_MEMORY = 4 * GIB

_MINIMUM_GLIBC = (2, 35)
_WITHOUT_ENGINE = "the mock engine needs none of this: ./dev up --engine mock"


def check_linux() -> None:
    if platform.system() != "Linux":
        raise DevError(f"This runs on Linux, not on {platform.system()}; use a Linux machine or a virtual machine.")


def check_engine_platform() -> None:
    """Raises unless tritonserver's wheel and vLLM's CPU build can run here."""
    machine = platform.machine()
    if machine != "x86_64":
        raise DevError(f"The engine needs an x86-64 CPU and this is {machine}; {_WITHOUT_ENGINE}.")
    if not re.search(r"^flags\s*:.*\bavx2\b", Path("/proc/cpuinfo").read_text(), re.MULTILINE):
        raise DevError(f"The engine needs a CPU with AVX2, which this one lacks; {_WITHOUT_ENGINE}.")
    name, version = platform.libc_ver()
    if name != "glibc":
        raise DevError(f"The engine needs glibc 2.35 or newer; this system has another C library; {_WITHOUT_ENGINE}.")
    if tuple(map(int, version.split(".")[:2])) < _MINIMUM_GLIBC:
        raise DevError(
            f"The engine needs glibc 2.35 or newer (Ubuntu 22.04, Debian 12) and this is {version}; {_WITHOUT_ENGINE}."
        )


def check_memory(needed: int = ENGINE_MEMORY) -> None:
    found = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    if found and int(found[1]) * 1024 < needed:
        raise DevError(
            f"The engine needs {needed / GIB:.0f} GiB of free memory and {int(found[1]) / 1024**2:.1f} GiB are free; "
            f"end other programs, or {_WITHOUT_ENGINE}."
        )


def check_disk(folder: Path, needed: int) -> None:
    """Raises unless `folder`, which need not exist, has `needed` bytes free and can be written."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not os.access(existing, os.W_OK):
        raise DevError(f"{existing} cannot be written; set TVS_HOME to a folder of yours.")
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise DevError(
            f"Set-up needs {needed / GIB:.1f} GiB in {folder} and {free / GIB:.1f} GiB are free; "
            "make room, or set TVS_HOME to a folder on another disk."
        )


_FLAGS = {
    "gateway": "--port",
    "triton_http": "--triton-http-port",
    "triton_grpc": "--triton-grpc-port",
    "triton_metrics": "--triton-metrics-port",
    "metrics_proxy": "--metrics-port",
}


def check_ports(ports: Ports, used: tuple[str, ...]) -> None:
    """Raises if one of the `used` fields of `ports` is taken on the loopback address, or two are the same."""
    seen: dict[int, str] = {}
    for name in used:
        port, flag = getattr(ports, name), _FLAGS[name]
        if port in seen:
            raise DevError(f"{seen[port]} and {flag} are both {port}; give each a port of its own.")
        seen[port] = flag
        try:
            if not is_free(port):
                raise DevError(f"Port {port} is taken; choose another with {flag}.")
        except PermissionError:
            raise DevError(f"Port {port} needs root; choose one above 1023 with {flag}.") from None


def ports_without_effect(ports: Ports, used: tuple[str, ...]) -> list[str]:
    """The flags that were given for parts that are not started."""
    usual = Ports()
    return [flag for name, flag in _FLAGS.items() if name not in used and getattr(ports, name) != getattr(usual, name)]


# Where the gateway of `--engine URL` can have its models from without --config.
_MODEL_VARIABLES = ("GATEWAY_CONFIG", "GATEWAY_MODELS", "GATEWAY_MODEL_REPOSITORY")


def check_config(engine: str, config: Path | None) -> None:
    """Raises if the gateway's settings are no readable file, or absent where only they can name the models."""
    if config is not None:
        try:
            with config.open("rb") as file:
                file.read(1)
        except OSError as error:
            raise DevError(
                f"--config {config} cannot be read: {error.strerror}; name the gateway's YAML file."
            ) from None
    elif engine not in ("triton", "mock") and not any(os.environ.get(name) for name in _MODEL_VARIABLES):
        raise DevError(
            "--engine URL needs --config FILE with the gateway's `models:`, since nothing else says what that Triton "
            "serves (an example: ./dev up --help, every setting: docs/gateway.md)."
        )


def check_engine_answers(url: str) -> None:
    if not answers(f"{url.rstrip('/')}/v2/health/ready"):
        raise DevError(f"No Triton is ready at {url}; start it, or name the base URL of its HTTP port with --engine.")
