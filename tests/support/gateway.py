"""A gateway for a test: a process of its own on a free port, which surely ends with the `with` block."""

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from tests.support.service import Service, running_service


class Gateway(Service):
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
    with running_service(*command, "--port", "0", *flags, environment=environment) as service:
        yield Gateway(service.url, service.process, service.logs)


@contextmanager
def raw_request(gateway: Gateway, path: str, body: bytes) -> Iterator[socket.socket]:
    """A request on a connection of its own, whose answer is not read."""
    host, _, port = gateway.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        yield connection
