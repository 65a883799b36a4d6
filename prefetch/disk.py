"""What the file system can do and what it says when it cannot."""

import ctypes
import errno
import os
from pathlib import Path

from prefetch.errors import JobError

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_longlong, ctypes.c_longlong)


def preallocate(fd: int, size: int, in_memory: bool) -> None:
    """Reserve the file's blocks; where the file system cannot, or is in memory, only set its size.

    In memory no blocks are kept together, and each page would be looked for once more. Not `posix_fallocate`: where the
    file system cannot, glibc writes a byte into every block instead. Raises OSError.
    """
    if size and not in_memory and _libc.fallocate(fd, 0, 0, size) != 0:
        code = ctypes.get_errno()
        if code not in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
            raise OSError(code, os.strerror(code))
    os.ftruncate(fd, size)


def write_at(fd: int, data: memoryview, offset: int) -> None:
    """All of `data`, whatever the kernel takes at once. Raises OSError."""
    while data:
        written = os.pwrite(fd, data, offset)
        data = data[written:]
        offset += written


def sync(path: Path) -> None:
    """Make a folder's entries, or a file, durable."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_all(folder: Path) -> None:
    """Make everything durable that was written to the folder's file system: one call for any number of files."""
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _libc.syncfs(fd) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), str(folder))
    finally:
        os.close(fd)


def free_bytes(path: Path) -> int:
    """What this process may still write; `path` need not exist yet."""
    return _usage(path)[1]


def total_bytes(path: Path) -> int:
    return _usage(path)[0]


def _usage(path: Path) -> tuple[int, int]:
    while not path.exists() and path != path.parent:
        path = path.parent
    found = os.statvfs(path)
    # Without the blocks that only root may use: then used + free is the whole, as `df` counts.
    used = (found.f_blocks - found.f_bfree) * found.f_frsize
    free = found.f_bavail * found.f_frsize
    return used + free, free


def trouble(error: OSError, where: str | Path) -> JobError:
    """The sentence for an error of the file system."""
    said = {
        errno.ENOSPC: "the file system is full; free space or raise 'reserve_bytes', then retry the job",
        errno.EDQUOT: "the quota is used up; free space or raise it, then retry the job",
        errno.EROFS: "the file system is read-only; mount it for writing, then retry the job",
        errno.EACCES: "it is not permitted; prefetch needs to write there",
        errno.EPERM: "it is not permitted; prefetch needs to write there",
        errno.ENOENT: "it vanished; something else removed it. Retry the job",
        errno.ESTALE: "it vanished; something else removed it. Retry the job",
    }.get(error.errno or 0, (error.strerror or str(error)))
    return JobError(f"{where} cannot be written: {said}.")
