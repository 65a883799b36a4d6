"""What a set-up still has to make, and how much it downloads and keeps: said once, and checked against the disk."""

from collections.abc import Callable
from dataclasses import dataclass

from devtools import environments, models, preconditions, triton
from devtools.paths import home
from devtools.progress import note

_MB = 10**6


@dataclass(frozen=True)
class Part:
    """One thing that is made once. `download` and `disk` are MB, rounded up.

    Measured, but for the downloads of torch (about 200 of the engine's) and SmolLM2, which are estimates.
    """

    is_made: Callable[[], bool]
    download: int
    disk: int


SERVICES = Part(environments.is_services_made, 50, 450)
DEV = Part(environments.is_dev_made, 100, 600)
TINY = Part(models.is_tiny_made, 0, 5)
_ENGINE = Part(environments.is_engine_made, 550, 2600)
BUILDER = Part(environments.is_builder_made, 45, 160)
_TRITON = Part(triton.is_made, 60, 150)
_SMOLLM2 = Part(models.is_smollm2_made, 150, 300)
REAL = (_ENGINE, _TRITON, _SMOLLM2)


def announce(*parts: Part) -> None:
    """Says what the parts that are not made will take. Raises DevError if that is more than the disk has.

    Needs a Python for each part's environment: ask for the engine's before.
    """
    missing = [part for part in parts if not part.is_made()]
    download, disk = sum(part.download for part in missing), sum(part.disk for part in missing)
    if not missing:
        return
    # pip keeps a copy of what it downloads, by default on the same disk.
    preconditions.check_disk(home(), (download + disk) * _MB)
    if download:
        note(f"First set-up: about {_size(download)} to download, {_size(disk)} on disk under {home()}.")


def _size(megabytes: int) -> str:
    return f"{megabytes / 1000:.1f} GB" if megabytes >= 1000 else f"{megabytes} MB"
