"""Debian's Prometheus, for the tests that let the real one scrape."""

import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.ports import free_port
from tests.support.metrics import TEXT, Key
from tests.support.waiting import wait_for

FORMATS = ("text", "openmetrics")


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not there: apt-get install --no-install-recommends prometheus")
    return found


@pytest.fixture(scope="session")
def promtool() -> str:
    return _program("promtool")


@dataclass
class Prometheus:
    """A running one, with one job for each of `FORMATS`."""

    url: str
    log: Path

    def query(self, expression: str) -> list[dict[str, Any]]:
        answer = httpx.get(f"{self.url}/api/v1/query", params={"query": expression}, timeout=30)
        assert answer.status_code == 200, answer.text
        found: list[dict[str, Any]] = answer.json()["data"]["result"]
        return found

    def wait_for_scrapes(self) -> None:
        """One good scrape in each format that begins from now on."""
        since = time.time()
        for job in FORMATS:
            good = f'timestamp(up{{job="{job}"}} == 1) > {since}'
            try:
                wait_for(lambda good=good: self.query(good))  # type: ignore[misc]
            except AssertionError:
                targets = httpx.get(f"{self.url}/api/v1/targets", timeout=30).text
                raise AssertionError(f"{job}: {targets}\n{self.log.read_text()}") from None

    def values(self, job: str) -> dict[Key, float]:
        """What is stored of the target now, but for what Prometheus adds."""
        found = {}
        for entry in self.query(f'{{job="{job}"}}'):
            name = entry["metric"]["__name__"]
            if not name.startswith("scrape_") and name != "up":
                labels = {k: v for k, v in entry["metric"].items() if k not in ("__name__", "job", "instance")}
                found[name, frozenset(labels.items())] = float(entry["value"][1])
        return found


@contextmanager
def _as_text(target: str) -> Iterator[int]:
    """The port of a relay that asks for the text format: this Prometheus always asks for OpenMetrics."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            timeout = self.headers["X-Prometheus-Scrape-Timeout-Seconds"]
            headers = {"Accept": TEXT, "X-Prometheus-Scrape-Timeout-Seconds": timeout}
            answer = httpx.get(f"{target}{self.path}", headers=headers, timeout=60)
            self.send_response(answer.status_code)
            self.send_header("Content-Type", answer.headers["content-type"])
            self.end_headers()
            self.wfile.write(answer.content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


@contextmanager
def running_prometheus(target: str, folder: Path) -> Iterator[Prometheus]:
    """One that scrapes this base URL in both formats."""
    port = free_port()
    with _as_text(target) as text_port, (folder / "log").open("wb") as log:
        (folder / "prometheus.yml").write_text(
            "global: {scrape_interval: 2s, scrape_timeout: 2s}\n"
            "scrape_configs:\n"
            f"- {{job_name: text, static_configs: [{{targets: ['127.0.0.1:{text_port}']}}]}}\n"
            f"- {{job_name: openmetrics, static_configs: [{{targets: ['{target.removeprefix('http://')}']}}]}}\n"
        )
        command = [_program("prometheus"), "--config.file=prometheus.yml", "--storage.tsdb.path=data"]
        command.append(f"--web.listen-address=127.0.0.1:{port}")
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
        try:
            running = Prometheus(f"http://127.0.0.1:{port}", folder / "log")
            wait_for(lambda: _answers(f"{running.url}/-/ready"))
            yield running
        finally:
            process.kill()
            process.wait()


@pytest.fixture
def prometheus(tmp_path: Path) -> Callable[[str], Any]:
    """`with prometheus(base_url) as running`."""

    def start(target: str) -> Any:
        folder = tmp_path / "prometheus"
        folder.mkdir()
        return running_prometheus(target, folder)

    return start


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).status_code == 200
    except httpx.HTTPError:
        return False
