"""The stack in containers: a daemon of the tests' own, the images, the CPU variant with SmolLM2 announced from S3."""

import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from devtools.paths import ROOT
from devtools.stack import Ports
from tests.containers import images
from tests.containers.daemon import Docker, NoDaemon, running
from tests.containers.stack import ACCESS, MODEL, SECRET, ContainerStack, wait_for

# The first waits for all images and for the stack.
_LIMIT = 1500


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(_LIMIT))


@pytest.fixture(scope="session")
def docker() -> Iterator[Docker]:
    """Skips, with the reason, where no daemon can run; CI fails then."""
    try:
        with running() as one:
            yield one
    except NoDaemon as reason:
        pytest.skip(f"The tests of the containers need a Docker daemon. {reason}")


@pytest.fixture(scope="session")
def built(docker: Docker) -> Docker:
    images.make_all(docker)
    return docker


def _quick(folder: Path) -> None:
    """The shipped configuration of Prometheus, in seconds where it says minutes: what an alert takes for true, and not
    for how long, is what is tested. promtool tests the rest (tests/unit/docker)."""
    shutil.copytree(ROOT / "docker" / "prometheus", folder)
    configuration = folder / "prometheus.yml"
    configuration.write_text(re.sub(r"_interval: 15s", "_interval: 2s", configuration.read_text()))
    alerts = folder / "rules" / "alerts.yml"
    alerts.write_text(re.sub(r"\bfor: \w+", "for: 2s", alerts.read_text()))
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


@pytest.fixture(scope="session")
def stack(built: Docker) -> Iterator[ContainerStack]:
    """Up with `--wait`, SmolLM2 announced, published and loaded."""
    with tempfile.TemporaryDirectory(prefix="tvs-containers-") as scratch:
        # Prometheus is another user.
        Path(scratch).chmod(0o755)
        _quick(Path(scratch) / "prometheus")
        ports = Ports.free()
        settings = {
            "MODEL": f"s3://models/{MODEL}/1/",
            "PREFETCH_ALLOW": "s3://models/",
            "PREFETCH_S3_ENDPOINT": "http://s3:8333",
            "PREFETCH_S3_REGION": "us-east-1",
            "PREFETCH_RESERVE_BYTES": "1048576",
            "AWS_ACCESS_KEY_ID": ACCESS,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "PROMETHEUS_IMAGE": images.PROMETHEUS,
            "ALERTMANAGER_IMAGE": images.ALERTMANAGER,
            "GATEWAY_PORT": str(ports.gateway),
            "TEST_S3_PORT": str(ports.metrics_proxy),
            "TEST_PROMETHEUS_PORT": str(ports.triton_http),
            "TEST_ALERTMANAGER_PORT": str(ports.triton_grpc),
            "TEST_PROMETHEUS_FOLDER": f"{scratch}/prometheus",
        }
        one = ContainerStack(built, settings)
        one.compose("down", "--volumes", "--remove-orphans")
        try:
            one.start_s3()
            one.compose("up", "-d", "--wait", "--wait-timeout", "600")
            wait_for(lambda: "shown this once" in one.compose("logs", "first-start"), "the key")
            (one.key,) = re.findall(r"shown this once: (gw-\S+)", one.compose("logs", "first-start"))
            yield one
        finally:
            one.compose("down", "--volumes", "--remove-orphans", check=False)
