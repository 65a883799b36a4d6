"""A Docker daemon of the tests' own, from Debian's packages, and the commands that talk to it.

It has its own data, its own socket and its own networks, and ends with the tests. Its data stay in the cache beside the
environments, so that images are built once.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from devtools import container_tools
from devtools.paths import ROOT, home
from devtools.processes import Service, service_environment
from tests.support.waiting import wait_for

_BUILDS_LIMIT = 900


class NoDaemon(Exception):
    """Why there can be none here."""


class Docker:
    """`docker` and `docker compose` against one daemon."""

    def __init__(self, socket: Path, program: Path) -> None:
        self._program = program
        self.environment = service_environment(
            DOCKER_HOST=f"unix://{socket}",
            # Debian's client has BuildKit's built in, which mounts secrets.
            DOCKER_BUILDKIT="1",
        )

    def run(self, *arguments: str | Path, check: bool = True, limit: float = 300) -> str:
        """Its standard output."""
        return self._run([self._program, *arguments], check=check, limit=limit)

    def build(self, *arguments: str | Path) -> None:
        # With the host's network: what pip is configured with may be served there.
        self.run("build", "--quiet", "--network", "host", *arguments, limit=_BUILDS_LIMIT)

    def has_image(self, name: str) -> bool:
        return bool(self.run("images", "--quiet", name).strip())

    def compose(
        self, *arguments: str, settings: Mapping[str, str], files: list[Path], check: bool = True, limit: float = 600
    ) -> str:
        options: list[str | Path] = [container_tools.compose(), "--project-directory", ROOT, "--env-file", os.devnull]
        for file in files:
            options += ["-f", file]
        return self._run([*options, *arguments], check=check, limit=limit, more=settings)

    def _run(
        self, command: list[str | Path], *, check: bool, limit: float, more: Mapping[str, str] | None = None
    ) -> str:
        done = subprocess.run(
            command,
            env=self.environment | dict(more or {}),
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if check else subprocess.PIPE,
            text=True,
            timeout=limit,
        )
        assert not check or done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout[-4000:]}"
        return done.stdout


def _client() -> Path:
    """Debian's `docker`; a newer one first on PATH may lack the builder, which is a plugin there."""
    for place in ("/usr/bin/docker", shutil.which("docker") or ""):
        if place and Path(place).exists():
            return Path(place)
    raise NoDaemon("There is no docker client: apt-get install docker.io")


@contextmanager
def running() -> Iterator[Docker]:
    """Raises NoDaemon where none can run."""
    if sys.platform != "linux" or os.geteuid() != 0:
        raise NoDaemon("A Docker daemon needs Linux and root.")
    program = shutil.which("dockerd") or "/usr/sbin/dockerd"
    if not Path(program).exists():
        raise NoDaemon("There is no dockerd: apt-get install --no-install-recommends docker.io mmdebstrap")
    client = _client()
    data = home() / "containers"
    data.mkdir(parents=True, exist_ok=True)
    # A socket's path may have 107 characters.
    with tempfile.TemporaryDirectory(prefix="tvs-docker-") as name:
        folder = Path(name)
        command: list[str | Path] = [
            program,
            *("--host", f"unix://{folder / 'docker.sock'}"),
            *("--data-root", data),
            *("--exec-root", folder / "exec"),
            *("--pidfile", folder / "pid"),
            *("--bip", "172.29.0.1/24"),
            *("--default-address-pool", "base=172.30.0.0/16,size=24"),
        ]
        service = Service("dockerd", command, folder / "log", grace=60)
        try:
            docker = Docker(folder / "docker.sock", client)

            def answers() -> bool:
                if service.exit_code is not None:
                    raise NoDaemon(f"dockerd has ended: {service.output().strip().rpartition(chr(10))[2]}")
                return bool(docker.run("version", "--format", "{{.Server.Version}}", check=False).strip())

            wait_for(answers, "dockerd")
            # What a run that was killed has left.
            if left := docker.run("ps", "--all", "--quiet").split():
                docker.run("rm", "--force", *left)
            yield docker
        finally:
            service.stop()
