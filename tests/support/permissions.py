"""Permissions in tests that root runs as well."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NOBODY = 65534


@contextmanager
def without_roots_rights() -> Iterator[None]:
    """Root may read and write everything; permissions hold for others only."""
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)


@contextmanager
def as_somebody(folder: Path) -> Iterator[None]:
    """A user that may look into the folder and no more."""
    folder.chmod(0o555)
    try:
        with without_roots_rights():
            yield
    finally:
        folder.chmod(0o755)
