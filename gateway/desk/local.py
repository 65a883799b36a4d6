"""The desk in the only process, and the front of its routes."""

from collections.abc import Callable
from typing import Any

from gateway.desk.ask import Ask
from gateway.desk.desk import Desk
from gateway.desk.front import Front
from gateway.desk.keeper import Keeper
from gateway.reload import Source
from gateway.settings import Settings
from gateway.triton.generate import Connections


class LocalDesk:
    """`source` is what the settings were read from; without one they are never read again. Raises `SettingsError`."""

    def __init__(self, settings: Settings, source: Source | None) -> None:
        self._keeper = Keeper(settings, source)
        self.served = self._keeper.models.served
        timeout = settings.connect_timeout
        self.front = local_front(self._keeper.desk, settings.max_in_flight, lambda url: Connections(url, timeout))

    async def start(self) -> None:
        self._keeper.start(self.front.tick)

    async def close(self) -> None:
        await self._keeper.close()
        await self.front.close()

    def reload(self) -> None:
        """Read the settings again."""
        self._keeper.reload()


def local_front(desk: Desk, max_in_flight: int, connections: Callable[[str], Connections]) -> Front:
    """A front whose desk is in the same process. Call its `tick`."""
    front = Front(max_in_flight, connections, desk.table, desk.weights)
    front.channel = LocalChannel(front, desk)
    desk.join(front)
    return front


class LocalChannel:
    """Between `front` and `desk`."""

    def __init__(self, front: Front, desk: Desk) -> None:
        self._front = front
        self._desk = desk

    def enter(self, number: int, ask: Ask) -> None:
        self._desk.enter(self._front, number, ask)

    def abandon(self, number: int) -> None:
        self._desk.abandon(self._front, number)

    def failed(self, number: int, problem: str, *, unreachable: bool) -> None:
        self._desk.failed(self._front, number, problem, unreachable=unreachable)

    def move(self, number: int) -> None:
        self._desk.move(self._front, number)

    def progress(self, entries: list[tuple[int, int, bool]]) -> None:
        self._desk.progress(self._front, entries)

    def leave(self, number: int, tokens: int, used: int) -> None:
        self._desk.leave(self._front, number, tokens, used)

    async def call(self, name: str, *arguments: Any) -> Any:
        return self._desk.call(name, *arguments)
