"""Triton's model repository, as far as the gateway reads it: which models are vLLM's and their engine arguments."""

import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from gateway.files import entries, is_folder, read_json, read_text
from gateway.settings import GrammarBackend, ModelSettings
from service_base.errors import SettingsError, mistake

_VLLM = re.compile(r"""^[^#\n]*\bbackend\s*:\s*["']vllm["']""", re.MULTILINE)
# Triton ignores other names of version folders, those with a leading zero too.
_VERSION = re.compile(r"[1-9][0-9]*")
# Where a file system puts its own lost files: only root may look inside, and it is no model.
_NO_MODEL = {"lost+found"}


class _StructuredOutputs(BaseModel):
    model_config = ConfigDict(strict=True)

    backend: GrammarBackend | None = None


class EngineArguments(BaseModel):
    """What the gateway reads of a `model.json`; the rest is vLLM's. `max_model_len` may also be -1 or "auto"."""

    model_config = ConfigDict(strict=True, frozen=True)

    model: str | None = None
    tokenizer: str | None = None
    max_model_len: Any = None
    generation_config: str | None = None
    override_generation_config: dict[str, Any] | None = None
    structured_outputs_config: _StructuredOutputs | None = None


def vllm_models(repository: Path, wanted: Collection[str]) -> dict[str, EngineArguments]:
    """Triton's name → engine arguments of the vLLM models in a repository: of all, or of the `wanted` ones.

    Raises `SettingsError`; what cannot be read is never taken for absent.
    """
    found = {}
    for folder in entries(repository):
        if folder.name in _NO_MODEL or (wanted and folder.name not in wanted) or not is_folder(folder):
            continue
        config = read_text(folder / "config.pbtxt")
        if config is not None and _VLLM.search(config):
            found[folder.name] = _engine_arguments(folder)
    return found


def checked_name(name: str, repository: Path) -> ModelSettings:
    """The settings of a model that only its folder names."""
    try:
        return ModelSettings(triton_model=name)
    except ValidationError as error:
        raise SettingsError(f"The model folder {repository / name} is named wrong: {mistake(error)[1]}.") from None


def _engine_arguments(folder: Path) -> EngineArguments:
    versions = [path for path in entries(folder) if _VERSION.fullmatch(path.name) and is_folder(path)]
    for version in sorted(versions, key=lambda path: int(path.name), reverse=True):
        file = version / "model.json"
        if file in entries(version):
            return _parse(file)
    raise SettingsError(f"{folder} has the backend vllm but no <version>/model.json with vLLM's engine arguments.")


def _parse(file: Path) -> EngineArguments:
    try:
        return EngineArguments.model_validate(read_json(file))
    except ValidationError as error:
        place, what = mistake(error)
        raise SettingsError(f"{file} is wrong: {place}: {what}.") from None
