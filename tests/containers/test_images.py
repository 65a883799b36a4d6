"""The images: small, without root, and without what is not needed."""

import re

import pytest

from devtools.paths import ROOT
from tests.containers.daemon import Docker
from tests.containers.images import BASE, OWN, PREFIX

pytestmark = pytest.mark.containers

_MB = 1_000_000
# Above the base.
_LIMITS = {"gateway": 350 * _MB, "metrics-proxy": 250 * _MB, "prefetch": 250 * _MB, "triton-cpu": 3000 * _MB}


def _size(docker: Docker, image: str) -> int:
    return int(docker.run("image", "inspect", "--format", "{{.Size}}", image))


@pytest.mark.parametrize("name", OWN)
def test_it_is_as_small_as_is_said(built: Docker, name: str) -> None:
    size = _size(built, f"{PREFIX}/{name}") - _size(built, BASE)
    assert size < _LIMITS[name]
    (number, unit), *_ = re.findall(
        rf"^\| {name} \|[^|]*\| ([\d.]+) (MB|GB)\b", (ROOT / "docs" / "compose.md").read_text(), re.MULTILINE
    )
    assert size == pytest.approx(float(number) * {"MB": 1, "GB": 1000}[unit] * _MB, rel=0.15)


@pytest.mark.parametrize("name", OWN)
def test_it_runs_without_root_and_holds_no_configuration_of_pip(built: Docker, name: str) -> None:
    said = _python(built, name, "import os; print(os.getuid(), os.path.exists('/etc/pip.conf'))")
    assert said == ["10001", "False"]


@pytest.mark.parametrize("name", sorted(OWN.keys() - {"triton-cpu"}))
def test_a_service_holds_no_bytecode(built: Docker, name: str) -> None:
    script = "from pathlib import Path; print(*Path('/opt').rglob('*.pyc'), *Path('/app').rglob('*.pyc'))"
    assert _python(built, name, script) == []


def _python(docker: Docker, name: str, script: str) -> list[str]:
    """The words that it prints in a container."""
    options = ("--rm", "--network", "none", "--entrypoint", "python3")
    return docker.run("run", *options, f"{PREFIX}/{name}", "-c", script).split()
