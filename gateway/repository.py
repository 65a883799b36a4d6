"""Triton's model repositories, as far as the gateway reads them: which models are vLLM's and their engine arguments."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

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


class Entry(NamedTuple):
    """A vLLM model's entry. `others` are the folders of the same name in repositories that come later, which are not
    read: Triton loads no model that it finds twice."""

    folder: Path
    arguments: EngineArguments
    others: list[Path]


def names(repositories: Iterable[Path]) -> list[str]:
    """Of all folders that may be a model's, each once. Raises `SettingsError`."""
    folders = (folder for repository in repositories for folder in entries(repository) if is_folder(folder))
    return sorted({folder.name for folder in folders} - _NO_MODEL)


def entry(repositories: Sequence[Path], name: str) -> Entry | None:
    """The vLLM model of that name. Raises `SettingsError`; what cannot be read is never taken for absent."""
    folders = [repository / name for repository in repositories if _is_vllm(repository / name)]
    return Entry(folders[0], _engine_arguments(folders[0]), folders[1:]) if folders else None


def _is_vllm(folder: Path) -> bool:
    if not is_folder(folder):
        return False
    config = read_text(folder / "config.pbtxt")
    return config is not None and _VLLM.search(config) is not None


def named_by_folder(folder: Path) -> ModelSettings:
    """The settings of a model that only its folder names. Raises `SettingsError`."""
    try:
        return ModelSettings(triton_model=folder.name)
    except ValidationError as error:
        raise SettingsError(f"The model folder {folder} is named wrong: {mistake(error)[1]}.") from None


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
