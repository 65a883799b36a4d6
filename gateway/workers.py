"""`--workers N`: the supervisor of so many processes that serve one port, and the desk that they share.

Each worker has a listening socket of its own on the port (`SO_REUSEPORT`): the kernel spreads connections over them
evenly, which with one shared socket it does not, and a worker that is dead or starting gets none. Unix-domain sockets
have no such option: there is one, the supervisor's, which all workers inherit.
"""

import asyncio
import contextlib
import logging
import signal
import socket
import sys
import time
from pathlib import Path

import orjson

from gateway.desk.keeper import Keeper
from gateway.desk.link import DeskEnd
from gateway.listening import log_start
from gateway.observe import multiprocess
from gateway.reload import Source
from gateway.settings import Settings
from service_base.server import bind

_log = logging.getLogger(__name__)

_BACK_OFF_S = 0.5
_MAX_BACK_OFF_S = 30.0
# A worker that lived so long did not die of its start.
_SOUND_S = 30.0
# Beyond the time to finish, for a worker to end by itself.
_GRACE_S = 10.0


class Supervisor:
    """Holds the port from now on. Raises `SettingsError`."""

    def __init__(self, settings: Settings, source: Source) -> None:
        self._keeper = Keeper(settings, source)
        # Without sharing first: that tells of another server on this port.
        bind(settings.host, settings.port).close()
        self._held = bind(settings.host, settings.port, shared=True)
        self._settings = settings.model_copy(update={"port": self._held.getsockname()[1]})
        self._workers = [_Worker(number, self._settings, self._keeper) for number in range(settings.workers)]

    @property
    def address(self) -> str:
        """What is listened on, as an IP address."""
        return str(self._held.getsockname()[0])

    def run(self, unix: socket.socket | None) -> int:
        """Until SIGTERM or SIGINT; returns the exit code. `unix`: what the workers listen on beside the port."""
        with multiprocess.directory() as metrics:
            for worker in self._workers:
                worker.metrics, worker.unix = metrics, unix
            return asyncio.run(self._run(unix))

    async def _run(self, unix: socket.socket | None) -> int:
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        self._keeper.start()
        keeping = [asyncio.create_task(worker.keep()) for worker in self._workers]
        stopping: asyncio.Task[object] = asyncio.create_task(stop.wait())
        try:
            serving = asyncio.create_task(self._all_serve())
            await asyncio.wait([serving, stopping, *keeping], return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                log_start(self._held, unix, self._settings)
                await asyncio.wait([stopping, *keeping], return_when=asyncio.FIRST_COMPLETED)
            serving.cancel()
            # A worker is only given up where it never served.
            return 0 if stop.is_set() else 1
        finally:
            for task in (*keeping, stopping):
                task.cancel()
            if unix is not None:
                # Else connections would wait here until the last worker has finished its requests.
                unix.close()
            await asyncio.gather(*(worker.end() for worker in self._workers))
            await asyncio.gather(*keeping, stopping, return_exceptions=True)
            await self._keeper.close()
            self._held.close()

    async def _all_serve(self) -> None:
        for worker in self._workers:
            await worker.serves.wait()

    def _reload(self) -> None:
        self._keeper.reload()
        for worker in self._workers:
            worker.send_signal(signal.SIGHUP)


class _Worker:
    """One worker, started again when it dies. `metrics` is the folder that all workers count into, `unix` what all
    listen on beside the port."""

    def __init__(self, number: int, settings: Settings, keeper: Keeper) -> None:
        self._number = number
        self._name = f"worker {number}"
        self.metrics = Path()
        self.unix: socket.socket | None = None
        self._settings = settings
        self._keeper = keeper
        self._process: asyncio.subprocess.Process | None = None
        self.serves = asyncio.Event()

    async def keep(self) -> None:
        """Returns only if it never served."""
        back_off = _BACK_OFF_S
        while True:
            started = time.monotonic()
            process = await self._start()
            code = await process.wait()
            multiprocess.worker_died(self.metrics, process.pid)
            if not self.serves.is_set():
                _log.critical("%s ended with exit code %d before it served", self._name, code)
                return
            lived = time.monotonic() - started
            back_off = _BACK_OFF_S if lived >= _SOUND_S else min(back_off * 2, _MAX_BACK_OFF_S)
            ended = f"{self._name} ended with exit code {code} after {lived:.0f} s"
            _log.error("%s; the next one starts in %g s", ended, back_off)
            await asyncio.sleep(back_off)

    async def end(self) -> None:
        """Let it finish its requests for the time that is set, and surely end it."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        self.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(self._settings.shutdown_timeout + _GRACE_S):
                await process.wait()
        except TimeoutError:
            _log.error("%s does not end and is killed", self._name)
            process.kill()
            await process.wait()

    def send_signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def _start(self) -> asyncio.subprocess.Process:
        here, there = socket.socketpair()
        with there:
            inherited = [there.fileno()] if self.unix is None else [there.fileno(), self.unix.fileno()]
            process = self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "gateway.worker",
                str(there.fileno()),
                str(self._number),
                str(self.metrics),
                *map(str, inherited[1:]),
                stdin=asyncio.subprocess.PIPE,
                pass_fds=inherited,
                # A Ctrl-C is the supervisor's matter.
                process_group=0,
            )
        assert process.stdin is not None
        start = {"settings": self._settings.model_dump(mode="json"), "state": self._keeper.desk.state()}
        process.stdin.write(orjson.dumps(start))
        process.stdin.close()
        await DeskEnd(self._keeper.desk, self.serves.set).start(here)
        return process
