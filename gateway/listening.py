"""Where the gateway takes connections beside its port, a Unix-domain socket, and how it serves on all of its sockets.

The file of a socket outlives a process that is killed. One that nobody listens on is replaced; anything else at its
path is left as it is, and refused.
"""

import contextlib
import errno
import logging
import os
import socket
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from gateway.app import Gateway
from gateway.server import Protocol
from gateway.settings import Settings
from service_base import server
from service_base.errors import SettingsError, shown

_log = logging.getLogger(__name__)

# Who may write may connect: the user and the group. Whoever else is on this machine needs no way in.
_MODE = 0o660
_ELSEWHERE = "give another --unix-socket"


@contextlib.contextmanager
def unix_socket(path: Path) -> Iterator[socket.socket]:
    """It listens. In the end its file is removed, unless another process has put its own there by then. Raises
    `SettingsError`."""
    with socket.socket(socket.AF_UNIX) as listener, contextlib.ExitStack() as made:
        try:
            _remove_stale(path)
            listener.bind(str(path))
            made.callback(_remove, path, _identity(path))
            # Ahead of `listen`, before which nobody can connect.
            path.chmod(_MODE)
            listener.listen(server.BACKLOG)
        except OSError as error:
            raise SettingsError(_sentence(path, error)) from None
        yield listener


def log_start(port: socket.socket, unix: socket.socket | None, settings: Settings) -> None:
    """The settings, and what is listened on."""
    log = logging.getLogger("gateway")
    server.log_start(log, port, settings.effective())
    if unix is not None:
        log.info("listening on unix:%s", Path(unix.getsockname()).absolute())


def serve(
    gateway: Gateway,
    listeners: Sequence[socket.socket],
    settings: Settings,
    at_start: Callable[[], None] = lambda: None,
) -> None:
    """Until SIGTERM or SIGINT. `at_start` runs in the event loop when connections are taken."""

    def starts() -> None:
        gateway.reload_on_signal()
        at_start()

    server.serve(
        gateway, listeners, settings.shutdown_timeout, http=Protocol, at_signal=gateway.shut_down, at_start=starts
    )


def _remove_stale(path: Path) -> None:
    """The file of a socket that nobody listens on. Raises `OSError`, `SettingsError`."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise SettingsError(f"{shown(str(path))} is there and is no socket; remove it, or {_ELSEWHERE}.")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX) as probe:
        # One whose queue is full is not waited for.
        probe.setblocking(False)
        outcome = probe.connect_ex(str(path))
    if outcome == errno.ECONNREFUSED:
        path.unlink()
    elif outcome in (errno.EACCES, errno.EPERM):
        raise PermissionError(outcome, os.strerror(outcome))
    else:
        raise SettingsError(f"Another process listens on {shown(str(path))}; stop it, or {_ELSEWHERE}.")


def _remove(path: Path, own: tuple[int, ...]) -> None:
    try:
        if _identity(path) == own:
            path.unlink()
    except FileNotFoundError:
        pass
    except OSError as error:
        _log.warning("%s cannot be removed: %s", path, error.strerror)


def _identity(path: Path) -> tuple[int, ...]:
    """What tells a file from another one at the same path. The number alone is used again for the next file; owner and
    mode are the operator's to change."""
    status = path.lstat()
    return status.st_dev, status.st_ino, status.st_mtime_ns


def _sentence(path: Path, error: OSError) -> str:
    match error.errno:
        case errno.ENOENT | errno.ENOTDIR:
            reason = f"the folder {shown(str(path.parent))} does not exist; make it, or {_ELSEWHERE}"
        case errno.EACCES | errno.EPERM:
            reason = f"permission denied; let this user write to {shown(str(path.parent))}, or {_ELSEWHERE}"
        case _:
            reason = f"{error.strerror}; {_ELSEWHERE}"
    return f"Cannot listen on {shown(str(path))}: {reason}."
