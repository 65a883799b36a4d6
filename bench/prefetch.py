"""prefetch against s5cmd and boto3's TransferManager: one S3 server on loopback, the same model, the same folder.

    python -m bench.prefetch --target /dev/shm/bench

2 GB in 4 safetensors and 20 small files. Each way is a process of its own, and prefetch also a running service that is
given a job; the rounds are interleaved, since the machine's speed changes, and each way's median is also given as a
part of s5cmd's. CPU is user and system time. prefetch verifies every file's CRC64NVME and publishes; the others only
copy. Prints the table of docs/prefetch.md.
"""

import argparse
import hashlib
import json
import os
import platform
import random
import re
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.s3_server import S3Server, environment

_BUCKET = "bench"
_PREFIX = "models/m/1/"
_ROOT = Path(__file__).parent.parent
_JOB = "prefetch, a job of the running service, the same"
_OTHER = "s5cmd"
_TRANSFER_MANAGER = """
import os, sys
import boto3
from boto3.s3.transfer import TransferConfig
from concurrent.futures import ThreadPoolExecutor
endpoint, bucket, prefix, target = sys.argv[1:]
session = boto3.session.Session()
client = session.client("s3", endpoint_url=endpoint)
pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
keys = [entry["Key"] for page in pages for entry in page["Contents"]]
config = TransferConfig(
    preferred_transfer_client="classic",
    multipart_chunksize=16 * 1024 * 1024,
    multipart_threshold=16 * 1024 * 1024,
    max_concurrency=8,
)
os.makedirs(target)
with ThreadPoolExecutor(4) as pool:
    list(pool.map(lambda key: client.download_file(bucket, key, f"{target}/{key[len(prefix):]}", Config=config), keys))
"""


@dataclass(frozen=True)
class Cost:
    wall: float  # seconds
    cpu: float  # seconds
    memory: int  # bytes


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.prefetch", description="prefetch, s5cmd and boto3 compared.")
    parser.add_argument(
        "--target", type=Path, required=True, help="folder that is copied to; a tmpfs leaves the disk out"
    )
    parser.add_argument("--server", type=Path, help="folder of the S3 server's data (default: a temporary one)")
    parser.add_argument("--bytes", type=int, default=2_000_000_000, help="of the safetensors together (%(default)s)")
    parser.add_argument("--rounds", type=int, default=7, help="of each way (%(default)s)")
    return parser.parse_args()


def _upload(server: S3Server, total: int) -> dict[str, str]:
    """Each file's SHA-256."""
    from boto3.s3.transfer import TransferConfig

    client = server.client()
    client.create_bucket(Bucket=_BUCKET)
    transfer = TransferConfig(preferred_transfer_client="classic", multipart_chunksize=16 * 1024 * 1024)
    chance = random.Random(1)
    digests = {}
    with tempfile.TemporaryDirectory() as scratch:
        for number in range(24):
            file = Path(scratch, f"model-{number + 1:05}-of-00004.safetensors" if number < 4 else f"file-{number}.json")
            size = total // 4 if number < 4 else chance.randrange(500, 200_000)
            header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
            with open(file, "wb") as out:
                if number < 4:
                    out.write(struct.pack("<Q", len(header)) + header)
                while size:
                    piece = chance.randbytes(min(size, 1 << 20))
                    out.write(piece)
                    size -= len(piece)
            with open(file, "rb") as again:
                digests[file.name] = hashlib.file_digest(again, "sha256").hexdigest()
            more = {"ChecksumAlgorithm": "CRC64NVME"}
            client.upload_file(str(file), _BUCKET, _PREFIX + file.name, Config=transfer, ExtraArgs=more)
            file.unlink()
    return digests


def _environment(scratch: Path, **more: str) -> dict[str, str]:
    """Python keeps what it has compiled, as it does of an installed package; the first round has compiled it."""
    wanted = environment(PYTHONPYCACHEPREFIX=str(scratch / "compiled"), **more)
    wanted.pop("PYTHONDONTWRITEBYTECODE", None)
    return wanted


def _run(command: list[str], scratch: Path) -> Cost:
    log = scratch / "log"
    began = time.monotonic()
    with open(log, "wb") as out:
        process = subprocess.Popen(command, env=_environment(scratch), cwd=_ROOT, stdout=out, stderr=out)
        # Not the peak of wait4(2), which holds that of the process from which this one was made.
        memory = 0
        while (ended := os.wait4(process.pid, os.WNOHANG))[0] == 0:
            memory = max(memory, _peak_memory(process.pid))
            time.sleep(0.01)
    wall = time.monotonic() - began
    _, status, used = ended
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{command[:4]} failed: {log.read_text()[-2000:]}")
    return Cost(wall, used.ru_utime + used.ru_stime, memory)


