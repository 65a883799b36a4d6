"""The settings of an engine's constraints: the member `constraints` of `additional_config` in model.json."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PLACE = "additional_config.constraints"
_MOST_THREADS = 64
_DEFAULT_THREADS = 4


@dataclass(frozen=True)
class Settings:
    catalogs: Path | None
    """The folder of catalogues, NAME.catalog each."""
    threads: int
    """How many threads compute masks; that of vLLM's sampler is one of them."""

    @classmethod
    def read(cls, additional_config: object) -> "Settings":
        """Raises ValueError with one sentence that names the setting."""
        whole = additional_config.get("constraints", {}) if isinstance(additional_config, Mapping) else {}
        if not isinstance(whole, Mapping):
            raise ValueError(f"{_PLACE}: must be an object.")
        if unknown := sorted(str(name) for name in set(whole) - {"catalogs", "threads"}):
            raise ValueError(f"{_PLACE}.{unknown[0]}: is not a setting; there are catalogs and threads.")
        return cls(_folder(whole.get("catalogs")), _threads(whole.get("threads")))


def _folder(value: Any) -> Path | None:
    if value is None:
        return None
    if not isinstance(value, str) or not Path(value).is_dir():
        raise ValueError(f"{_PLACE}.catalogs: must be the path of a folder that exists, not {value!r}.")
    return Path(value)


def _threads(value: Any) -> int:
    if value is None:
        return min(os.cpu_count() or 1, _DEFAULT_THREADS)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MOST_THREADS:
        raise ValueError(f"{_PLACE}.threads: must be a whole number from 1 to {_MOST_THREADS}, not {value!r}.")
    return value
