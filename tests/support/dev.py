"""Runs `./dev` as a person would, in a process of its own."""

import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from devtools import guard
from devtools.paths import ROOT, STATE
from devtools.stack import Ports


@dataclass
class Up:
    """A running `./dev up`, its state folder, and what it has shown so far: progress and the commands to paste."""

    process: "subprocess.Popen[str]"
    state: Path
    shown: list[str] = field(default_factory=list)
    ready: threading.Event = field(default_factory=threading.Event)

    @property
    def text(self) -> str:
        return "".join(self.shown)

    @property
    def commands(self) -> list[str]:
        return [line for line in self.shown if line.startswith("curl ")]

    def pids(self) -> list[int]:
        """Every process below it, the guards too."""
        return guard.descendants(self.process.pid)

    def end(self, number: int = signal.SIGINT, timeout: float = 60) -> int:
        self.process.send_signal(number)
        return self.process.wait(timeout)


def up_flags(ports: Ports) -> list[str]:
    """Every port by its flag."""
    return [
        *("--port", str(ports.gateway)),
        *("--triton-http-port", str(ports.triton_http)),
        *("--triton-grpc-port", str(ports.triton_grpc)),
        *("--triton-metrics-port", str(ports.triton_metrics)),
        *("--metrics-port", str(ports.metrics_proxy)),
    ]


@contextmanager
def running_up(
    *flags: str, ports: Ports, ready_within: float, cwd: Path | None = None, **environment: str
) -> Iterator[Up]:
    """Starts `./dev up` on `ports`, in the folder `cwd`, and yields it when it has shown its commands."""
    process = subprocess.Popen(
        [ROOT / "dev", "up", *up_flags(ports), *flags],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | environment,
    )
    up = Up(process, STATE / f"up-{ports.gateway}")

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            up.shown.append(line)
            if len(up.commands) == 3:
                up.ready.set()
        process.wait()
        up.ready.set()

    reader = threading.Thread(target=read)
    reader.start()
    try:
        assert up.ready.wait(ready_within), f"not ready after {ready_within} s:\\n{up.text}"
        assert process.poll() is None, f"./dev up ended:\\n{up.text}"
        yield up
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
        reader.join()
        shutil.rmtree(up.state, ignore_errors=True)
        up.state.with_suffix(".lock").unlink(missing_ok=True)


def run_dev(
    *arguments: str, timeout: float = 60, cwd: Path | None = None, **environment: str
) -> "subprocess.CompletedProcess[str]":
    """Runs `./dev` to its end; its output is in `stdout`."""
    return subprocess.run(
        [ROOT / "dev", *arguments],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        env=os.environ | environment,
    )
