"""The stack that runs in containers, and how the tests ask it, load it and hurt it."""

import http.client
import json
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import boto3
from boto3.s3.transfer import TransferConfig
from botocore.config import Config

from devtools import models
from devtools.paths import ROOT
from tests.containers.daemon import Docker
from tests.support import waiting

FILES = [
    ROOT / "docker-compose.yml",
    ROOT / "docker-compose.cpu.yml",
    ROOT / "tests" / "containers" / "docker-compose.test.yml",
]
ACCESS, SECRET = "test-access", "test-secret"
MODEL = "smollm2"
QUESTION = "What is the capital of France? Answer in JSON."

# Loading a model on a busy machine takes minutes. Each look is a request: not more often than it helps.
wait_for = partial(waiting.wait_for, seconds=420, pause=0.5)

NOT_ANSWERED = 0
"""In the place of a status: the connection was refused, or closed before an answer began."""


@dataclass
class ContainerStack:
    docker: Docker
    settings: dict[str, str]
    key: str = field(default="")

    def compose(self, *arguments: str, check: bool = True) -> str:
        return self.docker.compose(*arguments, settings=self.settings, files=FILES, check=check)

    def start_s3(self) -> None:
        """With SmolLM2 in it."""
        self.compose("up", "-d", "--wait", "s3")
        client = boto3.client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{self.settings['TEST_S3_PORT']}",
            aws_access_key_id=ACCESS,
            aws_secret_access_key=SECRET,
            region_name="us-east-1",
            config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 10, "mode": "standard"}),
        )
        client.create_bucket(Bucket="models")
        folder = models.smollm2()
        # The name of the client matters: the other one ignores the endpoint.
        transfer = TransferConfig(preferred_transfer_client="classic")
        for file in sorted(folder.rglob("*")):
            if file.is_file() and not file.name.startswith("."):
                key = f"{MODEL}/1/{file.relative_to(folder)}"
                more = {"ChecksumAlgorithm": "CRC64NVME"}
                client.upload_file(str(file), "models", key, Config=transfer, ExtraArgs=more)

    def ask(self, path: str, body: Any = None, key: str | None = None) -> tuple[int, Any]:
        """Status and body of the gateway's answer. One that breaks off is an exception."""
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.key if key is None else key}"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.settings['GATEWAY_PORT']}{path}", data, headers)
        try:
            answer = urllib.request.urlopen(request)
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read() or b"null")
        except (urllib.error.URLError, http.client.RemoteDisconnected, ConnectionError):
            return NOT_ANSWERED, None
        with answer:
            return int(answer.status), json.load(answer)

    def chat(self, **more: Any) -> tuple[int, Any]:
        return self.ask("/v1/chat/completions", _request(QUESTION) | more)

    def begin(self, text: str, **more: Any) -> http.client.HTTPConnection:
        """A streamed chat whose answer nobody reads; closing the connection cancels it."""
        connection = http.client.HTTPConnection("127.0.0.1", int(self.settings["GATEWAY_PORT"]))
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.key}"}
        body = _request(text) | {"stream": True} | more
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        return connection

    def wait_until_ready(self) -> None:
        wait_for(lambda: self.chat(max_tokens=1)[0] == 200, "an answer")

    @contextmanager
    def under_load(self, clients: int = 2) -> Iterator[set[int]]:
        """While short requests follow each other; the statuses of their answers. Who is refused asks again."""
        statuses: set[int] = set()
        over = threading.Event()

        def asks() -> None:
            while not over.is_set():
                statuses.add(status := self.chat(max_tokens=4)[0])
                if status != 200:
                    over.wait(0.2)

        with ThreadPoolExecutor(clients) as pool:
            running = [pool.submit(asks) for _ in range(clients)]
            try:
                yield statuses
            finally:
                over.set()
            for client in running:
                client.result()

    def running(self, number: int) -> None:
        """Waits until the engine has so many requests, as Prometheus sees it."""
        wait_for(lambda: self.query(f"sum(vllm:num_requests_running) == {number}"), f"{number} running requests")

    def signal_engine(self, name: str) -> None:
        """Sends the engine's process inside Triton's container a signal, such as SIGKILL."""
        script = (
            "import os, glob, signal\n"
            "for path in glob.glob('/proc/[0-9]*/cmdline'):\n"
            "    if open(path, 'rb').read().startswith(b'VLLM::EngineCore'):\n"
            f"        os.kill(int(path.split('/')[2]), signal.{name})\n"
            "        print('sent')\n"
        )
        assert "sent" in self.compose("exec", "-T", "triton", "python3", "-c", script), "there is no engine"

    def query(self, expression: str) -> list[dict[str, Any]]:
        """What Prometheus answers now: each with `metric` (its labels) and `value` (time and value)."""
        return self._prometheus("query", query=expression)

    def query_range(self, expression: str, start: float, end: float, step: float) -> list[dict[str, Any]]:
        """What Prometheus has seen: each with `metric` and `values` (times and values)."""
        return self._prometheus("query_range", query=expression, start=start, end=end, step=step)

    def _prometheus(self, endpoint: str, **parameters: str | float) -> list[dict[str, Any]]:
        asked = urllib.parse.urlencode(parameters)
        url = f"http://127.0.0.1:{self.settings['TEST_PROMETHEUS_PORT']}/api/v1/{endpoint}?{asked}"
        with urllib.request.urlopen(url) as answer:
            found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        return found

    def alerts(self) -> set[str]:
        """The names of the alerts that Alertmanager has."""
        url = f"http://127.0.0.1:{self.settings['TEST_ALERTMANAGER_PORT']}/api/v2/alerts?active=true"
        with urllib.request.urlopen(url) as answer:
            return {alert["labels"]["alertname"] for alert in json.load(answer)}

    def wait_for_alert(self, name: str) -> None:
        wait_for(lambda: name in self.alerts(), f"the alert {name}")

    def wait_for_end_of(self, name: str) -> None:
        wait_for(lambda: name not in self.alerts(), f"the end of the alert {name}")


def _request(text: str) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 60}

