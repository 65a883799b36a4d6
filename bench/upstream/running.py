"""Runs the byte source: a process of its own, which surely ends with the `with` block, or with its owner.

with running_upstream([Model("bench", tokens_per_second=50)]) as upstream:
    ... upstream.url ...
    print(upstream.stats().cpu_microseconds_per_token)
"""

import json
import subprocess
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from bench.upstream.build import program
from bench.upstream.script import Model, script
from devtools.errors import DevError


@dataclass(frozen=True, slots=True)
class Stats:
    """Since the start; `tokens` are counted when they may leave. `late_tokens` left more than half an interval after
    their time; `left_by_client` are the streams whose client has gone away."""

    requests: int
    tokens: int
    late_tokens: int
    left_by_client: int
    connections: int
    streams: int
    most_streams: int
    cpu_microseconds: int

    @property
    def cpu_microseconds_per_token(self) -> float:
        return self.cpu_microseconds / max(self.tokens, 1)


@dataclass(frozen=True, slots=True)
class Upstream:
    """A running byte source, the process `pid`."""

    url: str
    pid: int

    def stats(self) -> Stats:
        with urllib.request.urlopen(f"{self.url}/upstream/stats", timeout=30) as answer:
            return Stats(**json.loads(answer.read()))


@contextmanager
def running_upstream(models: Sequence[Model], host: str = "127.0.0.1", port: int = 0) -> Iterator[Upstream]:
    """Port 0: a free one. Raises DevError where it cannot be built or cannot listen."""
    process = subprocess.Popen(
        [program(), host, str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    with process, process.stderr as errors:
        try:
            process.stdin.write(script(models))
            process.stdin.flush()
            line = process.stdout.readline().decode()
            if " on " not in line:
                process.stdin.close()
                raise DevError(f"The byte source did not start: {errors.read().decode().strip()}")
            yield Upstream(f"http://{line.split(' on ')[1].strip()}", process.pid)
        finally:
            # Its standard input ends, and so does it.
            if not process.stdin.closed:
                process.stdin.close()
