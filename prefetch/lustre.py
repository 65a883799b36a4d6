"""Which file system a folder is on, and what Lustre's `lfs` is used for where there is one."""

import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

# Remote file systems: SQLite's write-ahead log needs memory that the machines would have to share.
NETWORK = frozenset({"lustre", "nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "ceph", "beegfs", "gpfs"})

_SECONDS = 60  # for one call of lfs
_ESCAPE = re.compile(r"\\([0-7]{3})")


def file_system(path: Path, mounts: str | None = None) -> str:
    """The type of the file system that holds `path`, such as `lustre`; empty where that cannot be told.

    `mounts` has the form of /proc/self/mountinfo (proc(5)): the fifth field is the mount point, and the type follows
    the separator `-`.
    """
    text = (
        Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape") if mounts is None else mounts
    )
    wanted = path.resolve()
    found, depth = "", -1
    for line in text.splitlines():
        fields = line.split(" ")
        point = Path(_ESCAPE.sub(lambda match: chr(int(match[1], 8)), fields[4]))
        # A later mount on the same point hides the earlier one.
        if wanted.is_relative_to(point) and len(point.parts) >= depth:
            found, depth = fields[fields.index("-") + 1], len(point.parts)
    return found


def load_strategy(kind: str) -> str:
    """vLLM's `safetensors_load_strategy` for weights on that file system: vLLM recommends `eager` for Lustre and NFS,
    whose random reads are slow (vllm/config/load.py)."""
    return "eager" if kind in NETWORK else "lazy"


def stripe(folder: Path) -> None:
    """Spread the files to be made in `folder` over all storage targets, where that is Lustre and `lfs` is there.

    A file system that refuses is used as it is.
    """
    if (lfs := shutil.which("lfs")) and file_system(folder) == "lustre":
        _run([lfs, "setstripe", "-c", "-1", str(folder)])


def restore(files: list[Path], stall_seconds: float, stopped: Callable[[], bool], pause: float = 2) -> bool:
    """Ask for the released files' contents all at once (`lfs hsm_restore`); whether they all came.

    False where it cannot be used, and when no file came for `stall_seconds`: then reading brings what is missing.
    """
    lfs = shutil.which("lfs")
    if lfs is None:
        return False
    left = [file for file in files if _is_released(lfs, file)]
    if left and not _run([lfs, "hsm_restore", *map(str, left)]):
        return False
    moved = time.monotonic()
    while left and not stopped():
        time.sleep(pause)
        still = [file for file in left if _is_released(lfs, file)]
        if len(still) < len(left):
            moved = time.monotonic()
        elif time.monotonic() - moved > stall_seconds:
            return False
        left = still
    return not left


def _is_released(lfs: str, file: Path) -> bool:
    # "…: (0x0000000d) released exists archived, archive_id:1"
    try:
        said = subprocess.run([lfs, "hsm_state", str(file)], capture_output=True, text=True, timeout=_SECONDS).stdout
    except (OSError, subprocess.TimeoutExpired):
        return False
    return "released" in said.removeprefix(str(file)).split()


def _run(command: list[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=_SECONDS).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
