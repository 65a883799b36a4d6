"""What is already copied: one append-only file of JSON lines beside the staged files.

    {"run": BOOT}                                          a process began; BOOT is the machine's boot id
    {"begin": PATH, "size", "etag", "version", "part_size", "algorithm", "checksum"}   a file's parts follow
    {"part": INDEX, "of": PATH, "crc": N}                  that part is in the file
    {"done": PATH, "size", "etag", "version", "algorithm", "crc", "sha256"}            the file is verified

A line is written after its bytes, so that after kill -9 what the journal says is in the file. After the machine itself
failed that is not so: what was written under another BOOT is read again from the disk before it counts.
"""

import errno
import json
import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class FileRecord:
    """What the journal knows of one file; `doubtful` parts were written before the machine's last start."""

    size: int
    etag: str
    version: str | None
    part_size: int
    algorithm: str
    checksum: str | None
    parts: dict[int, int] = field(default_factory=dict)
    doubtful: set[int] = field(default_factory=set)
    done: "Done | None" = None

    def is_of_same(self, other: "FileRecord") -> bool:
        """Whether the parts of one are parts of the other: the same bytes, cut and summed in the same way."""
        mine, its = ((r.size, r.etag, r.version, r.part_size, r.algorithm, r.checksum) for r in (self, other))
        return self.done is None and mine == its


@dataclass(frozen=True)
class Done:
    """A verified file. `crc` is of the whole file."""

    size: int
    etag: str
    version: str | None
    algorithm: str
    crc: int
    checked: bool  # against S3's checksum
    sha256: str | None
    doubtful: bool = False


def replay(lines: Iterable[bytes], boot: str) -> dict[str, FileRecord]:
    """The state after all lines. A torn or strange line ends the replay: nothing after it counts."""
    files: dict[str, FileRecord] = {}
    doubtful = False
    for line in lines:
        try:
            entry = json.loads(line)
            if "run" in entry:
                doubtful = entry["run"] != boot
            elif "begin" in entry:
                files[entry["begin"]] = FileRecord(
                    entry["size"], entry["etag"], entry["version"], entry["part_size"], entry["algorithm"],
                    entry["checksum"],
                )  # fmt: skip
            elif "part" in entry:
                record = files[entry["of"]]
                record.parts[entry["part"]] = entry["crc"]
                (record.doubtful.add if doubtful else record.doubtful.discard)(entry["part"])
            else:
                path = entry.pop("done")
                done = Done(**entry, doubtful=doubtful)
                files[path] = FileRecord(done.size, done.etag, done.version, 0, done.algorithm, None, done=done)
        except (ValueError, KeyError, TypeError):
            break
    return files


class Journal:
    """Appends; safe for threads."""

    def __init__(self, file: Path, boot: str) -> None:
        try:
            text = file.read_bytes()
        except FileNotFoundError:
            text = b""
        # A torn last line would swallow the next one.
        whole = text[: text.rfind(b"\n") + 1]
        self.files = replay(whole.splitlines(), boot)
        self._lock = threading.Lock()
        self._fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        os.ftruncate(self._fd, len(whole))
        self._write({"run": boot})

    def begin(self, path: str, record: FileRecord) -> None:
        self._write(
            {
                "begin": path,
                "size": record.size,
                "etag": record.etag,
                "version": record.version,
                "part_size": record.part_size,
                "algorithm": record.algorithm,
                "checksum": record.checksum,
            }
        )

    def part(self, path: str, index: int, crc: int) -> None:
        self._write({"part": index, "of": path, "crc": crc})

    def done(self, path: str, done: Done) -> None:
        entry = {name: value for name, value in done.__dict__.items() if name != "doubtful"}
        self._write({"done": path} | entry)

    def close(self) -> None:
        os.close(self._fd)

    def _write(self, entry: dict[str, Any]) -> None:
        line = json.dumps(entry, ensure_ascii=True).encode() + b"\n"
        with self._lock:
            if os.write(self._fd, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def boot_id() -> str:
    """Changes with every start of the machine, and is another on every machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
