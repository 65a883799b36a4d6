"""The stack in containers: a daemon of the tests' own, the images, the CPU variant with SmolLM2 announced from S3."""

import json
import re
import shutil
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
import pytest
from boto3.s3.transfer import TransferConfig
from botocore.config import Config

from devtools import models
from devtools.paths import ROOT
from devtools.stack import Ports
from tests.containers import images
from tests.containers.daemon import Docker, NoDaemon, running
from tests.support.waiting import wait_for

_LIMIT = 1100
_FILES = [
    ROOT / "docker-compose.yml",
    ROOT / "docker-compose.cpu.yml",
    ROOT / "tests" / "containers" / "docker-compose.test.yml",
]
_ACCESS, _SECRET = "test-access", "test-secret"
MODEL = "smollm2"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(_LIMIT))


@dataclass
class ContainerStack:
    """What runs, and how a test asks it."""

    docker: Docker
    settings: dict[str, str]
    ports: Ports
    key: str = field(default="")

    def compose(self, *arguments: str, check: bool = True) -> str:
        return self.docker.compose(*arguments, settings=self.settings, files=_FILES, check=check)

    def start_s3(self) -> None:
        """With SmolLM2 in it."""
        self.compose("up", "-d", "--wait", "s3")
        client = boto3.client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{self.settings['TEST_S3_PORT']}",
            aws_access_key_id=_ACCESS,
            aws_secret_access_key=_SECRET,
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
        """Status and body of the gateway's answer."""
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.key if key is None else key}"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.ports.gateway}{path}", data, headers)
        try:
            with urllib.request.urlopen(request) as answer:
                return int(answer.status), json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read() or b"null")

    def chat(self, **more: Any) -> tuple[int, Any]:
        question = {"role": "user", "content": "What is the capital of France? Answer in JSON."}
        body = {"model": MODEL, "messages": [question], "temperature": 0, "max_tokens": 60} | more
        return self.ask("/v1/chat/completions", body)

    def is_ready(self) -> bool:
        return self.ask("/health/ready")[0] == 200

    def query(self, expression: str) -> list[dict[str, Any]]:
        """What Prometheus answers now."""
        quoted = urllib.parse.quote(expression)
        url = f"http://127.0.0.1:{self.settings['TEST_PROMETHEUS_PORT']}/api/v1/query?query={quoted}"
        with urllib.request.urlopen(url) as answer:
            found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        return found

    def firing(self) -> set[str]:
        """The names of the alerts that Alertmanager has."""
        url = f"http://127.0.0.1:{self.settings['TEST_ALERTMANAGER_PORT']}/api/v2/alerts?active=true"
        with urllib.request.urlopen(url) as answer:
            return {alert["labels"]["alertname"] for alert in json.load(answer)}


@pytest.fixture(scope="session")
def docker() -> Iterator[Docker]:
    """Skips, with the reason, where no daemon can run; CI fails then."""
    try:
        with running() as one:
            yield one
    except NoDaemon as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def built(docker: Docker) -> Docker:
    images.make_all(docker)
    return docker


def _quick_rules(folder: Path) -> None:
    """The shipped configuration, in seconds where it says minutes: nobody waits ten minutes for a test."""
    shutil.copytree(ROOT / "docker" / "prometheus", folder)
    configuration = folder / "prometheus.yml"
    configuration.write_text(re.sub(r"_interval: 15s", "_interval: 2s", configuration.read_text()))
    alerts = folder / "rules" / "alerts.yml"
    alerts.write_text(re.sub(r"\bfor: \w+", "for: 2s", alerts.read_text()))
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


@pytest.fixture(scope="session")
def stack(built: Docker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ContainerStack]:
    """Up with `--wait`, SmolLM2 announced, published and loaded."""
    scratch = tmp_path_factory.mktemp("containers")
    # Prometheus is another user.
    for folder in (scratch, *list(scratch.parents)[:2]):
        folder.chmod(0o755)
    _quick_rules(scratch / "prometheus")
    ports, more = Ports.free(), Ports.free()
    settings = {
        "MODEL": f"s3://models/{MODEL}/1/",
        "PREFETCH_ALLOW": "s3://models/",
        "PREFETCH_S3_ENDPOINT": "http://s3:8333",
        "PREFETCH_S3_REGION": "us-east-1",
        "PREFETCH_RESERVE_BYTES": "1048576",
        "AWS_ACCESS_KEY_ID": _ACCESS,
        "AWS_SECRET_ACCESS_KEY": _SECRET,
        "PROMETHEUS_IMAGE": images.PROMETHEUS,
        "ALERTMANAGER_IMAGE": images.ALERTMANAGER,
        "GATEWAY_PORT": str(ports.gateway),
        "TEST_S3_PORT": str(more.gateway),
        "TEST_PROMETHEUS_PORT": str(more.triton_http),
        "TEST_ALERTMANAGER_PORT": str(more.triton_grpc),
        "TEST_PROMETHEUS_FOLDER": str(scratch / "prometheus"),
    }
    one = ContainerStack(built, settings, ports)
    one.compose("down", "--volumes", "--remove-orphans")
    try:
        one.start_s3()
        one.compose("up", "-d", "--wait", "--wait-timeout", "600")
        wait_for(lambda: "shown this once" in one.compose("logs", "first-start"), "the key")
        (one.key,) = re.findall(r"shown this once: (gw-\S+)", one.compose("logs", "first-start"))
        yield one
    finally:
        one.compose("down", "--volumes", "--remove-orphans", check=False)
