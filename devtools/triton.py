"""tritonserver with its Python backend, unpacked from the wheel that carries it."""

import re
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

from devtools import cache, environments
from devtools.paths import LOCKS, home
from devtools.pythons import ENGINE_VERSION, Python

_LOCK = LOCKS / "artifacts.txt"


def locked(distribution: str) -> str:
    """The lock's lines for one distribution."""
    found = re.search(rf"^{re.escape(distribution)}==.*(\n +--hash.*)*", _LOCK.read_text(), re.MULTILINE)
    assert found is not None, f"{_LOCK.name} does not name {distribution}"
    return found[0] + "\n"


def download_wheel(distribution: str, making: cache.Making, python: Python) -> zipfile.ZipFile:
    """Downloads the locked wheel into `making`'s folder, checked against its hash, and opens it."""
    making.say("downloading")
    lock = making.folder / "artifact.txt"
    lock.write_text(locked(distribution))

    def on_line(line: str) -> None:
        if found := re.match(r"\s+Downloading \S+ \((.*)\)", line):
            making.say(f"downloading {found[1]}")

    arguments = ["download", "--no-deps", "--require-hashes", "--only-binary", ":all:", "--progress-bar", "off"]
    environments.run_pip(
        [*arguments, "--dest", str(making.folder), "-r", str(lock)], making, _LOCK, on_line, python.executable
    )
    lock.unlink()
    (wheel,) = making.folder.glob("*.whl")
    archive = zipfile.ZipFile(wheel)
    wheel.unlink()  # The open file keeps its data until it is closed.
    return archive


def extract(archive: zipfile.ZipFile, wanted: Callable[[str], bool], target: Path) -> None:
    """Extracts the wanted members with their permissions, which `ZipFile.extractall` drops."""
    for member in archive.infolist():
        if wanted(member.filename) and not member.is_dir():
            path = Path(archive.extract(member, target))
            path.chmod((member.external_attr >> 16) & 0o777 or 0o644)


def _folder() -> Path:
    return home() / f"triton-{cache.key(locked('nvidia-pytriton'))}"


def is_made() -> bool:
    return cache.is_made(_folder())


def server(python: Python) -> Path:
    """The folder of the unpacked server: `pytriton/tritonserver/bin/tritonserver` beside `nvidia_pytriton.libs`."""
    folder = _folder()

    def make(making: cache.Making) -> None:
        with download_wheel("nvidia-pytriton", making, python) as archive:
            making.say("unpacking")
            # The binary finds its libraries by a path relative to its own.
            wanted = ("pytriton/tritonserver/", "nvidia_pytriton.libs/")
            extract(archive, lambda name: name.startswith(wanted), folder)
        tree = folder / "pytriton" / "tritonserver"
        stub = tree / "python_backend_stubs" / ENGINE_VERSION / "triton_python_backend_stub"
        shutil.copy(stub, tree / "backends" / "python" / stub.name)

    cache.ensure(folder, "Triton Inference Server", make)
    return folder / "pytriton" / "tritonserver"
