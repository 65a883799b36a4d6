"""Keeps a load going: in this event loop (`run`), or in processes of its own (`run_in_processes`).

Closed loop: so many requests are in flight, the next one begins when one ends. Open loop: requests begin at random
times of a rate, as those of many independent users do, whether or not the server keeps up; a request's times count from
when it was due.
"""

import asyncio
import multiprocessing
import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import FrameType

import uvloop

from bench.load.check import Outcome
from bench.load.client import Client
from bench.load.workloads import Request, Workload

_TELL_SECONDS = 0.25
_LOOK_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    concurrency: int


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """`rate` is in requests per second (a Poisson process)."""

    rate: float


Arrivals = ClosedLoop | OpenLoop


@dataclass(frozen=True, slots=True)
class Limit:
    """When no more requests begin: after so many, or so many seconds, whichever comes first. Those in flight are
    waited for."""

    requests: int | None = None
    seconds: float | None = None


@dataclass(slots=True)
class Run:
    """What came of a load, in the order in which the requests ended. `seconds` go from the first request's begin to the
    last one's end. `cpu_share` is how much of a core the busiest process of the load itself used in its busiest second:
    near 1 it is the load that is measured. `lag` is the longest time for which its event loop was held up.
    `is_interrupted`: Ctrl-C has ended it; what was in flight then is left out."""

    outcomes: list[Outcome] = field(default_factory=list)
    seconds: float = 0.0
    cpu_share: float = 0.0
    lag: float = 0.0
    processes: int = 1
    is_interrupted: bool = False


@dataclass(slots=True)
class Progress:
    """How far a load is. `refused` of the answers have another status than 200; `refusal` is one of them."""

    begun: int = 0
    ended: int = 0
    wrong: int = 0
    tokens: int = 0
    refused: int = 0
    refusal: Outcome | None = None

    def count(self, outcome: Outcome) -> None:
        self.ended += 1
        self.wrong += not outcome.is_right
        self.tokens += outcome.tokens
        if outcome.status not in (0, 200):
            self.refused += 1
            self.refusal = outcome


async def run(
    client: Client,
    workload: Workload,
    arrivals: Arrivals,
    limit: Limit,
    progress: Progress | None = None,
    *,
    seed: int = 0,
    stop: asyncio.Event | None = None,
) -> Run:
    """A load from this event loop. `progress` is kept true meanwhile. `stop` ends it early: what is in flight then is
    given up and left out."""
    progress = progress or Progress()
    load = _Load(client, iter(workload), limit, progress)
    watch = _Watch()
    watching = asyncio.create_task(watch.keep_looking())
    asking = asyncio.create_task(load.ask(arrivals, seed))
    stopping = asyncio.create_task((stop or asyncio.Event()).wait())
    try:
        await asyncio.wait((asking, stopping), return_when=asyncio.FIRST_COMPLETED)
        if asking.done():
            asking.result()
    finally:
        for task in (watching, asking, stopping):
            task.cancel()
    return Run(load.outcomes, _span(load.outcomes), watch.share(), watch.lag)


class _Watch:
    """What the load itself uses of its core, second by second, and whether its event loop is on time."""

    def __init__(self) -> None:
        self._cpu, self._since = time.process_time(), time.perf_counter()
        self._busiest: float | None = None
        self.lag = 0.0

    async def keep_looking(self) -> None:
        while True:
            slept = time.perf_counter()
            await asyncio.sleep(_LOOK_SECONDS)
            self.lag = max(self.lag, time.perf_counter() - slept - _LOOK_SECONDS)
            if time.perf_counter() - self._since >= 1:
                self._busiest = max(self._busiest or 0.0, self._share())
                self._cpu, self._since = time.process_time(), time.perf_counter()

    def share(self) -> float:
        """Of the busiest second; of all of a load that took less."""
        return self._share() if self._busiest is None else self._busiest

    def _share(self) -> float:
        return (time.process_time() - self._cpu) / max(time.perf_counter() - self._since, 1e-9)


