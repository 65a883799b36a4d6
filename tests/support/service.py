"""Runs a service for a test: a process of its own on a free port, which surely ends with the `with` block."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devtools.paths import ROOT

# Longer than the proxy gives scrapes that run.
_STOP_SECONDS = 15


@dataclass
class Service:
    """A running service. `logs` are its log lines, parsed, growing while it runs."""

    url: str
    process: "subprocess.Popen[str]"
    logs: list[dict[str, Any]]


@contextmanager
def running_service(*command: str, environment: Mapping[str, str]) -> Iterator[Service]:
    """Python with these arguments, `--port 0` among them, once it says where it listens."""
    process = subprocess.Popen(
        [sys.executable, *command],
        cwd=ROOT,
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    logs: list[dict[str, Any]] = []
    url = ""
    for line in process.stderr:
        logs.append(_parsed(line))
        if url := str(logs[-1]["message"]).partition("listening on ")[2].strip():
            break
    if not url:
        raise AssertionError(f"{' '.join(command)} ended with exit code {process.wait()}: {logs}")
    reader = threading.Thread(target=lambda: logs.extend(map(_parsed, process.stderr or ())), daemon=True)
    reader.start()
    try:
        yield Service(url, process, logs)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        reader.join(5)
        process.stderr.close()


def is_alive(pid: str) -> bool:
    """Whether a process runs; one that has ended and not been waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _parsed(line: str) -> dict[str, Any]:
    try:
        return dict(json.loads(line))
    except ValueError:
        return {"level": "raw", "message": line}
