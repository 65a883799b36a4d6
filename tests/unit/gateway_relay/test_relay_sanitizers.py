"""The relay's C++ under the compiler's sanitizers: no access outside, nothing undefined, no race."""

import subprocess
from pathlib import Path

import pytest

from devtools.paths import ROOT

_SOURCES = ROOT / "gateway_relay" / "src"
_DRIVER = Path(__file__).parent / "native" / "driver.cpp"


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"])
def test_sanitizers_find_nothing(tmp_path: Path, sanitizers: str) -> None:
    sources = [source for source in _SOURCES.glob("*.cpp") if source.name != "bindings.cpp"]
    program = tmp_path / "driver"
    flags = ["-std=c++20", "-O1", "-g", "-Wall", "-Wextra", "-Werror", f"-fsanitize={sanitizers}"]
    flags += ["-fno-sanitize-recover=all", "-pthread", f"-I{_SOURCES}"]
    command: list[str | Path] = ["g++", *flags, "-o", program, _DRIVER, *sources]
    compiled = subprocess.run(command, capture_output=True, text=True)
    assert compiled.returncode == 0, compiled.stderr
    # A machine's layout of addresses can be too random for the thread sanitizer.
    ran = subprocess.run(["setarch", "-R", program], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-4000:]
