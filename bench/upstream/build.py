"""Builds the byte source where it is not built yet, in the cache that all checkouts of a user share."""

import shutil
import subprocess
from pathlib import Path

from devtools import cache
from devtools.errors import DevError
from devtools.paths import home

_SOURCE = Path(__file__).with_name("upstream.cpp")
_FLAGS = ("-std=c++20", "-O2", "-Wall", "-Wextra", "-Werror")


def program() -> Path:
    """The built program. Raises DevError where there is no compiler, or it fails."""
    folder = home() / "packages" / f"upstream-{cache.key(_SOURCE.read_bytes(), *_FLAGS)}"
    if not cache.is_made(folder):
        compiler = shutil.which("g++")
        if compiler is None:
            raise DevError(
                "The byte source of bench/upstream is built on this machine, which has no g++; install it (on Debian "
                "and Ubuntu the package g++) and run this again."
            )

        def make(making: cache.Making) -> None:
            command = [compiler, *_FLAGS, str(_SOURCE), "-o", str(folder / "upstream")]
            done = subprocess.run(command, capture_output=True, text=True)
            making.log.write_text(done.stderr)
            if done.returncode != 0:
                raise DevError(f"The byte source of bench/upstream could not be compiled; see {making.log}.")

        cache.ensure(folder, "Byte source", make)
    return folder / "upstream"
