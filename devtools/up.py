"""`./dev up`: the whole stack in the foreground, until Ctrl-C or until one of its parts ends."""

import fcntl
import json
import os
import re
import select
import shlex
import signal
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from devtools import environments, guard, models, preconditions, todo
from devtools.errors import DevError
from devtools.paths import STATE
from devtools.processes import Service
from devtools.progress import note, step
from devtools.pythons import engine_python
from devtools.stack import Ports, Stack, StackConfig, reason

_SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 40}, "country": {"type": "string", "maxLength": 40}},
    "required": ["city", "country"],
    "additionalProperties": False,
}

# How long open requests may go on after Ctrl-C; then the gateway ends them with an error. Below the time that its
# guard gives it (10 s), so that it does get to that.
_DRAIN_SECONDS = 5
_STOPPING = (
    f"\nStopping: waiting for open requests (up to {_DRAIN_SECONDS} s), then for the engine; "
    "Ctrl-C again ends everything at once."
)


class Stopped(BaseException):
    """Someone asked this command to stop."""


def up(engine: str, ports: Ports, gateway_config: Path | None) -> int:
    """Runs until it is asked to stop (exit code 0) or a part ends by itself (DevError)."""
    real = engine == "triton"
    used: tuple[str, ...] = ("gateway",)
    preconditions.check_linux()
    preconditions.check_config(engine, gateway_config)
    if real:
        preconditions.check_engine_platform()
        engine_python()
        preconditions.check_memory()
        used = ("gateway", "triton_http", "triton_grpc", "triton_metrics", "metrics_proxy")
    elif engine == "mock":
        used = ("gateway", "triton_http")
    else:
        preconditions.check_engine_answers(engine)
    preconditions.check_ports(ports, used)
    for flag in preconditions.ports_without_effect(ports, used):
        note(f"{flag} has no effect with --engine {engine}, which starts nothing that listens there.")
    config = StackConfig(
        engine=engine,
        models={models.SMOLLM2 if real else models.TINY: {}},
        gateway_arguments=(
            *("--shutdown-timeout", str(_DRAIN_SECONDS)),
            # The gateway itself runs in the checkout.
            *(("--config", str(gateway_config.resolve())) if gateway_config else ()),
        ),
        metrics_proxy=real,
        ports=ports,
    )
    guard.become_subreaper()
    state = STATE / f"up-{ports.gateway}"
    with _only_one(state.with_suffix(".lock"), ports.gateway), _stop_signals():
        stack = None
        try:
            others = todo.REAL if real else (todo.TINY,) if engine == "mock" else ()
            todo.announce(todo.SERVICES, todo.BUILDER, *others)
            stack = Stack(config, state, environments.services().python)
            stack.prepare()
            with step(f"Starting the stack (logs in {_short(stack.state / 'logs')})") as say:
                stack.start(say)
            _show_commands(stack.url, stack.metrics_url if real else None)
            _watch(stack)
        except Stopped:
            note(_STOPPING if stack is not None and stack.services else "\nStopping …")
        finally:
            _second_signal_kills(stack)
            if stack is not None:
                stack.stop()
            guard.kill_descendants()
    note("Stopped.")
    return 0


@contextmanager
def _only_one(path: Path, port: int) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DevError(f"Another ./dev up starts on port {port}; choose another with --port.") from None
        yield


@contextmanager
def _stop_signals() -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    yield


def _second_signal_kills(stack: Stack | None) -> None:
    def kill(number: int, frame: FrameType | None) -> None:
        for service in stack.services if stack is not None else ():
            service.kill()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, kill)


def _show_commands(url: str, metrics_url: str | None) -> None:
    with urllib.request.urlopen(f"{url}/v1/models", timeout=10) as response:
        model = json.load(response)["data"][0]["id"]
    question = {"role": "user", "content": "What is the capital of France?"}
    plain = {"model": model, "messages": [question], "temperature": 0, "max_tokens": 60}
    streamed = {**plain, "stream": True}
    schema = {
        **plain,
        "max_tokens": 100,
        "response_format": {"type": "json_schema", "json_schema": {"name": "capital", "schema": _SCHEMA}},
    }
    metrics = f", metrics: {metrics_url}" if metrics_url else ""
    note(f"\nReady: {url}/v1 (documentation: {url}/docs{metrics}). Ctrl-C stops everything. Paste one of these:\n")
    for title, options, body in (
        ("a chat", "-sw '\\n'", plain),
        ("a streamed chat", "-sN", streamed),
        ("a chat whose answer obeys a JSON schema", "-sw '\\n'", schema),
    ):
        print(f"# {title}")
        data = shlex.quote(json.dumps(body))
        print(f"curl {options} {url}/v1/chat/completions -H 'content-type: application/json' -d {data}\n", flush=True)


def _watch(stack: Stack) -> None:
    """Shows what the parts complain about. Raises DevError when one of them ends."""
    tails = [_Tail(service) for service in stack.services]
    while True:
        for tail in tails:
            for line in tail.complaints():
                note(f"{tail.service.name}: {line}")
            if tail.service.exit_code is not None:
                raise DevError(
                    f"{tail.service.name} ended with exit code {tail.service.exit_code}, so everything was stopped: "
                    f"{reason(tail.service)} (log: {_short(tail.service.log)})"
                )
        select.select([], [], [], 0.5)


class _Tail:
    """The lines of a log that a person at the terminal should see, from now on."""

    # Triton's lines begin with a letter for their level; the services write one JSON object a line.
    _COMPLAINT = re.compile(r'^[EF]\d{4} |"level": ?"(error|critical|warning)"|\b(ERROR|CRITICAL)\b')

    def __init__(self, service: Service) -> None:
        self.service = service
        self._position = service.log.stat().st_size
        self._rest = b""

    def complaints(self) -> Iterator[str]:
        with self.service.log.open("rb") as log:
            log.seek(self._position)
            data = self._rest + log.read()
            self._position = log.tell()
        *lines, self._rest = data.split(b"\n")
        for line in lines:
            text = line.decode(errors="replace")
            if self._COMPLAINT.search(text):
                yield text


def _short(path: Path) -> str:
    """Relative to where the user is, if that is shorter."""
    relative = os.path.relpath(path)
    return relative if not relative.startswith("..") else str(path)
