"""C++ of this checkout, compiled with a driver of the tests and the compiler's sanitizers, and run."""

import subprocess
from pathlib import Path

BOTH = ["address,undefined", "thread"]
"""What cannot be had in one program."""


def run_sanitized(sources: Path, driver: Path, sanitizers: str, folder: Path) -> None:
    """All of `sources` but the bindings; the program is built in `folder` and gets it as its argument. Fails with what
    the compiler or the sanitizers say."""
    files = [source for source in sources.rglob("*.cpp") if source.name != "bindings.cpp"]
    program = folder / "driver"
    flags = ["-std=c++20", "-O1", "-g", "-Wall", "-Wextra", "-Werror", f"-fsanitize={sanitizers}"]
    flags += ["-fno-sanitize-recover=all", "-pthread", f"-I{sources}"]
    command: list[str | Path] = ["g++", *flags, "-o", program, driver, *files]
    compiled = subprocess.run(command, capture_output=True, text=True)
    assert compiled.returncode == 0, compiled.stderr
    # A machine's layout of addresses can be too random for the thread sanitizer.
    ran = subprocess.run(["setarch", "-R", program, folder], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-4000:]
