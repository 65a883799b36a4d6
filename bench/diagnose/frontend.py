"""Whose processes the frontend's are: those that listen on the port of its URL, or that the user names, and all below
them."""

import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from bench.diagnose import procfs
from devtools.errors import DevError

# By the titles that engines give themselves, or the program. Those of vLLM and SGLang are children of their API server.
_ENGINE = re.compile(
    r"VLLM::(?!APIServer|Router)|sglang::(scheduler|data_parallel)|ray::|(\S*/)?(tritonserver|triton_python_backend_stub)\b"
)
_PROXY = re.compile(r"(^|/)(docker-proxy|rootlessport)\b")


@dataclass(frozen=True)
class Frontend:
    """`roots` are its topmost processes; where there are none, `unseen` is the reason."""

    roots: frozenset[int]
    unseen: str = ""

    def pids(self) -> set[int]:
        """Those that live now."""
        return procfs.descendants(self.roots) if self.roots else set()


def find(url: str, pids: Sequence[int]) -> Frontend:
    """`pids`, if any, else by the URL's port. Raises DevError for a process that does not exist."""
    for pid in pids:
        try:
            procfs.process(pid)
        except OSError as problem:
            raise DevError(f"--pid {pid}: there is no such process, or it is another user's.") from problem
    if pids:
        return Frontend(frozenset(pids))
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    if not is_here(host):
        return Frontend(frozenset(), f"{host} is another machine")
    holders, anybody = procfs.listeners(port)
    if holders and not all(_PROXY.search(procfs.process(pid).command) for pid in holders):
        return Frontend(frozenset(holders))
    what = "a container's proxy" if holders else "a process of another user or of a container" if anybody else "nobody"
    return Frontend(frozenset(), f"{what} listens on port {port} here; run as root, or say --pid")


def is_here(host: str) -> bool:
    """Whether it is an address of this machine: only to such an address can a socket be bound."""
    try:
        addresses = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    for family, kind, protocol, _, address in addresses:
        with socket.socket(family, kind, protocol) as probe:
            try:
                probe.bind(address)
            except OSError:
                continue
            return True
    return False


def is_engine(command: str) -> bool:
    return _ENGINE.match(command) is not None


def short_name(command: str, program: str) -> str:
    """What tells a process apart in a table: a title, or the program and the module or script that it runs."""
    words = command.split()
    if not words:
        return program.rpartition("/")[2]
    first = words[0].rpartition("/")[2]
    if not first.startswith("python"):
        return first.rstrip(":")
    rest = [word for word in words[1:] if not word.startswith("-")]
    if "-m" in words[:-1]:
        return f"python -m {words[words.index('-m') + 1]}"
    if "-c" in words:
        return "python -c"
    return f"python {rest[0].rpartition('/')[2]}" if rest else first
