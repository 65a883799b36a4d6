"""How busy the GPUs of this machine are, from `nvidia-smi` where it is."""

import shutil
import subprocess

_QUERY = ["--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
_LIMIT = 10


def utilization() -> float | None:
    """The share of the last moment in which the busiest GPU computed; None where there is none."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    try:
        shown = subprocess.run([program, *_QUERY], capture_output=True, text=True, timeout=_LIMIT, check=True).stdout
        return max(float(line) for line in shown.splitlines()) / 100
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
