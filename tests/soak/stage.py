"""Where the soak plays: mock engines that are killed and come back, a gateway with keys and workers in front of them,
and what is true of an answer.

The mock's answer is a pure function of the prompt and its limit, so a client knows each answer before it asks, and one
that is silently short is seen.
"""

import contextlib
import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from bench.mock_engine.running import MockEngine
from devtools.paths import ROOT
from tests.support.gateway import Gateway

TOKEN_MS = 20.0


class Engine:
    """A mock engine of one port, which may be killed and started again."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._port = "0"
        self.kills = 0

    @property
    def control(self) -> MockEngine:
        assert self._process is not None
        return MockEngine(f"http://127.0.0.1:{self._port}", self._process.pid)

    def start(self) -> None:
        flags = ("--port", self._port, "--token-interval-ms", str(TOKEN_MS))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.mock_engine", *flags],
            cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert " at " in line, f"the mock engine ended with exit code {self._process.wait()}"
        self._port = line.strip().rpartition(":")[2]
        self.add_faults()

    def add_faults(self) -> None:
        """What goes wrong for the prompts that say so."""
        self.control.add_fault(match="error-first", error_before="Error generating stream: it broke")
        broken = {"tokens": 3, "error": "Error generating stream: it broke"}
        self.control.add_fault(match="error-later", error_after=broken)
        self.control.add_fault(match="drop-later", close_after={"events": 3})

    def kill(self) -> None:
        assert self._process is not None
        self.kills += 1
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()


@dataclass
class Stage:
    """`keys` by name; `outcomes` counts what came of the requests, `wrong` holds what must not be."""

    gateway: Gateway
    engines: list[Engine]
    keys: dict[str, str]
    session: aiohttp.ClientSession
    model: str
    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    expected: dict[tuple[str, int], str] = field(default_factory=dict)

    @contextlib.asynccontextmanager
    async def asks(self, path: str, body: dict[str, Any], key: str = "team") -> AsyncIterator[aiohttp.ClientResponse]:
        headers = {"authorization": f"Bearer {self.keys.get(key, key)}"}
        async with self.session.post(self.gateway.url + path, json=body, headers=headers) as answer:
            yield answer

    async def learn(self, prompt: str, max_tokens: int) -> str:
        """The right answer to a prompt."""
        known = self.expected.get((prompt, max_tokens))
        if known is None:
            body = {"model": self.model, "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True}
            async with self.asks("/v1/completions", body) as answer:
                assert answer.status == 200, await answer.text()
                known = (await answer.json())["choices"][0]["text"]
            self.expected[prompt, max_tokens] = known
        return known

    def judge(self, what: str, text: str, right: str) -> None:
        if text == right:
            self.outcomes["complete"] += 1
        else:
            self.wrong.append(f"{what}: {text!r} in place of {right!r}")

    def judge_stream(self, what: str, data: bytes, right: str, count: int) -> None:
        """All bytes of a stream: a complete answer, or its beginning and an explicit error; [DONE] in any case."""
        lines = [line for line in data.decode().split("\n\n") if line]
        if not lines or lines.pop() != "data: [DONE]":
            self.wrong.append(f"{what}: a stream without its end: {data[-200:]!r}")
            return
        events = [json.loads(line.removeprefix("data: ")) for line in lines]
        errors = [event["error"] for event in events if "error" in event]
        text = "".join(c["text"] for event in events if "error" not in event for c in event["choices"])
        if errors:
            self.outcomes["stream ended by an error"] += 1
            if not right.startswith(text):
                self.wrong.append(f"{what}: {text!r} is no beginning of {right!r}")
            return
        usage = [event["usage"] for event in events if event.get("usage")]
        if not usage or usage[-1]["completion_tokens"] != count:
            self.wrong.append(f"{what}: usage {usage} in place of {count} tokens")
        self.judge(what, text, right)

    def judge_refusal(self, what: str, status: int, body: bytes, *allowed: int) -> None:
        """A status other than 200: one of those that may be, with an error in OpenAI's shape."""
        try:
            is_error = bool(json.loads(body)["error"]["message"])
        except (ValueError, KeyError, TypeError):
            is_error = False
        if status in allowed and is_error:
            self.outcomes[f"status {status}"] += 1
        else:
            self.wrong.append(f"{what}: status {status}: {body[:200]!r}")


def processes(parent: int) -> Iterator[int]:
    """A process and all below it."""
    yield parent
    for children in Path(f"/proc/{parent}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in children.read_text().split():
                yield from processes(int(child))


def memory(process: int) -> float:
    """Resident MiB; 0.0 for one that is gone."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
    return 0.0


