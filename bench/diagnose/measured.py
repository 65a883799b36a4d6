"""What one step of load showed. Pure. Shares of processor time are in cores: 1.0 is one core, all the time."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Regime(StrEnum):
    """Two loads that a frontend feels differently: parsing and rendering, or streaming."""

    PREPROCESS = "preprocess-heavy"
    DECODE = "decode-heavy"


@dataclass(frozen=True)
class Thread:
    """`wanted` is the time that it ran or waited for a core to run on: near 1.0 it never sleeps, whatever else the
    machine does. `on_cpu` is what it got of that."""

    name: str
    on_cpu: float
    wanted: float


@dataclass(frozen=True)
class Process:
    """`rss` in bytes, at the end of the step. `is_engine`: known by its name to compute, not to serve HTTP."""

    pid: int
    name: str
    threads: Sequence[Thread]
    rss: int
    is_python: bool = False
    is_engine: bool = False

    @property
    def on_cpu(self) -> float:
        return sum(thread.on_cpu for thread in self.threads)

    @property
    def wanted(self) -> float:
        return sum(thread.wanted for thread in self.threads)

    @property
    def busiest(self) -> Thread:
        return max(self.threads, key=lambda thread: thread.wanted, default=Thread("", 0.0, 0.0))


@dataclass(frozen=True)
class Latency:
    """In seconds."""

    mean: float
    p50: float
    p99: float


@dataclass(frozen=True)
class Engine:
    """What the engine's metrics say of the step; None where the page does not.

    `running` and `waiting` are requests, on average; `itl` the mean time between tokens and `ttft` that from arrival in
    the engine to the first token (queue and prefill), both in seconds and as the engine sees them; `kv_usage`: 0 to 1.
    """

    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None
    itl: float | None = None
    ttft: float | None = None
    tokens_per_second: float | None = None

    @property
    def requests(self) -> float | None:
        return None if self.running is None else self.running + (self.waiting or 0.0)


@dataclass(frozen=True)
class Step:
    """`concurrency` streams for `seconds`. `client` is what the load tool's busiest process used. `frontend` is None
    where its processes cannot be seen; `cores` are the shares of this machine's cores; `others` its busiest processes
    beside the frontend and the load tool; `gpu` is the share of time in which it computed; `notes` are what the load
    tool says of itself."""

    regime: Regime
    concurrency: int
    seconds: float
    completed: int
    failed: int
    first_error: str
    requests_per_second: float
    tokens_per_second: float
    ttft: Latency
    itl: Latency
    client: float
    frontend: Sequence[Process] | None = None
    cores: Sequence[float] = ()
    others: Sequence[Process] = ()
    engine: Engine | None = None
    gpu: float | None = None
    notes: Sequence[str] = ()

    @property
    def rate(self) -> float:
        """What its regime is about: requests, or tokens, per second."""
        return self.requests_per_second if self.regime is Regime.PREPROCESS else self.tokens_per_second

    @property
    def latency(self) -> Latency:
        """What its regime is about: the time to the first token, or between tokens."""
        return self.ttft if self.regime is Regime.PREPROCESS else self.itl

    @property
    def serving(self) -> Sequence[Process]:
        """The frontend's processes that serve HTTP."""
        return [process for process in self.frontend or () if not process.is_engine]

    @property
    def is_clean(self) -> bool:
        """Whether it says something of a limit other than one that refuses requests."""
        return self.completed > 0 and self.failed <= 0.02 * (self.completed + self.failed)
