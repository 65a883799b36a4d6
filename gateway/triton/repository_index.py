"""The names in the Tritons' repository indexes, for models that appear while the gateway runs.

Apart from the probes of `gateway.triton.control`, and with a connection of its own each time: while Triton loads a
model for somebody, it answers nothing on the connections of that one of its HTTP threads.
"""

import asyncio
from collections.abc import Callable, Iterable

from gateway.triton.client import triton_client

_INTERVAL_S = 1.0
_TIMEOUT_S = 5.0


class RepositoryIndex:
    """Follows the indexes of all Tritons; `urls` gives their base URLs, which may change."""

    def __init__(self, urls: Callable[[], Iterable[str]]) -> None:
        self._urls = urls
        self._names: dict[str, frozenset[str]] = {}

    @property
    def names(self) -> frozenset[str]:
        """As each Triton said last."""
        return frozenset().union(*self._names.values())

    async def follow(self) -> None:
        """Until cancelled."""
        running: dict[str, asyncio.Task[None]] = {}
        try:
            while True:
                urls = set(self._urls())
                for url in running.keys() - urls:
                    running.pop(url).cancel()
                    self._names.pop(url, None)
                for url in urls:
                    if url not in running or running[url].done():
                        running[url] = asyncio.create_task(self._ask(url))
                await asyncio.sleep(_INTERVAL_S)
        finally:
            for task in running.values():
                task.cancel()

    async def _ask(self, url: str) -> None:
        try:
            async with triton_client(url, _TIMEOUT_S) as client:
                rows = await client.get_model_repository_index()
                self._names[url] = frozenset(str(row["name"]) for row in rows)
        except Exception:
            # Whatever it met, the old index stays; the probes say that the Triton does not answer.
            return
