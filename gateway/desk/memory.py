"""The setting `state_file`: which instances are drained and how weights were changed, kept over a restart."""

import json
import logging
import os
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gateway.desk.desk import Desk
from gateway.files import read_json
from service_base.errors import SettingsError, mistake

_log = logging.getLogger(__name__)

_Weights = dict[str, Annotated[int, Field(ge=0)]]


class _Changed(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    weights: _Weights
    previous: _Weights | None


class _Content(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    drained: list[str] = []
    weights: dict[str, _Changed] = {}


def recall(desk: Desk, file: Path) -> None:
    """Make the desk as the file says, where that still fits the settings. Raises `SettingsError`."""
    try:
        content = _Content.model_validate(read_json(file))
    except ValidationError as error:
        place, what = mistake(error)
        raise SettingsError(f"{file} (setting state_file) is wrong: {place}: {what}; remove it.") from None
    for name in content.drained:
        if instance := desk.table.instances.get(name):
            instance.draining = True
            _log.warning("%s is drained (%s)", name, file)
        else:
            _log.warning("%s names the instance %s, which is not in the settings", file, name)
    for name, changed in content.weights.items():
        known = desk.weights.get(name)
        if known is None or known.current.keys() != changed.weights.keys() or not any(changed.weights.values()):
            _log.warning("the weights of %s in %s do not fit the settings, which count", name, file)
            continue
        known.replace(changed.weights)
        known.previous = changed.previous
        _log.warning("the weights of %s are %s (%s)", name, known.current, file)


def remember(desk: Desk, file: Path) -> None:
    """Write the file; what cannot be written is logged."""
    content = _Content(
        drained=[name for name, instance in desk.table.instances.items() if instance.draining],
        weights={
            name: _Changed(weights=weights.current, previous=weights.previous)
            for name, weights in desk.weights.items()
            if weights.previous is not None
        },
    )
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        beside.write_text(json.dumps(content.model_dump(), indent=1) + "\n", encoding="utf-8")
        beside.replace(file)
    except OSError as error:
        _log.error("%s (setting state_file) cannot be written: %s", file, error.strerror)
