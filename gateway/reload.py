"""Where the settings came from, so that they can be read again, and what may change while the gateway runs."""

import logging
import os
from collections.abc import Callable
from pathlib import Path

from gateway.settings import Settings, parser
from service_base.errors import SettingsError
from service_base.settings import read

_log = logging.getLogger(__name__)

LIVE = ("triton",)
"""What needs no restart."""


class Source:
    """Flags, environment and file of the command that serves. Raises `SettingsError` when made."""

    def __init__(self) -> None:
        self._flags = vars(parser().parse_args())
        config = self._flags.get("config") or os.environ.get(Settings.variable("config"))
        self.file = Path(config) if config else None

    def load(self) -> Settings:
        """Raises `SettingsError`."""
        return read(Settings, self._flags)


class Reloader:
    """Reads the settings again when told, or when their file has changed; `apply` gets new ones whose live part
    differs."""

    def __init__(self, source: Source, settings: Settings, apply: Callable[[Settings], None]) -> None:
        self._source = source
        self._settings = settings
        self._apply = apply
        self._seen = self._state()

    def tick(self) -> None:
        """Look at the file; call it now and then."""
        if self._state() != self._seen:
            self.reload()

    def reload(self) -> None:
        """A mistake changes nothing and is logged."""
        self._seen = self._state()
        try:
            new = self._source.load()
        except SettingsError as error:
            _log.error("the settings stay as they are: %s", error)
            return
        changed = [name for name in Settings.model_fields if getattr(new, name) != getattr(self._settings, name)]
        if fixed := [name for name in changed if name not in LIVE]:
            _log.warning("changed settings that need a restart: %s", ", ".join(fixed))
        live = {name: getattr(new, name) for name in changed if name in LIVE}
        if live:
            self._settings = self._settings.model_copy(update=live)
            self._apply(self._settings)
            _log.info("settings read again", extra={"settings": live})
        elif not fixed:
            _log.info("settings read again: nothing has changed")

    def _state(self) -> tuple[int, ...] | None:
        """What differs when the file was written or replaced; a link's is its target's."""
        if self._source.file is None:
            return None
        try:
            status = os.stat(self._source.file)
        except OSError:
            return None
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