class _Load:
    def __init__(self, client: Client, requests: Iterator[Request], limit: Limit, progress: Progress) -> None:
        self._client = client
        self._requests = requests
        self._most = limit.requests
        self._ends_at = None if limit.seconds is None else time.perf_counter() + limit.seconds
        self._progress = progress
        self.outcomes: list[Outcome] = []

    def _next(self) -> Request | None:
        is_over = self._ends_at is not None and time.perf_counter() >= self._ends_at
        if is_over or self._progress.begun == self._most:
            return None
        self._progress.begun += 1
        return next(self._requests)

    async def ask(self, arrivals: Arrivals, seed: int) -> None:
        if isinstance(arrivals, ClosedLoop):
            await asyncio.gather(*(self._keep_asking() for _ in range(arrivals.concurrency)))
        else:
            await self._ask_at_random_times(arrivals.rate, random.Random(seed))

    async def _keep_asking(self) -> None:
        while (request := self._next()) is not None:
            self._note(await self._client.ask(request))

    async def _ask_at_random_times(self, rate: float, choose: random.Random) -> None:
        due = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            while True:
                due += choose.expovariate(rate)
                if self._ends_at is not None and due >= self._ends_at:
                    return
                await asyncio.sleep(max(due - time.perf_counter(), 0))
                if self._most is not None and self._progress.begun == self._most:
                    return
                self._progress.begun += 1
                tasks.create_task(self._ask_one(next(self._requests), due))

    async def _ask_one(self, request: Request, due: float) -> None:
        self._note(await self._client.ask(request, due))

    def _note(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        self._progress.count(outcome)


@dataclass(frozen=True, slots=True)
class Target:
    """Where a load goes; as `Client`'s arguments, for whichever process it is that asks."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout: float = 600.0
    unix_socket: str | None = None

    def client(self) -> Client:
        return Client(self.url, unix_socket=self.unix_socket, headers=self.headers, timeout=self.timeout)


def run_in_processes(
    target: Target,
    workload: Workload,
    arrivals: Arrivals,
    limit: Limit,
    processes: int = 1,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> Run:
    """A load from so many processes, each with its part of the concurrency or of the rate, and of the requests.
    `on_progress` is called a few times a second; what it raises ends the load. The parts are joined.

    Ctrl-C ends it with what has been measured so far, a second one at once. For the main thread.
    """
    context = multiprocessing.get_context("spawn")
    links: dict[Connection, Progress] = {}
    running: list[BaseProcess] = []
    parts: list[Run] = []
    is_interrupted = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal is_interrupted
        is_interrupted = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for process in running:
            process.terminate()

    before = signal.signal(signal.SIGINT, interrupt)
    # A terminal sends Ctrl-C to the processes of the load as well, which inherit that it is blocked. What helps spawn
    # to start them would unblock it when it starts itself.
    resource_tracker.ensure_running()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        for number in range(processes):
            ours, theirs = context.Pipe(duplex=False)
            part = (_part(workload, number, processes), _part_of_arrivals(arrivals, number, processes))
            arguments = (theirs, target, *part, _part_of_limit(limit, number, processes), number)
            started = context.Process(target=_work, args=arguments, daemon=True)
            started.start()
            theirs.close()
            links[ours] = Progress()
            running.append(started)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        if is_interrupted:
            # By way of another thread, which does not block it, when not all of them were there.
            for process in running:
                process.terminate()
        while links:
            for link in wait(list(links)):
                assert isinstance(link, Connection)
                try:
                    news = link.recv()
                except EOFError:
                    if not is_interrupted:
                        raise RuntimeError("a process of the load has died") from None
                    # Before it could ask anything.
                    news = Run()
                if isinstance(news, Run):
                    parts.append(news)
                    links.pop(link)
                else:
                    links[link] = news
            on_progress(_sum([*links.values()], parts))
        for process in running:
            process.join()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        signal.signal(signal.SIGINT, before)
        for process in running:
            process.kill()
    return _joined(parts, is_interrupted)


def _part(workload: Workload, number: int, processes: int) -> Workload:
    """Each process begins at another place of the pool."""
    begin = len(workload.requests) * number // processes
    return Workload(workload.name, [*workload.requests[begin:], *workload.requests[:begin]])


def _share(whole: int, number: int, processes: int) -> int:
    return whole // processes + (number < whole % processes)


def _part_of_arrivals(arrivals: Arrivals, number: int, processes: int) -> Arrivals:
    if isinstance(arrivals, OpenLoop):
        return OpenLoop(arrivals.rate / processes)
    return ClosedLoop(_share(arrivals.concurrency, number, processes))


def _part_of_limit(limit: Limit, number: int, processes: int) -> Limit:
    return Limit(None if limit.requests is None else _share(limit.requests, number, processes), limit.seconds)


def _sum(running: list[Progress], ended: list[Run]) -> Progress:
    total = Progress()
    for run in ended:
        for outcome in run.outcomes:
            total.begun += 1
            total.count(outcome)
    for progress in running:
        total.begun += progress.begun
        total.ended += progress.ended
        total.wrong += progress.wrong
        total.tokens += progress.tokens
        total.refused += progress.refused
        total.refusal = progress.refusal or total.refusal
    return total


def _joined(parts: list[Run], is_interrupted: bool) -> Run:
    outcomes = sorted((outcome for part in parts for outcome in part.outcomes), key=lambda outcome: outcome.ended)
    share, lag = max(part.cpu_share for part in parts), max(part.lag for part in parts)
    return Run(outcomes, _span(outcomes), share, lag, len(parts), is_interrupted)


def _span(outcomes: list[Outcome]) -> float:
    if not outcomes:
        return 0.0
    return max(outcome.ended for outcome in outcomes) - min(outcome.began for outcome in outcomes)


def _work(link: Connection, target: Target, workload: Workload, arrivals: Arrivals, limit: Limit, number: int) -> None:
    """One process of a load."""
    link.send(uvloop.run(_work_and_tell(link, target, workload, arrivals, limit, number)))
    link.close()


async def _work_and_tell(
    link: Connection, target: Target, workload: Workload, arrivals: Arrivals, limit: Limit, number: int
) -> Run:
    client = target.client()
    progress = Progress()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)

    async def tell() -> None:
        while True:
            await asyncio.sleep(_TELL_SECONDS)
            link.send(progress)

    telling = asyncio.create_task(tell())
    try:
        return await run(client, workload, arrivals, limit, progress, seed=number, stop=stop)
    finally:
        telling.cancel()
        client.close()
