"""The processes of a stack's services, by their command lines. One may end while it is looked at: it is left out."""

import contextlib
from collections.abc import Iterable
from pathlib import Path

from devtools.processes import Service


def commands(pids: Iterable[int]) -> dict[int, str]:
    """The command line of each process that lives."""
    found = {}
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


def engine_of(triton: Service) -> int:
    """The one process below this tritonserver that computes."""
    (pid,) = [pid for pid, line in commands(triton.pids()).items() if line.startswith("VLLM::EngineCore")]
    return pid


def stub_of(triton: Service) -> int:
    """The one process of this tritonserver that holds a model's Python."""
    (pid,) = [pid for pid, line in commands(triton.pids()).items() if "triton_python_backend_stub" in line.split()[0]]
    return pid
