"""What a scrape of the metrics proxy costs, beside prometheus_client doing the same: `python -m bench.metrics`.

Both read the same directory in the same run, in turns, and both fetch Triton's page over HTTP: the proxy, from the
start of a scrape to the bytes of the page; the other, `MultiProcessCollector` and `generate_latest`. The ratio is that
of the processor's time, which other load on the machine changes least; beside it stands the time that passed, and that
of a GET of the proxy's page. Before each turn the live processes count, so that nothing can be remembered. Exit code 1
if a ratio is below what is promised.
"""

import argparse
import asyncio
import contextlib
import fcntl
import gc
import http.client
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import prometheus_client.values
import uvloop
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.values import MultiProcessValue

from metrics_proxy.app import MetricsProxy
from metrics_proxy.settings import load

ROOT = Path(__file__).resolve().parents[1]
FAMILIES = json.loads(Path(__file__).with_name("vllm_metrics.json").read_text(encoding="utf-8"))
"""The families of an engine of vLLM 0.32 after some requests; `help` is the length of the text."""

LIVE = 4
LEAST_LIVE_RATIO = 5
LEAST_DEAD_RATIO = 20

# Linux gives no process a pid above 2 ** 22.
_FIRST_PID = 5_000_000


class Engine:
    """The metrics of one vLLM process, written by prometheus_client; with the lock of one that lives."""

    def __init__(self, directory: Path, pid: int, model: str) -> None:
        self._lock: BinaryIO = (directory / f"{pid}.alive").open("wb")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        registry = CollectorRegistry()
        prometheus_client.values.ValueClass = MultiProcessValue(lambda: pid)  # type: ignore[no-untyped-call]
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(directory)
        self._metrics: list[Any] = []
        for family in FAMILIES:
            names = [*(["engine"] if family["has_engine"] else []), "model_name", *family["children"][0]]
            options: dict[str, Any] = {"labelnames": names, "registry": registry}
            if family["type"] == "histogram":
                metric: Any = Histogram(family["name"], "." * family["help"], buckets=family["bounds"], **options)
            elif family["type"] == "gauge":
                metric = Gauge(family["name"], "." * family["help"], multiprocess_mode="mostrecent", **options)
            else:
                metric = Counter(family["name"], "." * family["help"], **options)
            for child in family["children"]:
                engine = {"engine": "0"} if family["has_engine"] else {}
                self._metrics.append(metric.labels(**engine, model_name=model, **child))
        self.count()

    def count(self) -> None:
        """Every value changes."""
        for metric in self._metrics:
            if isinstance(metric, Histogram):
                metric.observe(0.37)
            elif isinstance(metric, Gauge):
                metric.set(time.time() % 1000)
            else:
                metric.inc(1.5)

    def end(self) -> None:
        self._lock.close()


def bury(directory: Path, number: int, like: int) -> None:
    """The files of that many dead processes, as full as those of the process `like`."""
    for file in list(directory.glob(f"*_{like}.db")):
        data = file.read_bytes()
        used = int.from_bytes(data[:4], sys.byteorder)
        for pid in range(_FIRST_PID + 1000, _FIRST_PID + 1000 + number):
            with (directory / f"{file.name.rpartition('_')[0]}_{pid}.db").open("wb") as copy:
                copy.write(data[:used])
                copy.truncate(len(data))
    for pid in range(_FIRST_PID + 1000, _FIRST_PID + 1000 + number):
        (directory / f"{pid}.alive").write_bytes(b"")


@contextmanager
def process(*command: str, ready: Callable[[], object]) -> Iterator["subprocess.Popen[bytes]"]:
    running = subprocess.Popen(
        [sys.executable, "-m", *command], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        while not ready():
            if running.poll() is not None:
                raise SystemExit(f"{command[0]} ended with exit code {running.returncode}; are its ports free?")
            time.sleep(0.05)
        yield running
    finally:
        running.terminate()
        running.wait()


_connections: dict[int, http.client.HTTPConnection] = {}


def get(port: int, path: str, **headers: str) -> bytes:
    """Over a connection that is kept, as Prometheus does."""
    connection = _connections.setdefault(port, http.client.HTTPConnection("127.0.0.1", port, timeout=120))
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        body = answer.read()
    except (OSError, http.client.HTTPException):
        _connections.pop(port).close()
        raise
    if answer.status != 200:
        raise SystemExit(f"port {port} answered {answer.status}: {body[:200]!r}")
    return body


def answers(port: int, path: str) -> bool:
    try:
        get(port, path)
    except (OSError, http.client.HTTPException, SystemExit):
        return False
    return True


def sources(directory: Path, triton_port: int, *flags: str) -> list[str]:
    # The scrape that tidies 2,000 dead processes may take its time on a small machine.
    addresses = (f"triton=http://127.0.0.1:{triton_port}/metrics", f"directory={directory}")
    named = [argument for address in addresses for argument in ("--source", address)]
    return [*named, "--source-timeout", "60", *flags]


@contextmanager
def serving(port: int, flags: list[str]) -> Iterator[int]:
    """The proxy as a process; its pid."""
    command = ("metrics_proxy", "--port", str(port), *flags)
    with process(*command, ready=lambda: answers(port, "/health/live")) as running:
        yield running.pid


@asynccontextmanager
async def collecting(flags: list[str]) -> AsyncIterator[Callable[[], Awaitable[bytes]]]:
    """The proxy without a server around it: a function that gives its page."""
    app = MetricsProxy(load(flags))
    received: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()
    sent: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()

    async def page() -> bytes:
        return (await app.collect(60)).text

    running = asyncio.create_task(app({"type": "lifespan"}, received.get, sent.put))
    await received.put({"type": "lifespan.startup"})
    await sent.get()
    yield page
    await received.put({"type": "lifespan.shutdown"})
    await running


class Time(NamedTuple):
    """In ms: what passed, and what the processor spent on it in this process."""

    passed: float
    processor: float


Work = Callable[[], bytes | Awaitable[bytes]]


async def time_of(work: Work) -> Time:
    passed, processor = time.perf_counter(), time.process_time()
    page = work()
    if not isinstance(page, bytes):
        await page
    return Time((time.perf_counter() - passed) * 1000, (time.process_time() - processor) * 1000)


async def least(engines: list[Engine], rounds: int, *works: Work) -> list[Time]:
    """The least of each work, which take turns: whatever else the machine does only adds to it."""
    times: list[list[Time]] = [[] for _ in works]
    for _ in range(rounds):
        for work, found in zip(works, times, strict=True):
            for engine in engines:
                engine.count()
            found.append(await time_of(work))
    return [Time(*map(min, zip(*found, strict=True))) for found in times]


def rss_kib(pid: int) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().partition("VmRSS:")[2].split()[0])


