"""A running `python -m prefetch serve`, and the commands, as processes of their own."""

import json
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from bench.s3_server import environment
from devtools.paths import ROOT
from tests.support.prefetch import BUCKET, PART_BYTES
from tests.support.waiting import wait_for

TOKEN = "test-token"
_LISTENING = re.compile(r"listening on (http://\S+?)\"")


def settings(folder: Path, endpoint: str, **changes: Any) -> dict[str, Any]:
    """For the YAML file: a local queue, small parts, a free port."""
    return {
        "target": str(folder / "target"),
        "state": str(folder / "state"),
        "port": 0,
        "allow": [f"s3://{BUCKET}/team-a/"],
        "tokens": [TOKEN],
        "s3_endpoint": endpoint,
        "concurrency": 4,
        "part_bytes": PART_BYTES,
        "reserve_bytes": 0,
        "high_watermark": 1.0,
        "low_watermark": 1.0,
    } | changes


def command(*arguments: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """`python -m prefetch …`, to its end."""
    full = [sys.executable, "-m", "prefetch", *arguments]
    return subprocess.run(full, cwd=ROOT, env=environment(**(env or {})), capture_output=True, text=True, timeout=110)


def spawn(*arguments: str) -> subprocess.Popen[bytes]:
    full = [sys.executable, "-m", "prefetch", *arguments]
    return subprocess.Popen(full, cwd=ROOT, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


class RunningService:
    """Started with `settings` in a file below `folder`; `kill` and `start` again keep the state."""

    def __init__(self, folder: Path, settings: Mapping[str, Any], **env: str) -> None:
        self.folder = folder
        self.target = Path(settings["target"])
        self._env = environment(**env)
        self._config = folder / "prefetch.yaml"
        folder.mkdir(parents=True, exist_ok=True)
        self._config.write_text(yaml.safe_dump(dict(settings)))
        self.log = folder / "log"
        self.url = ""
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        before = len(self._log_text())
        with open(self.log, "ab") as log:
            full = [sys.executable, "-m", "prefetch", "serve", "--config", str(self._config)]
            self._process = subprocess.Popen(full, cwd=ROOT, env=self._env, stderr=log)
        process = self._process

        def listening() -> str | None:
            assert process.poll() is None, self._log_text()
            found = _LISTENING.search(self._log_text()[before:])
            return found[1] if found else None

        self.url = str(wait_for(listening, "the service"))
        wait_for(self._is_live, "the service's answer")

    def kill(self) -> None:
        """As kill -9 does."""
        assert self._process
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        """As an orchestrator does; the exit code."""
        assert self._process
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(timeout=100)

    def close(self) -> None:
        if self._process and self._process.poll() is None:
            self.kill()

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        token: str | None = TOKEN,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, Any]:
        """Status and parsed JSON (or text). Bytes are sent as they are."""
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        given = dict(headers or {}) | ({"Authorization": f"Bearer {token}"} if token else {})
        request = urllib.request.Request(self.url + path, data, given, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                status, text = answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read().decode()
        try:
            return status, json.loads(text)
        except ValueError:
            return status, text

    def announce(self, source: str, model: str = "m", version: str = "1", **more: Any) -> dict[str, Any]:
        body = {"model": model, "version": version, "source": source} | more
        status, job = self.ask("POST", "/v1/announcements", body)
        assert status == 202, job
        return dict(job)

    def job(self, job_id: str) -> dict[str, Any]:
        status, job = self.ask("GET", f"/v1/jobs/{job_id}", token=None)
        assert status == 200, job
        return dict(job)

    def wait_for_job(self, job_id: str, *states: str) -> dict[str, Any]:
        """The job once it is in one of these states."""

        def reached() -> dict[str, Any] | None:
            job = self.job(job_id)
            return job if job["state"] in states else None

        return wait_for(reached, f"a job to be {' or '.join(states)}")

    def wait_for_job_of(self, model: str, state: str) -> dict[str, Any]:
        """The job of that model, once it is in this state."""

        def reached() -> dict[str, Any] | None:
            jobs = self.ask("GET", "/v1/jobs", token=None)[1]["jobs"]
            return next((job for job in jobs if job["model"] == model and job["state"] == state), None)

        return wait_for(reached, f"a job to be {state}")

    def events(self, job_id: str) -> Iterator[dict[str, Any]]:
        """Each event of the stream, until the service ends it."""
        with urllib.request.urlopen(f"{self.url}/v1/jobs/{job_id}/events", timeout=90) as answer:
            assert answer.headers["Content-Type"].startswith("text/event-stream")
            for line in answer:
                if line.startswith(b"data: "):
                    yield json.loads(line[6:])

    def metric(self, name: str) -> float:
        """The sum of a metric's samples."""
        _, page = self.ask("GET", "/metrics", token=None)
        lines = [line for line in page.splitlines() if re.match(rf"{name}[{{ ]", line)]
        assert lines, name
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    def _is_live(self) -> bool:
        try:
            return self.ask("GET", "/health/live", token=None)[0] == 200
        except OSError:
            return False

    def _log_text(self) -> str:
        return self.log.read_text() if self.log.exists() else ""


StartService = Callable[..., RunningService]
