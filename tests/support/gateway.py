"""Runs a gateway for a test: a process of its own on a free port, which surely ends with the `with` block."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Gateway:
    """A running gateway. `logs` are its log lines, parsed, growing while it runs."""

    url: str
    process: "subprocess.Popen[str]"
    logs: list[dict[str, Any]] = field(default_factory=list)

    def wait_until_ready(self, timeout: float = 30) -> "Gateway":
        give_up_at = time.monotonic() + timeout
        while True:
            answer = httpx.get(f"{self.url}/health/ready", verify=False)
            if answer.status_code == 200:
                return self
            assert time.monotonic() < give_up_at, f"the gateway is not ready: {answer.text}"
            time.sleep(0.05)

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that carry these labels."""
        total = 0.0
        for line in httpx.get(f"{self.url}/metrics", verify=False).text.splitlines():
            if line.startswith(name) and all(f'{k}="{v}"' in line for k, v in labels.items()):
                total += float(line.rpartition(" ")[2])
        return total


@contextmanager
def running_gateway(*flags: str, command: tuple[str, ...] = ("-m", "gateway"), **environment: str) -> Iterator[Gateway]:
    process = subprocess.Popen(
        [sys.executable, *command, "--port", "0", *flags],
        cwd=ROOT,
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    logs: list[dict[str, Any]] = []
    url = ""
    raw = ""
    for line in process.stderr:
        raw += line
        with_url = _parsed(line, logs)
        if with_url:
            url = with_url
            break
    if not url:
        raise AssertionError(f"the gateway ended with exit code {process.wait()}: {raw}")
    reader = threading.Thread(target=lambda: [_parsed(line, logs) for line in process.stderr or ()], daemon=True)
    reader.start()
    try:
        yield Gateway(url, process, logs)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        reader.join(5)
        process.stderr.close()


@contextmanager
def raw_request(gateway: Gateway, path: str, body: bytes) -> Iterator[socket.socket]:
    """A request on a connection of its own, whose answer is not read."""
    host, _, port = gateway.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        yield connection


def wait_for(condition: Callable[[], bool], timeout: float = 30) -> None:
    give_up_at = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < give_up_at
        time.sleep(0.01)


def _parsed(line: str, logs: list[dict[str, Any]]) -> str:
    try:
        entry = json.loads(line)
    except ValueError:
        entry = {"level": "raw", "message": line}
    logs.append(entry)
    return str(entry["message"]).partition("listening on ")[2]
