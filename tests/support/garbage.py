"""A gateway that tells what only the garbage collector finds: `python -m tests.support.garbage FILE FLAGS…`.

At a SIGUSR1 it counts the unreachable objects that came since the one before, by type, into FILE. Until then none of
them is freed.
"""

import collections
import gc
import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import gateway.__main__ as program
from tests.support.gateway import Gateway, running_gateway
from tests.support.waiting import wait_for


@dataclass
class Watched:
    gateway: Gateway
    _file: Path

    def garbage(self) -> dict[str, int]:
        """What came since the last call."""
        self._file.unlink(missing_ok=True)
        os.kill(self.gateway.process.pid, signal.SIGUSR1)
        wait_for(self._file.exists, "the count")
        found: dict[str, int] = json.loads(self._file.read_text())
        return found


@contextmanager
def watched_gateway(file: Path, *flags: str) -> Iterator[Watched]:
    command = ("-m", "tests.support.garbage", str(file))
    with running_gateway(*flags, command=command) as running:
        yield Watched(running.wait_until_ready(), file)


def _count(file: Path) -> None:
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    found = collections.Counter(f"{type(one).__module__}.{type(one).__qualname__}" for one in gc.garbage)
    gc.set_debug(0)
    gc.garbage.clear()
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    written = file.with_suffix(".part")
    written.write_text(json.dumps(found))
    written.replace(file)


def main() -> int:
    file = Path(sys.argv.pop(1))
    signal.signal(signal.SIGUSR1, lambda *_: _count(file))
    return program.main()


if __name__ == "__main__":
    sys.exit(main())
