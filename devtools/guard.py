"""Runs one command so that nothing of it can outlive its owner: `python -I guard.py GRACE [GLOB...] -- COMMAND...`.

Rules, all of them here:
- Standard input is a pipe whose other end only the owner holds. End of file means that the owner is gone, however it
  died.
- This process is the subreaper of everything below it: a descendant whose parent dies becomes its child and cannot
  escape, also when it made a session or a process group of its own.
- SIGTERM, SIGINT, SIGHUP or end of file: the command gets SIGTERM and GRACE seconds. SIGQUIT ends the wait at once.
- When the command is gone, or the wait is over, every remaining descendant is killed and reaped. "No child left" from
  the kernel is the proof that nothing remains. Only then are the files that match GLOB removed, and this process exits
  with the command's exit code (128 + the signal's number when a signal ended it).
- If this process itself is killed, the kernel kills the command (PR_SET_PDEATHSIG).

Standard library only and no import of the project: it is started as a script by any Python.
"""

import contextlib
import ctypes
import glob
import os
import select
import signal
import sys
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
_prctl = ctypes.CDLL(None, use_errno=True).prctl
_TRACKER_SECONDS = 1.0
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


def become_subreaper() -> None:
    """From now on orphaned descendants become children of this process."""
    if _prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def descendants(root: int) -> list[int]:
    """The process ids below `root`, without `root`, at this moment."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", "rb") as stat:
                    # The name stands in parentheses and may hold anything, so fields are counted from the last one.
                    parent = int(stat.read().rpartition(b")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
            children.setdefault(parent, []).append(int(entry))
    found: list[int] = []
    todo = [root]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def kill_descendants() -> None:
    """Kills and reaps everything below this process, which has to be a subreaper. Returns when nothing is left.

    Python's resource trackers get a moment: they end when the processes that they serve are gone, and remove the
    semaphores and shared memory of those first.
    """
    trackers_until = time.monotonic() + _TRACKER_SECONDS
    while True:
        for pid in descendants(os.getpid()):
            if time.monotonic() < trackers_until and _is_resource_tracker(pid):
                continue
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.01)


def _is_resource_tracker(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as command:
            return b"multiprocessing.resource_tracker" in command.read()
    except (FileNotFoundError, ProcessLookupError):
        return False


def _spawn(command: list[str]) -> int:
    guard = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != guard:  # It died before the line above.
        os._exit(1)
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    signal.set_wakeup_fd(-1)
    for number in (*_STOP_SIGNALS, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"cannot start {command[0]}: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(127)


def _reaped(pid: int) -> int | None:
    """Reaps whatever has ended. The exit code of `pid` once it has, else None."""
    code = None
    try:
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == pid:
                status = os.waitstatus_to_exitcode(ended[1])
                code = status if status >= 0 else 128 - status
    except ChildProcessError:
        pass
    return code


def run(grace: float, leftovers: list[str], command: list[str]) -> int:
    become_subreaper()
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    for number in (*_STOP_SIGNALS, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)

    pid = _spawn(command)
    watched = [0, wake_read]
    deadline: float | None = None
    code: int | None = None
    while (code := _reaped(pid)) is None:
        wait = None if deadline is None else deadline - time.monotonic()
        if wait is not None and wait <= 0:
            break
        ready = select.select(watched, [], [], wait)[0]
        requests = [*os.read(wake_read, 4096)] if wake_read in ready else []
        if 0 in ready and not os.read(0, 4096):
            watched.remove(0)
            requests.append(signal.SIGTERM)
        if signal.SIGQUIT in requests:
            break
        if deadline is None and any(number in _STOP_SIGNALS for number in requests):
            os.kill(pid, signal.SIGTERM)
            deadline = time.monotonic() + grace
    kill_descendants()
    for pattern in leftovers:
        for path in glob.glob(pattern):
            os.unlink(path)
    return 128 + signal.SIGKILL if code is None else code


if __name__ == "__main__":
    split = sys.argv.index("--")
    sys.exit(run(float(sys.argv[1]), sys.argv[2:split], sys.argv[split + 1 :]))
