"""One `/metrics` for several workers: the multiprocess mode of prometheus_client, in a folder of this start's own.

Whoever starts the workers makes the folder (`directory`); each worker calls `join` **before `gateway.observe.metrics`
is imported**, since a metric is bound to its file when it is made; whoever sees a worker die says so (`worker_died`),
so that what it had in flight is counted no longer. Counters of the dead stay: a counter must not go back.
"""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest, values
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

# The second is prometheus_client's old name for the first.
_VARIABLES = ("PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir")

_joined: Path | None = None


@contextmanager
def directory() -> Iterator[Path]:
    """An empty folder, which is removed in the end."""
    with tempfile.TemporaryDirectory(prefix="gateway-metrics-") as folder:
        yield Path(folder)


def join(folder: Path) -> None:
    """This process counts into the folder from now on."""
    global _joined
    assert "gateway.observe.metrics" not in sys.modules, "the metrics are bound already"
    _joined = folder


def settle() -> None:
    """Where the metrics that are made next are kept: in the folder, or in this process alone, whatever variable of
    another program's it was started with."""
    for variable in _VARIABLES:
        os.environ.pop(variable, None)
    if _joined is not None:
        os.environ[_VARIABLES[0]] = str(_joined)
        values.ValueClass = values.get_value_class()  # type: ignore[no-untyped-call]
    else:
        values.ValueClass = _Value


class _Value(values.MutexValue):
    """One that only the event loop's thread counts: others read it."""

    def inc(self, amount: float) -> None:
        self._value += amount

    def get(self) -> float:
        value: float = self._value
        return value


def worker_died(folder: Path, process: int) -> None:
    """A worker is gone, by its process id."""
    mark_process_dead(process, str(folder))  # type: ignore[no-untyped-call]


def page(own: CollectorRegistry) -> bytes:
    """The text of all workers together, or of this process alone (`own`) where it has not joined any."""
    if _joined is None:
        return generate_latest(own)
    registry = CollectorRegistry()
    MultiProcessCollector(registry, str(_joined))  # type: ignore[no-untyped-call]
    return generate_latest(registry)
