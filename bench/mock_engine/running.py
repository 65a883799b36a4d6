"""Runs a mock engine for a test: a process of its own on a free port, which surely ends with the `with` block.

with running_mock_engine(stock=True) as engine:
    engine.add_fault(match="please stall", stall_after=3)
    ... engine.url ...
    (request,) = engine.wait_for_requests(1)
"""

import asyncio
import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

_ROOT = Path(__file__).resolve().parents[2]
_STOP_SECONDS = 5.0


class MockEngineError(Exception):
    """The mock engine did not start, or refused what a test asked of it."""


@dataclass(frozen=True, slots=True)
class MockEngine:
    """A running mock engine, the process `pid`. A call blocks for about a millisecond, which an async test can
    bear."""

    url: str
    pid: int

    def add_fault(self, **fault: Any) -> None:
        """Adds a fault, see `faults.Fault` for the fields."""
        self._call("POST", "/mock/faults", fault)

    def clear_faults(self) -> None:
        """Removes all faults; stalled requests go on."""
        self._call("DELETE", "/mock/faults")

    def requests(self, match: str = "") -> list[dict[str, Any]]:
        """The requests received so far whose text_input contains `match`, see `record.Record` for the fields."""
        received = cast(list[dict[str, Any]], self._call("GET", "/mock/requests"))
        return [request for request in received if match in str(request["inputs"].get("text_input", ""))]

    def wait_for_requests(self, count: int, match: str = "", timeout: float = 30.0) -> list[dict[str, Any]]:
        """The requests as soon as at least `count` of them have ended. Raises MockEngineError after `timeout`
        seconds."""
        give_up_at = time.monotonic() + timeout
        while True:
            requests = self.requests(match)
            if sum(request["ended"] is not None for request in requests) >= count:
                return requests
            if time.monotonic() > give_up_at:
                raise MockEngineError(f"not {count} requests have ended within {timeout} s: {requests}")
            time.sleep(0.01)

    async def requests_ended(self, count: int, match: str = "", within: float = 5.0) -> list[dict[str, Any]]:
        """`wait_for_requests` without blocking the event loop."""
        return await asyncio.to_thread(self.wait_for_requests, count, match, within)

    def forget_requests(self) -> None:
        self._call("DELETE", "/mock/requests")

    def state(self) -> dict[str, Any]:
        return cast(dict[str, Any], self._call("GET", "/mock/state"))

    def set_state(self, **change: Any) -> None:
        """`live`, `ready`, `models={name: {"ready": bool}}`."""
        self._call("POST", "/mock/state", change)

    def reset(self) -> None:
        """No faults, no requests, everything live and ready again."""
        self.clear_faults()
        self.forget_requests()
        self.set_state(live=True, ready=True, models={name: {"ready": True} for name in self.state()["models"]})

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, method=method)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            raise MockEngineError(f"{method} {path}: {error.read().decode()}") from None


@contextmanager
def running_mock_engine(**options: Any) -> Iterator[MockEngine]:
    """Starts `python -m bench.mock_engine` with these options, by the names of `server.Options`; the port is a free
    one."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.mock_engine", *_flags(options)],
        cwd=_ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if " at " not in line:
            raise MockEngineError(f"the mock engine ended with exit code {process.wait()}; its error is above.")
        yield MockEngine(line.split(" at ")[1].strip(), process.pid)
    finally:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _flags(options: dict[str, Any]) -> Iterator[str]:
    for name, value in options.items():
        if isinstance(value, list | tuple):
            flag = {"models": "--model"}.get(name, f"--{name.replace('_', '-')}")
            yield from (part for one in value for part in (flag, str(one)))
        elif value is True:
            yield f"--{name.replace('_', '-')}"
        elif value is not False and value is not None:
            yield from (f"--{name.replace('_', '-')}", str(value))
