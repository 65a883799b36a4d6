"""The served models: settings made whole from the model repository and the tokenizer's folder.

Reads files, once, at start; what a request needs later is values. Raises `SettingsError` with a
sentence that names the setting or the file.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from gateway.settings import ModelSettings, Settings, SettingsError
from gateway.translate.prompt import ChatTemplate
from gateway.translate.sampling import model_defaults

_TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What the gateway knows of one model. `grammar_backend` is empty where unknown; `no_chat` says, in
    a sentence for the client, why the model has no chat template. `added_bos` is the text that the
    tokenizer itself puts before every prompt, empty where it puts none. `max_model_len` is the context
    length where settings or engine arguments say it; `trained_len` what the model's own configuration
    says, which the engine may stretch or cut."""

    names: tuple[str, ...]
    triton_model: str
    template: ChatTemplate | None
    no_chat: str
    grammar_backend: str
    max_model_len: int | None
    trained_len: int | None
    defaults: Mapping[str, Any]
    added_bos: str


def served_models(settings: Settings) -> list[ServedModel]:
    repository = _vllm_models(settings.model_repository) if settings.model_repository else {}
    wanted = settings.models or [ModelSettings(triton_model=name) for name in repository]
    if not wanted:
        raise SettingsError(
            f'--model-repository {settings.model_repository} holds no model with backend "vllm".'
            if settings.model_repository
            else "No model is configured: set models: in the YAML file, or --model-repository to Triton's repository."
        )
    models = [_served(model, repository.get(model.triton_model, {})) for model in wanted]
    seen: set[str] = set()
    for name in (name for model in models for name in model.names):
        if name in seen:
            raise SettingsError(f"models: the name {name!r} is given to two models.")
        seen.add(name)
    return models


def _served(model: ModelSettings, engine: Mapping[str, Any]) -> ServedModel:
    folder = model.tokenizer or _local_folder(engine)
    template, no_chat, added_bos, defaults = None, "", "", {}
    if folder is None:
        no_chat = (
            f"The model {(model.names or [model.triton_model])[0]!r} has no tokenizer in the gateway's settings; "
            "set models[].tokenizer to the folder with its files."
        )
    else:
        if not folder.is_dir():
            raise SettingsError(f"models: the tokenizer folder {folder} of {model.triton_model!r} does not exist.")
        config = _read_json(folder / "tokenizer_config.json")
        special = _special_tokens(config, _read_json(folder / "special_tokens_map.json"))
        added_bos = _added_bos(folder, special.get("bos_token", ""), config)
        defaults = model_defaults(_read_json(folder / "generation_config.json"))
        source = _template_source(model, folder, config)
        if source is None:
            no_chat = (
                f"The tokenizer of {model.triton_model!r} has no chat template; set models[].chat_template to a "
                "Jinja file."
            )
        else:
            try:
                template = ChatTemplate(source, special)
            except ValueError as error:
                raise SettingsError(f"models: {model.triton_model!r}: {error}.") from None
    structured = engine.get("structured_outputs_config") or {}
    return ServedModel(
        names=tuple(model.names or [model.triton_model]),
        triton_model=model.triton_model,
        template=template,
        no_chat=no_chat,
        grammar_backend=model.structured_outputs_backend or structured.get("backend") or "",
        max_model_len=model.max_model_len or _positive(engine.get("max_model_len")),
        trained_len=_positive(_read_json(folder / "config.json").get("max_position_embeddings")) if folder else None,
        defaults=defaults,
        added_bos=added_bos,
    )


def _vllm_models(repository: Path) -> dict[str, dict[str, Any]]:
    """Triton's name → `model.json` of every vLLM model in a repository."""
    try:
        folders = sorted(path for path in repository.iterdir() if path.is_dir())
    except OSError as error:
        raise SettingsError(f"--model-repository {repository} cannot be read: {error.strerror}.") from None
    found = {}
    for folder in folders:
        config = folder / "config.pbtxt"
        versions = sorted((p for p in folder.glob("*/model.json") if p.parent.name.isdigit()), key=_version)
        if versions and config.is_file() and re.search(r'backend:\s*"vllm"', config.read_text(encoding="utf-8")):
            found[folder.name] = _read_json(versions[-1])
    return found


def _version(path: Path) -> int:
    return int(path.parent.name)


def _local_folder(engine: Mapping[str, Any]) -> Path | None:
    # `model` may also be the name of a hub repository, which the gateway does not fetch.
    for key in ("tokenizer", "model"):
        if (name := engine.get(key)) and Path(name).is_dir():
            return Path(name)
    return None


def _positive(value: Any) -> int | None:
    # The engine takes -1 and "auto" too: then the length is not known here.
    return value if type(value) is int and value > 0 else None


def _read_json(file: Path) -> dict[str, Any]:
    """A JSON object, or an empty one where the file is not there."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise SettingsError(f"{file} cannot be read: {error}.") from None
    if not isinstance(value, dict):
        raise SettingsError(f"{file} does not hold a JSON object.")
    return value


def _special_tokens(config: Mapping[str, Any], token_map: Mapping[str, Any]) -> dict[str, str]:
    tokens = {}
    for name in _TOKEN_NAMES:
        value = config.get(name) or token_map.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            tokens[name] = value
    return tokens


def _template_source(model: ModelSettings, folder: Path, config: Mapping[str, Any]) -> str | None:
    file = model.chat_template or folder / "chat_template.jinja"
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        if model.chat_template:
            raise SettingsError(f"models: the chat template {file} does not exist.") from None
    source = config.get("chat_template") or _read_json(folder / "chat_template.json").get("chat_template")
    if isinstance(source, list):
        # Several named templates: `default` is the one for plain chat.
        source = next((t.get("template") for t in source if t.get("name") == "default"), None)
    return source if isinstance(source, str) else None


def _added_bos(folder: Path, bos: str, config: Mapping[str, Any]) -> str:
    """What the tokenizer itself puts before a prompt: the BOS or nothing."""
    if not bos:
        return ""
    file = folder / "tokenizer.json"
    if not file.is_file():
        return bos if config.get("add_bos_token") else ""
    tokenizer = Tokenizer.from_file(str(file))
    return bos if tokenizer.encode("a").tokens[:1] == [bos] else ""


def by_name(models: Sequence[ServedModel]) -> dict[str, ServedModel]:
    return {name: model for model in models for name in model.names}
