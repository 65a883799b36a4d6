"""The project's own images, from its Dockerfiles, on bases that are made here of Debian's packages."""

import http.server
import re
import shutil
import ssl
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from devtools import cache
from devtools.errors import DevError
from devtools.paths import ROOT
from tests.containers.daemon import Docker

PREFIX = "triton-vllm-stack"
# By the name of the image, its Dockerfile. The one for GPUs starts from an image that only a registry has.
OWN = {
    "triton-cpu": "triton-cpu.Dockerfile",
    "gateway": "gateway.Dockerfile",
    "metrics-proxy": "metrics_proxy.Dockerfile",
    "prefetch": "prefetch.Dockerfile",
}
BASE = f"{PREFIX}-test/python"
PROMETHEUS, ALERTMANAGER, S3 = (f"{PREFIX}-test/{name}" for name in ("prometheus", "alertmanager", "s3"))

# What the official image of Python has and the Dockerfiles use.
_PACKAGES = "python3,python3-venv,python3-pip,python3-dev,libpython3.11,python-is-python3,ca-certificates"
# The last: apt keeps no cache of what can be had, as in the official images.
_APT = ("--aptopt=Dir::Cache::pkgcache \"\"", "--aptopt=Dir::Cache::srcpkgcache \"\"")
_BOOTSTRAP = ("--quiet", "--variant=minbase", f"--include={_PACKAGES}", *_APT, "bookworm")
# One that was made in the same way is used again.
_BOOTSTRAPPED = f"{PREFIX}-test/bootstrapped:{cache.key(*_BOOTSTRAP)}"


def make_all(docker: Docker) -> None:
    """Every image that can be built here. Two at a time: one downloads while the other computes."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        _bootstrap(docker, folder)
        context = _context(folder)
        _make_base(docker, context, "python", BASE)
        with _pip_configuration(folder) as configuration, ThreadPoolExecutor(2) as pool:

            def make_own(name: str) -> None:
                options = ("--build-arg", f"BASE={BASE}", "--secret", f"id=pip,src={configuration}")
                docker.build(*options, "-f", ROOT / "docker" / OWN[name], "-t", f"{PREFIX}/{name}", ROOT)

            others = {"prometheus": PROMETHEUS, "alertmanager": ALERTMANAGER, "s3": S3}
            makers: list[Callable[[], None]] = [partial(make_own, name) for name in OWN]
            makers += [partial(_make_base, docker, context, stage, name) for stage, name in others.items()]
            for made in [pool.submit(maker) for maker in makers]:
                made.result()
    # What an earlier state of the sources has left.
    docker.run("image", "prune", "--force")


def _bootstrap(docker: Docker, folder: Path) -> None:
    if docker.has_image(_BOOTSTRAPPED):
        return
    program = shutil.which("mmdebstrap")
    if program is None:
        raise DevError("There is no mmdebstrap: apt-get install mmdebstrap")
    archive = folder / "base.tar"
    done = subprocess.run(
        [program, *_BOOTSTRAP, archive], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600
    )
    if done.returncode != 0:
        raise DevError(f"mmdebstrap could not make the base of the images: {done.stdout[-2000:]}")
    docker.run("import", archive, _BOOTSTRAPPED)
    archive.unlink()


def _context(folder: Path) -> Path:
    """What base.Dockerfile copies."""
    context = folder / "base"
    context.mkdir()
    trusted = ssl.get_default_verify_paths().cafile or "/etc/ssl/certs/ca-certificates.crt"
    shutil.copy(trusted, context / "ca-certificates.crt")
    shutil.copy(Path(sys.executable).parent / "weed", context)
    return context


def _make_base(docker: Docker, context: Path, stage: str, name: str) -> None:
    dockerfile = Path(__file__).with_name("base.Dockerfile")
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
