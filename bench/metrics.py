"""What a scrape of the metrics proxy costs, beside prometheus_client doing the same: `python -m bench.metrics`.

Both read the same directory in the same run, in turns, and both fetch Triton's page over HTTP: the proxy, from the
start of a scrape to the bytes of the page; the other, `MultiProcessCollector` and `generate_latest`. The last column is
a GET of the proxy's page over HTTP, with the time that a scraper and two more processes need to talk. Before each turn
the live processes count, so that nothing can be remembered. Exit code 1 if a ratio is below what is promised.
"""

import argparse
import asyncio
import contextlib
import fcntl
import http.client
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

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


@contextmanager
def collecting(flags: list[str]) -> Iterator[Callable[[], bytes]]:
    """The proxy without a server around it: a function that gives its page."""
    app = MetricsProxy(load(flags))
    received: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()
    sent: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()

    async def page() -> bytes:
        return (await app.collect(60)).text

    async def lifespan(event: str) -> None:
        await received.put({"type": f"lifespan.{event}"})
        assert (await sent.get())["type"] == f"lifespan.{event}.complete"

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        running = runner.get_loop().create_task(app({"type": "lifespan"}, received.get, sent.put))
        runner.run(lifespan("startup"))
        yield lambda: runner.run(page())
        runner.run(lifespan("shutdown"))
        runner.get_loop().run_until_complete(running)


def milliseconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) * 1000


def least(engines: list[Engine], rounds: int, *works: Callable[[], object]) -> list[float]:
    """The least time of each work in ms; they take turns. Whatever else the machine does only adds to it."""
    times: list[list[float]] = [[] for _ in works]
    for _ in range(rounds):
        for work, found in zip(works, times, strict=True):
            for engine in engines:
                engine.count()
            found.append(milliseconds(work))
    return [min(found) for found in times]


def rss_kib(pid: int) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().partition("VmRSS:")[2].split()[0])


def main() -> int:
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
        series = sum(line[:1] != b"#" for line in reference().splitlines())
        print(f"{LIVE} live processes, {series} series with Triton's; least times of one run, in ms\n")
        print(f"{'':36}{'prometheus_client':>18}{'proxy':>8}{'ratio':>7}{'GET':>8}")
        with collecting(flags) as collect, serving(port, flags) as pid:
            live_reference, live, over_http = least(engines, 60, reference, collect, scrape)
            _show("live processes", live_reference, live, over_http)
            _show("  OpenMetrics and gzip", live_reference, None, *least(engines, 60, scrape_as_prometheus))
            before = rss_kib(pid)
            for _ in range(arguments.scrapes):
                scrape()
            after = rss_kib(pid)
        bury(directory, arguments.dead, _FIRST_PID)
        untouched_flags = [*flags, "--compact-after", "0"]
        with collecting(untouched_flags) as collect, serving(port, untouched_flags):
            first = milliseconds(collect)
            dead_reference, untouched, over_http = least(engines, 2, reference, collect, scrape)
            _show(f"and {arguments.dead} dead, left as they are", dead_reference, untouched, over_http)
        with collecting(flags) as collect:
            tidying = milliseconds(collect)
            with serving(port, flags):
                tidied, over_http = least(engines, 60, collect, scrape)
            _show(f"and {arguments.dead} dead, tidied", dead_reference, tidied, over_http)
        for engine in engines:
            engine.end()
        print(f"\nThe first scrape with {arguments.dead} dead: {tidying:.0f} ms if it tidies, {first:.0f} ms if not.")
        print(f"With their history a scrape takes {tidied / live:.2f} of one without.")
        print(f"Memory over {arguments.scrapes} scrapes: {before / 1024:.1f} to {after / 1024:.1f} MiB.")
    good = live_reference / live >= LEAST_LIVE_RATIO and dead_reference / tidied >= LEAST_DEAD_RATIO
    print(f"\nAt least {LEAST_LIVE_RATIO} and {LEAST_DEAD_RATIO} times as fast: {'yes' if good else 'NO'}")
    return 0 if good else 1


def _show(what: str, reference: float, ours: float | None, over_http: float) -> None:
    figures = f"{ours:8.2f}{reference / ours:7.1f}" if ours else f"{'':15}"
    print(f"{what:36}{reference:18.2f}{figures}{over_http:8.2f}", flush=True)


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
    sys.exit(main())
