"""The servers that are compared, each started with a configuration of its own and surely ended."""

import json
import os
import shlex
import shutil
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.compare.usage import CpuTime, cpu_time, memory_bytes
from bench.load.workloads import Format
from bench.ports import free_port
from bench.upstream.script import Model
from devtools.errors import DevError
from devtools.paths import ROOT
from devtools.processes import Service, service_environment

GATEWAY, NGINX, BARE = "gateway", "nginx", "bare FastAPI"

_START_SECONDS = 120.0

_NGINX = """\
daemon off;
pid {folder}/nginx.pid;
worker_processes 1;
worker_rlimit_nofile {files};
error_log {folder}/error.log error;
events {{ worker_connections {connections}; }}
http {{
    access_log off;
    keepalive_requests 1000000;
    tcp_nodelay on;
    client_max_body_size 16m;
    client_body_buffer_size 1m;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    upstream source {{ server {upstream}; keepalive 2048; keepalive_requests 1000000; }}
    server {{
        listen 127.0.0.1:{port} backlog=4096;
        location / {{
            proxy_pass http://source;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
            proxy_read_timeout 600;
        }}
    }}
}}
"""


@dataclass(frozen=True)
class Server:
    """A server under load. `format` is how it answers, and so how it is asked."""

    name: str
    url: str
    format: Format
    service: Service

    @property
    def cpu_time(self) -> CpuTime:
        return cpu_time(self.service.pids())

    @property
    def memory_bytes(self) -> int:
        return memory_bytes(self.service.pids())


@contextmanager
def running_nginx(upstream: str, folder: Path, probe: str = "/health") -> Iterator[Server]:
    """nginx that passes everything on, with one worker and without buffering; `probe` is a path that the upstream
    answers when it is well. Raises DevError where nginx is missing."""
    program = shutil.which("nginx", path=f"{os.environ.get('PATH', os.defpath)}{os.pathsep}/usr/sbin")
    if program is None:
        raise DevError(
            "nginx is what the gateway is compared with, and is missing; install it (on Debian: nginx-light)."
        )
    port = free_port()
    files = os.sysconf("SC_OPEN_MAX")
    text = _NGINX.format(
        folder=folder, files=files, connections=files // 2, upstream=upstream.removeprefix("http://"), port=port
    )
    (folder / "nginx.conf").write_text(text)
    command: list[str | Path] = [program, "-p", folder, "-e", folder / "error.log", "-c", folder / "nginx.conf"]
    with running_service(NGINX, command, f"http://127.0.0.1:{port}", probe, Format.TRITON, folder) as server:
        yield server


@contextmanager
def running_gateway(upstream: str, models: Sequence[Model], tokenizer: Path, folder: Path) -> Iterator[Server]:
    """The gateway as it is by default. `tokenizer` is a model's folder, with its chat template."""
    repository = folder / "models"
    for model in models:
        place = repository / model.name / "1"
        place.mkdir(parents=True)
        place.with_name("config.pbtxt").write_text('backend: "vllm"\n')
        (place / "model.json").write_text(json.dumps({"model": str(tokenizer), "max_model_len": 8192}))
    port = free_port()
    flags = ["--triton", upstream, "--model-repository", str(repository), "--port", str(port)]
    command = [sys.executable, "-m", "gateway", *flags]
    with running_service(GATEWAY, command, f"http://127.0.0.1:{port}", "/health/ready", Format.CHAT, folder) as server:
        yield server


@contextmanager
def running_bare(folder: Path) -> Iterator[Server]:
    port = free_port()
    command = [sys.executable, "-m", "bench.compare.bare", str(port)]
    with running_service(BARE, command, f"http://127.0.0.1:{port}", "/openapi.json", Format.WHOLE, folder) as server:
        yield server


@contextmanager
def running_other(given: str, upstream: str, folder: Path) -> Iterator[Server]:
    """Any other gateway, given as NAME=URL=COMMAND; {upstream} in the command is the byte source's base URL."""
    name, url, line = given.split("=", 2)
    command = shlex.split(line.replace("{upstream}", upstream))
    # It may answer before it knows its worker, and so its model.
    with running_service(name, command, url.rstrip("/"), "/v1/models", Format.CHAT, folder, holds=b'"bench"') as server:
        yield server


@contextmanager
def running_service(
    name: str,
    command: Sequence[str | Path],
    url: str,
    probe: str,
    format: Format,
    folder: Path,
    holds: bytes = b"",
) -> Iterator[Server]:
    service = Service(name, command, folder / f"{name.replace(' ', '-')}.log", env=service_environment(), cwd=ROOT)
    try:
        _await(service, url + probe, holds)
        yield Server(name, url, format, service)
    finally:
        service.stop()


def _await(service: Service, url: str, holds: bytes) -> None:
    """Until the server answers with what holds this. Raises DevError with its last words."""
    give_up_at = time.monotonic() + _START_SECONDS
    problem = "without what is waited for"
    while service.exit_code is None and time.monotonic() < give_up_at:
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                if holds in answer.read():
                    return
        except (OSError, urllib.error.URLError) as error:
            problem = str(error)
        time.sleep(0.05)
    words = service.output().strip().splitlines()[-3:]
    raise DevError(f"{service.name} does not answer at {url} ({problem}): {' '.join(words)}")