class _Service:
    """A service that runs all the time; a round is one job. It starts where Python's own start has been paid."""

    def __init__(self, server: S3Server, target: Path, scratch: Path) -> None:
        flags = [
            "--target", str(target), "--state", str(scratch / "service"), "--s3-endpoint", server.url, "--port", "0",
            "--reserve-bytes", "0", "--high-watermark", "1", "--low-watermark", "1", "--allow", f"s3://{_BUCKET}/",
        ]  # fmt: skip
        log = scratch / "service.log"
        command = [sys.executable, "-m", "prefetch", "serve", *flags]
        with open(log, "wb") as out:
            env = _environment(scratch, PREFETCH_TOKENS="t")
            self._process = subprocess.Popen(command, env=env, cwd=_ROOT, stderr=out)
        while not (found := re.search(r"listening on (http://[^\"]+)", log.read_text())):
            time.sleep(0.05)
        self._url = found[1]
        self._number = 0

    def run(self) -> Cost:
        self._number += 1
        before, began = self._cpu(), time.monotonic()
        body = {"model": f"round-{self._number}", "version": "1", "source": f"s3://{_BUCKET}/{_PREFIX}"}
        job = self._ask("/v1/announcements", json.dumps(body).encode())
        while job["state"] in ("queued", "running"):
            time.sleep(0.05)
            job = self._ask(f"/v1/jobs/{job['id']}")
        if job["state"] != "published":
            raise SystemExit(f"the service's job failed: {job['error']}")
        return Cost(time.monotonic() - began, self._cpu() - before, _peak_memory(self._process.pid))

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def _cpu(self) -> float:
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _ask(self, path: str, body: bytes | None = None) -> dict[str, Any]:
        request = urllib.request.Request(self._url + path, body, {"Authorization": "Bearer t"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return dict(json.loads(answer.read()))


def _peak_memory(pid: int) -> int:
    """The largest resident set until now, in bytes; 0 for a process that has ended."""
    try:
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0
    return int(found[1]) * 1024 if found else 0


def _ways(server: S3Server, target: Path, scratch: Path, manifest: Path) -> dict[str, list[str]]:
    pull = [
        sys.executable, "-m", "prefetch", "pull", f"s3://{_BUCKET}/{_PREFIX}", "--to", str(target / "prefetch"),
        "--state", str(scratch / "state"), "--s3-endpoint", server.url, "--reserve-bytes", "0",
        "--high-watermark", "1", "--low-watermark", "1",
    ]  # fmt: skip
    s5cmd = str(Path(sys.executable).parent / "s5cmd")
    source = f"s3://{_BUCKET}/{_PREFIX}*"
    return {
        "prefetch pull, CRC64NVME verified, published": pull,
        "prefetch pull, and SHA-256 of a manifest": [*pull, "--manifest", str(manifest)],
        _OTHER: [s5cmd, "--endpoint-url", server.url, "--log", "error", "cp", source, f"{target / 's5cmd'}/"],
        "TransferManager, classic, 8 × 16 MiB": [
            sys.executable, "-c", _TRANSFER_MANAGER, server.url, _BUCKET, _PREFIX, str(target / "boto3"),
        ],
    }  # fmt: skip


def _check(target: Path, digests: dict[str, str]) -> None:
    """Every way made the same files."""
    found = [path for path in target.rglob("*") if path.name in digests]
    assert len(found) == len(digests), target
    for path in found:
        with open(path, "rb") as file:
            assert hashlib.file_digest(file, "sha256").hexdigest() == digests[path.name], path


def _median(costs: list[Cost], what: str) -> float:
    return float(statistics.median(getattr(cost, what) for cost in costs))


def _machine() -> str:
    text = Path("/proc/cpuinfo").read_text()
    model = next((line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")), "?")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1024**3
    python = platform.python_version()
    return f"{os.cpu_count()} cores ({model}), {memory:.0f} GiB, Linux {platform.release()}, Python {python}"


def main() -> None:
    arguments = _arguments()
    scratch = Path(tempfile.mkdtemp(dir=arguments.server))
    target = arguments.target / "bench-prefetch"
    server = S3Server(scratch / "s3")
    server.start()
    service: _Service | None = None
    try:
        digests = _upload(server, arguments.bytes)
        manifest = scratch / "manifest.json"
        manifest.write_text(json.dumps({"files": {name: {"sha256": digest} for name, digest in digests.items()}}))
        ways = _ways(server, target, scratch, manifest)
        service = _Service(server, target / "service", scratch)
        costs: dict[str, list[Cost]] = {name: [] for name in (*ways, _JOB)}
        # The first round warms the server's caches and is checked, not counted.
        for number in range(arguments.rounds + 1):
            names = list(costs)
            random.Random(number).shuffle(names)
            for name in names:
                shutil.rmtree(target, ignore_errors=True)
                target.mkdir(parents=True)
                cost = service.run() if name == _JOB else _run(ways[name], scratch)
                if number == 0:
                    _check(target, digests)
                else:
                    costs[name].append(cost)
        print(_machine())
        print(f"{arguments.bytes / 1e9:.1f} GB, {arguments.rounds} rounds, interleaved\n")
        print("| | wall, median (best) | client CPU, median (best) | of s5cmd's wall, CPU | memory |")
        print("|---|---|---|---|---|")
        for name, each in costs.items():
            wall, cpu = _median(each, "wall"), _median(each, "cpu")
            best = min(cost.wall for cost in each), min(cost.cpu for cost in each)
            parts = wall / _median(costs[_OTHER], "wall"), cpu / _median(costs[_OTHER], "cpu")
            print(
                f"| {name} | {wall:.2f} s ({best[0]:.2f}) | {cpu:.2f} s ({best[1]:.2f}) | "
                f"{parts[0]:.2f}, {parts[1]:.2f} | {max(cost.memory for cost in each) / 1e6:.0f} MB |"
            )
    finally:
        if service:
            service.close()
        server.stop()
        shutil.rmtree(target, ignore_errors=True)
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
