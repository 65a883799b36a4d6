"""Keeps loaded what should be: models come back after their engine has died, and after the container was restarted.

What should be is: the models named by TRITON_LOAD_MODELS; the entries that are in a repository when the server starts,
since prefetch made each of them on purpose; and every model that was seen ready. `load` is asked for one that is not
ready, again and again with growing pauses. To take a model away for good, remove its entry from the repository first,
then unload it; one that is only unloaded comes back.
"""

import http.client
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

_FIRST_PAUSE = 2.0
_LONGEST_PAUSE = 60.0
_POLL_SECONDS = 1.0
# Reading a large model's weights takes as long as it takes; Triton answers when it is loaded or has failed.
_LOAD_SECONDS = 3600.0

_FAILURES = (OSError, ValueError, http.client.HTTPException)


def entries(repository: Path) -> set[str]:
    """The models of a repository."""
    return {config.parent.name for config in repository.glob("*/config.pbtxt")}


class Pauses:
    """When each model may be loaded next. Pure: the time is an argument."""

    def __init__(self) -> None:
        self._pause: dict[str, float] = {}
        self._not_before: dict[str, float] = {}

    def due(self, name: str, now: float) -> bool:
        return now >= self._not_before.get(name, now)

    def failed(self, name: str, now: float) -> float:
        """The pause until the next attempt, in seconds."""
        pause = self._pause.get(name, _FIRST_PAUSE)
        self._pause[name] = min(2 * pause, _LONGEST_PAUSE)
        self._not_before[name] = now + pause
        return pause

    def ready(self, name: str) -> None:
        self._pause.pop(name, None)
        self._not_before.pop(name, None)


def missing(wanted: Iterable[str], states: Mapping[str, str]) -> list[str]:
    """Those of the wanted models that are neither ready nor on the way. `states`: of Triton's index, by name; a model
    that Triton does not list has no entry any more, and nobody wants it."""
    on_the_way = ("READY", "LOADING", "UNLOADING")
    return sorted(name for name in wanted if name in states and states[name] not in on_the_way)


class Keeper:
    def __init__(self, url: str, wanted: set[str], say: Callable[[str], None]) -> None:
        self._url = url
        self._wanted = set(wanted)
        self._say = say
        self._pauses = Pauses()
        self.any_ready = False
        """Whether a model was ready when last asked."""
        self._stop = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="keeper", daemon=True).start()

    def stop(self) -> None:
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(_POLL_SECONDS):
            try:
                index = self._post("/v2/repository/index", 30)
            except _FAILURES:  # It starts, or it stops.
                continue
            states: dict[str, str] = {}
            for row in index:
                # A model without a state has never been loaded; of several versions one that is ready counts.
                if states.get(row["name"]) != "READY":
                    states[row["name"]] = row.get("state") or "UNAVAILABLE"
            ready = {name for name, state in states.items() if state == "READY"}
            self.any_ready = bool(ready)
            self._wanted |= ready
            for name in ready:
                self._pauses.ready(name)
            for name in missing(self._wanted, states):
                if self._pauses.due(name, time.monotonic()):
                    self._load(name)

    def _load(self, name: str) -> None:
        self._say(f"{name} is not loaded; loading it.")
        try:
            self._post(f"/v2/repository/models/{name}/load", _LOAD_SECONDS)
        except _FAILURES as error:
            said = json.loads(error.read() or b"{}") if isinstance(error, urllib.error.HTTPError) else {}
            pause = self._pauses.failed(name, time.monotonic())
            self._say(f"{name} could not be loaded ({said.get('error', error)}); again in {pause:.0f} s.")

    def _post(self, path: str, seconds: float) -> Any:
        request = urllib.request.Request(self._url + path, b"{}", {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=seconds) as response:
            return json.loads(response.read() or b"null")
