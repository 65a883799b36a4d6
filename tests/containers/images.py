"""The project's own, from its Dockerfiles, on bases that are made here of Debian's packages."""

import http.server
import re
import shutil
import ssl
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from devtools.errors import DevError
from devtools.paths import ROOT
from tests.containers.daemon import Docker

PREFIX = "triton-vllm-stack"
# By the name of the image, its Dockerfile. The one for GPUs starts from an image that only a registry has.
OWN = {
    "triton-cpu": "triton-cpu.Dockerfile",
    "metrics-proxy": "metrics_proxy.Dockerfile",
    "prefetch": "prefetch.Dockerfile",
    "gateway": "gateway.Dockerfile",
}
BASE = f"{PREFIX}-test/python"
PROMETHEUS, ALERTMANAGER, S3 = (f"{PREFIX}-test/{name}" for name in ("prometheus", "alertmanager", "s3"))
_BOOTSTRAPPED = f"{PREFIX}-test/bootstrapped"
_PACKAGES = "python3,python3-venv,python3-pip,python-is-python3,ca-certificates"


def make_all(docker: Docker) -> None:
    """Every image that can be built here, one after the other."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        _make_bases(docker, folder)
        with _pip_configuration(folder) as configuration:
            for name, dockerfile in OWN.items():
                options = ("--build-arg", f"BASE={BASE}", "--secret", f"id=pip,src={configuration}")
                docker.build(*options, "-f", ROOT / "docker" / dockerfile, "-t", f"{PREFIX}/{name}", ROOT)


def _make_bases(docker: Docker, folder: Path) -> None:
    if not docker.has_image(_BOOTSTRAPPED):
        program = shutil.which("mmdebstrap")
        if program is None:
            raise DevError("There is no mmdebstrap: apt-get install mmdebstrap")
        archive = folder / "base.tar"
        options = ("--quiet", "--variant=minbase", f"--include={_PACKAGES}")
        command: list[str | Path] = [program, *options, "bookworm", archive]
        subprocess.run(command, check=True, timeout=600)
        docker.run("import", archive, _BOOTSTRAPPED)
        archive.unlink()
    context = folder / "base"
    context.mkdir()
    trusted = ssl.get_default_verify_paths().cafile or "/etc/ssl/certs/ca-certificates.crt"
    shutil.copy(trusted, context / "ca-certificates.crt")
    shutil.copy(Path(sys.executable).parent / "weed", context)
    dockerfile = Path(__file__).with_name("base.Dockerfile")
    for stage, name in (("python", BASE), ("prometheus", PROMETHEUS), ("alertmanager", ALERTMANAGER), ("s3", S3)):
        arguments = ("--build-arg", f"ROOT={_BOOTSTRAPPED}", "--target", stage)
        docker.build(*arguments, "-f", dockerfile, "-t", name, context)


@contextmanager
def _pip_configuration(folder: Path) -> Iterator[Path]:
    """pip's configuration of this machine as the builder can use it: local folders of wheels are served over HTTP."""
    command: list[str | Path] = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found = dict(re.findall(r"^(?:global|:env:)\.([\w-]+)='(.*)'$", listed.stdout, re.MULTILINE))
    kept = {name: value for name in ("index-url", "extra-index-url") if (value := _remote(found.get(name, "")))}
    servers = []
    links = []
    for place in found.get("find-links", "").split():
        if not Path(place).is_dir():
            links.append(place)
            continue
        handler = partial(_Quiet, directory=place)
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        links.append(f"http://127.0.0.1:{server.server_port}/")
    if links:
        kept["find-links"] = " ".join(links)
    configuration = folder / "pip.conf"
    lines = [f"{name} = {value}" for name, value in kept.items()]
    configuration.write_text("\n".join(["[global]", "cert = /etc/ssl/certs/ca-certificates.crt", *lines]) + "\n")
    try:
        yield configuration
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()


def _remote(urls: str) -> str:
    return " ".join(url for url in urls.split() if not url.startswith("file:"))


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass
