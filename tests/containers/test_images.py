"""The images: small, without root, without bytecode."""

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
def test_it_runs_without_root_and_holds_no_bytecode_and_no_configuration_of_pip(built: Docker, name: str) -> None:
    script = (
        "import os, pathlib\n"
        "places = [pathlib.Path(place) for place in ('/opt', '/app') if pathlib.Path(place).exists()]\n"
        "compiled = [file for place in places for file in place.rglob('*.pyc')]\n"
        "print(os.getuid(), len(compiled), os.path.exists('/etc/pip.conf'))\n"
    )
    said = built.run("run", "--rm", "--network", "none", "--entrypoint", "python3", f"{PREFIX}/{name}", "-c", script)
    assert said.split() == ["10001", "0", "False"]