async def compare() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.metrics", description=__doc__)
    parser.add_argument("--dead", type=int, default=2000, help="dead processes (default: 2000)")
    parser.add_argument("--scrapes", type=int, default=10_000, help="scrapes of the look at memory (default: 10000)")
    parser.add_argument("--port", type=int, default=19450, help="the proxy's port, and the next one (default: 19450)")
    arguments = parser.parse_args()
    port, triton_port = arguments.port, arguments.port + 1
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=_memory())))
        (folder / "page").mkdir()
        (folder / "page" / "metrics").write_text(_triton_page())
        directory = folder / "directory"
        directory.mkdir()
        engines = [Engine(directory, _FIRST_PID + i, f"acme/model-{i}-chat") for i in range(LIVE)]
        how = ("--protocol", "HTTP/1.1", "--bind", "127.0.0.1", "--directory", str(folder / "page"))
        server = ("http.server", *how, str(triton_port))
        stack.enter_context(process(*server, ready=lambda: answers(triton_port, "/metrics")))

        def reference() -> bytes:
            registry = CollectorRegistry()
            MultiProcessCollector(registry, str(directory))  # type: ignore[no-untyped-call]
            return get(triton_port, "/metrics") + generate_latest(registry)

        def scrape() -> bytes:
            return get(port, "/metrics")

        def scrape_as_prometheus() -> bytes:
            accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
            return get(port, "/metrics", **{"Accept": accept, "Accept-Encoding": "gzip"})

        flags = sources(directory, triton_port)
        # The metrics of the engines that live in this process are none of what is measured.
        gc.collect()
        gc.freeze()
        series = sum(line[:1] != b"#" for line in reference().splitlines())
        print(f"{LIVE} live processes, {series} series with Triton's; least times of one run, in ms\n")
        print(f"{'':32}{'processor time':^30}{'time that passed':^32}")
        print(f"{'':32}{'client':>10}{'proxy':>10}{'ratio':>10}{'client':>10}{'proxy':>10}{'GET':>10}")
        async with collecting(flags) as collect:
            with serving(port, flags) as pid:
                live_reference, live, over_http = await least(engines, 60, reference, collect, scrape)
                _show("live processes", live_reference, live, over_http)
                (packed,) = await least(engines, 60, scrape_as_prometheus)
                before = rss_kib(pid)
                for _ in range(arguments.scrapes):
                    scrape()
                after = rss_kib(pid)
        bury(directory, arguments.dead, _FIRST_PID)
        untouched_flags = [*flags, "--compact-after", "0"]
        async with collecting(untouched_flags) as collect:
            first = (await time_of(collect)).passed
            with serving(port, untouched_flags):
                scrape()
                dead_reference, untouched, over_http = await least(engines, 3, reference, collect, scrape)
            _show(f"and {arguments.dead} dead, left as they are", dead_reference, untouched, over_http)
        async with collecting(flags) as collect:
            tidying = (await time_of(collect)).passed
            with serving(port, flags):
                scrape()
                tidied, over_http = await least(engines, 60, collect, scrape)
            _show(f"and {arguments.dead} dead, tidied", dead_reference, tidied, over_http)
        for engine in engines:
            engine.end()
        print(f"\nThe first scrape with {arguments.dead} dead: {tidying:.0f} ms if it tidies, {first:.0f} ms if not.")
        print(f"With their history a scrape takes {tidied.processor / live.processor:.2f} of one without.")
        print(f"A GET as Prometheus makes it, OpenMetrics and gzip, without them: {packed.passed:.2f} ms.")
        print(f"Memory over {arguments.scrapes} scrapes: {before / 1024:.1f} to {after / 1024:.1f} MiB.")
    good = (
        live_reference.processor / live.processor >= LEAST_LIVE_RATIO
        and dead_reference.processor / tidied.processor >= LEAST_DEAD_RATIO
    )
    print(f"\nAt least {LEAST_LIVE_RATIO} and {LEAST_DEAD_RATIO} times as fast: {'yes' if good else 'NO'}")
    return 0 if good else 1


def _show(what: str, reference: Time, ours: Time, over_http: Time) -> None:
    processor = f"{reference.processor:10.2f}{ours.processor:10.2f}{reference.processor / ours.processor:10.1f}"
    print(f"{what:32}{processor}{reference.passed:10.2f}{ours.passed:10.2f}{over_http.passed:10.2f}", flush=True)


def _memory() -> str | None:
    """Where files are memory, as such a directory should be."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _triton_page() -> str:
    """As many series as a Triton with one model has."""
    lines = []
    for i in range(24):
        lines += [f"# HELP nv_metric_{i} {'.' * 60}", f"# TYPE nv_metric_{i} counter"]
        lines += [f'nv_metric_{i}{{model="m{i}",version="{j}"}} {i * j}' for j in range(2)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sys.exit(runner.run(compare()))
