"""A fault of tritonserver's start on a busy machine, and how it is noticed.

While a model loads, tritonserver expects a sign of life from the Python backend's stub process every second. A stub
that did not get the CPU in time is given up, and then tritonserver waits for that process to end, which it never does:
the server is neither ready nor does it fail. It has to be started again.
"""

import time
from pathlib import Path
from typing import Protocol

from devtools.errors import DevError

# A stub whose model could not be loaded ends by itself well within this time (seconds).
_PATIENCE = 10.0


class ForgottenStub(DevError):
    """The server has to be started again."""


class Server(Protocol):
    """A tritonserver; of its process ids the first is the server's own."""

    def pids(self) -> list[int]: ...


class StubWatch:
    """Looks at one starting tritonserver, again and again."""

    def __init__(self, server: Server, patience: float = _PATIENCE) -> None:
        """`patience`: how long a server may wait for a child's end, in seconds."""
        self._server = server
        self._patience = patience
        self._waiting_since: float | None = None

    def check(self) -> None:
        """Raises ForgottenStub if the server has been waiting for a child's end for some time."""
        pids = self._server.pids()
        if not pids or not _waits_for_a_child(pids[0]):
            self._waiting_since = None
            return
        now = time.monotonic()
        self._waiting_since = self._waiting_since or now
        if now - self._waiting_since > self._patience:
            raise ForgottenStub(
                "tritonserver gave its Python stub up, since the machine is too busy to start it; "
                "end other programs and run this again."
            )


def _waits_for_a_child(pid: int) -> bool:
    """Whether a thread of `pid` is in the kernel's wait for a child's end, where the kernel says so."""
    try:
        return any((task / "wchan").read_text() == "do_wait" for task in Path(f"/proc/{pid}/task").iterdir())
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False
