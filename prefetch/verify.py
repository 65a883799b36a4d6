"""Is a file, is a model what it has to be: checksums, the safetensors header, the index. Reads; changes nothing."""

import hashlib
import json
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

from prefetch import safetensors
from prefetch.checksums import ALGORITHMS, Algorithm
from prefetch.errors import JobError

READ_BYTES = 1024 * 1024
_INDEX = ".safetensors.index.json"


def sha256_of(fd: int) -> str:
    """One pass over the file."""
    digest = hashlib.sha256()
    offset = 0
    while chunk := os.pread(fd, READ_BYTES, offset):
        digest.update(chunk)
        offset += len(chunk)
    return digest.hexdigest()


def crc_of(fd: int, bounds: tuple[int, int], algorithm: Algorithm) -> int | None:
    """The checksum of the bytes [begin, end); None if the file is shorter."""
    offset, end = bounds
    crc = 0
    while offset < end:
        chunk = os.pread(fd, min(READ_BYTES, end - offset), offset)
        if not chunk:
            return None
        crc = algorithm.update(chunk, crc)
        offset += len(chunk)
    return crc


def header_problem(path: str, fd: int) -> str | None:
    """What is wrong with a safetensors file; None for a good one and for any other file."""
    if not path.endswith(".safetensors"):
        return None
    try:
        safetensors.tensors(os.fstat(fd).st_size, lambda offset, length: os.pread(fd, length, offset))
    except ValueError as error:
        return str(error)
    return None


def check_index(path: str, folder: Path, files: Collection[str], *, tensors: bool) -> None:
    """Raises JobError where `path` is an index and names a file that is not among `files` (the model's paths) or,
    with `tensors`, a tensor that its file lacks."""
    if not path.endswith(_INDEX):
        return
    base = path.rpartition("/")[0]
    beside: dict[str, set[str] | None] = {}
    for file in files:
        parent, _, name = file.rpartition("/")
        if parent == base:
            beside[name] = _tensors(folder / file) if tensors and name.endswith(".safetensors") else None
    try:
        missing = safetensors.missing_files(json.loads((folder / path).read_bytes()), beside)
    except (ValueError, RecursionError) as error:
        raise JobError(f"{path} is not a safetensors index: {error}.") from None
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise JobError(f"{path} names {missing[0]}{more}, which the model does not hold; complete the upload.")


def check_model(folder: Path, files: Collection[str]) -> None:
    """Every index against the files, tensor by tensor. Raises JobError."""
    for path in files:
        check_index(path, folder, files, tensors=True)


def model_format(folder: Path, files: Collection[str]) -> tuple[str, int]:
    """(the weights' format, in how many files): those that the index names, or all of that kind."""
    for path in sorted(files):
        if path.endswith(_INDEX) and "/" not in path:
            weight_map = json.loads((folder / path).read_bytes())["weight_map"]
            return "safetensors", len(set(weight_map.values()))
    for suffix, name in ((".safetensors", "safetensors"), (".gguf", "gguf"), (".bin", "pytorch"), (".pt", "pytorch")):
        if shards := [path for path in files if path.endswith(suffix)]:
            return name, len(shards)
    return "other", 0


def _tensors(file: Path) -> set[str]:
    fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return safetensors.tensors(os.fstat(fd).st_size, lambda offset, length: os.pread(fd, length, offset))
    except ValueError as error:
        raise JobError(f"{file.name} is damaged: {error}.") from None
    finally:
        os.close(fd)


def problems(folder: Path, ready: dict[str, Any]) -> list[str]:
    """Reads a published model again: each file whose bytes are not those of its READY.json, or that is not there."""
    found = []
    for path, described in ready["files"].items():
        try:
            fd = os.open(folder / path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            found.append(f"{path} cannot be read ({error.strerror})")
            continue
        try:
            size = os.fstat(fd).st_size
            if size != described["size"]:
                found.append(f"{path} has {size} bytes in place of {described['size']}")
            elif not _has_digests(fd, size, described):
                found.append(f"{path} is damaged")
            elif problem := header_problem(path, fd):
                found.append(f"{path}: {problem}")
        finally:
            os.close(fd)
    return found


def _has_digests(fd: int, size: int, described: dict[str, Any]) -> bool:
    for name, algorithm in ALGORITHMS.items():
        wanted = described.get(name.lower())
        if wanted is not None:
            crc = crc_of(fd, (0, size), algorithm)
            if crc is None or algorithm.text(crc) != wanted:
                return False
    return "sha256" not in described or sha256_of(fd) == described["sha256"]
