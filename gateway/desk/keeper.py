"""The desk with what it lives by: probes, canaries, the clock's ticks, the settings' changes, its memory.

One per replica: in the only process, or in the supervisor of the workers.
"""

import asyncio
import logging
from collections.abc import Callable

from gateway.desk import memory
from gateway.desk.desk import TICK_S, Desk
from gateway.model_list import ModelList
from gateway.reload import Reloader, Source
from gateway.settings import Settings
from gateway.triton.control import Canaries, Control
from gateway.triton.repository_index import RepositoryIndex
from service_base.errors import SettingsError

_log = logging.getLogger(__name__)


class Keeper:
    """`models` are the served ones, kept as the repositories and Triton have them. `source` is what the settings were
    read from; without one they are never read again. Raises `SettingsError`."""

    def __init__(self, settings: Settings, source: Source | None) -> None:
        self.models = ModelList(settings)
        for name, weights in self.models.served.weights().items():
            if not any(weights.values()):
                raise SettingsError(f"models: no version of {name!r} has a weight above 0; give one a weight.")
        desk = self.desk = Desk(settings.max_in_flight, settings.max_waiting, settings.stall_timeout)
        self._take_models()
        desk.set_urls(settings.triton)
        self._index = RepositoryIndex(lambda: [instance.url for instance in desk.table.instances.values()])
        if (file := settings.state_file) is not None:
            memory.recall(desk, file)
            desk.operated = lambda: memory.remember(desk, file)
        self._control = Control(desk, accept_old=settings.accept_old_triton)
        self._canaries: Canaries | None = None
        if settings.canary_interval:
            timeout, connect_timeout = settings.stall_timeout, settings.connect_timeout
            self._canaries = Canaries(desk, settings.canary_interval, timeout, connect_timeout)
        self._reloader = Reloader(source, settings, self._apply) if source else None
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, on_tick: Callable[[], None] = lambda: None) -> None:
        """`on_tick` is called ahead of each of the desk's ticks."""
        self._control.follow()
        follow = self.models.follow(lambda: self._index.names, self.desk.table.is_ready, self._take_models)
        self._tasks = [asyncio.create_task(self._tick(on_tick)), asyncio.create_task(follow)]
        if self.models.discovers:
            self._tasks.append(asyncio.create_task(self._index.follow()))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._canaries is not None:
            await self._canaries.close()
        await self._control.close()

    def reload(self) -> None:
        """Read the settings again."""
        if self._reloader is not None:
            self._reloader.reload()

    async def _tick(self, on_tick: Callable[[], None]) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            try:
                on_tick()
                self.desk.tick()
                # Instances that are gone from the table are no longer watched.
                self._control.follow()
                if self._canaries is not None:
                    self._canaries.tick()
                if self._reloader is not None:
                    self._reloader.tick()
            except Exception:
                # Without ticks no instance would ever be given up.
                _log.exception("the desk met an unexpected failure")

    def _take_models(self) -> None:
        served = self.models.served
        self.desk.set_models(
            {model.triton_model for model in served}, served.weights(), self.models.listing.model_dump_json()
        )

    def _apply(self, settings: Settings) -> None:
        self.desk.set_urls(settings.triton)
        self._control.follow()
