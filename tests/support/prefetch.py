"""What prefetch's tests share: an engine with small parts, objects in the real S3 server, a model's files."""

import json
import os
import random
import struct
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.s3_server import S3Server
from prefetch.announcement import Announcement, Manifest
from prefetch.copy import CopySettings
from prefetch.progress import Progress
from prefetch.pull import Engine, EngineConfig
from prefetch.s3 import S3Config
from prefetch.space import Policy
from prefetch.store import Published

BUCKET = "models-prod"
# Small, so that small objects have several parts.
PART_BYTES = 64 * 1024


class Bucket:
    """The objects below one prefix."""

    def __init__(self, server: S3Server, prefix: str, name: str = BUCKET) -> None:
        self.server = server
        self.prefix = prefix
        self.name = name
        self.client = server.client()

    @property
    def source(self) -> str:
        return f"s3://{self.name}/{self.prefix}"

    def key(self, path: str) -> str:
        return self.prefix + path

    def put(self, path: str, body: bytes, **more: Any) -> None:
        self.client.put_object(Bucket=self.name, Key=self.key(path), Body=body, **more)

    def put_in_parts(self, path: str, body: bytes, algorithm: str = "CRC64NVME", part: int = 5 * 1024 * 1024) -> None:
        """A multipart upload: its ETag is no digest, its checksum that of the full object."""
        where = {"Bucket": self.name, "Key": self.key(path)}
        upload = self.client.create_multipart_upload(**where, ChecksumAlgorithm=algorithm, ChecksumType="FULL_OBJECT")[
            "UploadId"
        ]
        parts = []
        for number, begin in enumerate(range(0, len(body), part), 1):
            piece = body[begin : begin + part]
            answer = self.client.upload_part(
                **where, UploadId=upload, PartNumber=number, Body=piece, ChecksumAlgorithm=algorithm
            )
            checksum = f"Checksum{algorithm}"
            parts.append({"PartNumber": number, "ETag": answer["ETag"], checksum: answer[checksum]})
        self.client.complete_multipart_upload(**where, UploadId=upload, MultipartUpload={"Parts": parts})

    def put_all(self, files: Mapping[str, bytes]) -> None:
        for path, body in files.items():
            self.put(path, body)

    def delete(self, path: str) -> None:
        self.client.delete_object(Bucket=self.name, Key=self.key(path))


def config(folder: Path, endpoint: str, **changes: Any) -> EngineConfig:
    """Small parts, few attempts, short pauses; no reserve."""
    base = EngineConfig(
        target=folder / "target",
        state=folder / "state",
        s3=S3Config(endpoint=endpoint, connections=4, read_timeout=20),
        copy=CopySettings(part_bytes=PART_BYTES, attempts=5, backoff=0.01, longest_backoff=0.1),
        concurrency=4,
        policy=Policy(reserve_bytes=0, high=1.0, low=1.0),
    )
    return replace(base, **changes)


def run(
    engine: Engine,
    source: str,
    *,
    model: str = "m",
    version: str = "1",
    manifest: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    announced: float | None = None,
    stop: threading.Event | None = None,
    pin: bool = False,
) -> Published:
    announcement = Announcement(
        model=model,
        version=version,
        source=source,
        manifest=Manifest.model_validate_json(json.dumps({"files": dict(manifest)})) if manifest else None,
        pin=pin,
    )
    at = time.time() if announced is None else announced
    return engine.run(announcement, at, progress or Progress(), stop or threading.Event())


def files_in(folder: Path) -> dict[str, bytes]:
    """Every file below a published folder but READY.json."""
    found = {}
    for path, _, names in os.walk(folder):
        for name in names:
            file = Path(path, name)
            found[str(file.relative_to(folder))] = file.read_bytes()
    found.pop("READY.json", None)
    return found


def safetensors(size: int, seed: int = 0) -> bytes:
    """A sound safetensors file with one tensor of `size` bytes of data."""
    tensor = {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}
    header = json.dumps({f"weight.{seed}": tensor}).encode()
    return struct.pack("<Q", len(header)) + header + noise(size, seed)


def noise(size: int, seed: int = 0) -> bytes:
    """The same for the same seed; no two parts are alike, so that misplaced ones show."""
    return random.Random(seed).randbytes(size)


MODEL = {"config.json": b"{}", "model.safetensors": safetensors(5 * PART_BYTES, 1), "tokenizer.json": noise(500)}
