"""The gateway's settings: declared once, read from flags, environment (`GATEWAY_…`) and one YAML file,
in that order of precedence. A wrong setting is one sentence that names it (`SettingsError`).
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin
from urllib.parse import urlsplit

import pydantic_settings
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

GrammarBackend = Literal["guidance", "xgrammar", "outlines", "lm-format-enforcer", "auto"]


class SettingsError(Exception):
    """One sentence that names the setting and says what to do."""


class ModelSettings(BaseModel):
    """One served model. What is absent is read from the model repository's `model.json`, where the
    gateway can read that folder, and from the tokenizer's folder."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    triton_model: str = Field(min_length=1, description="the model's name in Triton")
    names: list[str] = Field(default=[], description="names that clients may ask for; Triton's unless set")
    tokenizer: Path | None = Field(None, description="folder with the tokenizer's files and generation_config.json")
    chat_template: Path | None = Field(None, description="a Jinja file in place of the tokenizer's own template")
    structured_outputs_backend: GrammarBackend | None = Field(
        None, description="the engine's grammar backend (structured_outputs_config.backend)"
    )
    max_model_len: int | None = Field(None, ge=1, description="the context length in tokens")


class Settings(BaseSettings):
    """Field descriptions are the help texts of the flags."""

    model_config = SettingsConfigDict(env_prefix="GATEWAY_", extra="forbid", frozen=True)

    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(9000, ge=0, le=65535, description="port to listen on; 0 takes a free one")
    triton: Annotated[list[str], NoDecode] = Field(
        ["http://127.0.0.1:8000"], min_length=1, description="base URL of a Triton server's HTTP port; may be repeated"
    )
    model_repository: Path | None = Field(
        None, description="Triton's model repository, where it can be read; gives defaults for the models"
    )
    models: list[ModelSettings] = Field(
        default=[], description="the served models, as JSON; every vLLM model of the repository unless set"
    )
    accept_old_triton: bool = Field(
        False, description="use a stock vLLM backend of a Triton before release 26.01 all the same"
    )
    strict_fields: bool = Field(
        False, description="refuse unknown request fields instead of ignoring them with a warning"
    )
    max_body_bytes: int = Field(4 * 1024 * 1024, ge=1024, description="largest request body; a larger one is 413")
    max_in_flight: int = Field(1024, ge=1, description="open requests per model; one more is 429")
    request_timeout: float = Field(600, gt=0, description="seconds a request may take in all; then it is 504")
    connect_timeout: float = Field(5, gt=0, description="seconds to connect to a Triton server")
    shutdown_timeout: int = Field(30, ge=0, description="seconds that running streams get to finish on SIGTERM")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="what is logged")

    @field_validator("triton", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        # One variable holds several URLs as a comma-separated list.
        return [url.strip() for url in value.split(",")] if isinstance(value, str) else value

    @field_validator("triton")
    @classmethod
    def _are_urls(cls, value: list[str]) -> list[str]:
        for url in value:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError(f"{url!r} is not a base URL such as http://127.0.0.1:8000")
        return value

    def effective(self) -> dict[str, Any]:
        """For the log at start. There are no secrets in these settings; URLs lose their user part."""
        values = self.model_dump(mode="json")
        values["triton"] = [_without_user(url) for url in self.triton]
        return values


def _without_user(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    return scheme + separator + rest.rpartition("@")[2]


def parser() -> argparse.ArgumentParser:
    """One flag per setting."""
    flags = argparse.ArgumentParser(
        prog="python -m gateway",
        description="OpenAI-compatible HTTP API in front of Triton servers that host vLLM.",
        epilog="Every flag is also an environment variable (GATEWAY_PORT; GATEWAY_TRITON is a comma-separated list) "
        "and a key of the YAML file (port, triton). Flags win over the environment, the environment over the file.",
        allow_abbrev=False,
    )
    flags.add_argument("--config", type=Path, metavar="FILE", help="YAML file with settings")
    for name, field in Settings.model_fields.items():
        options: dict[str, Any] = {"dest": name, "help": _help(name), "default": None}
        if field.annotation is bool:
            options["action"] = argparse.BooleanOptionalAction
        elif name == "triton":
            options |= {"action": "append", "metavar": "URL"}
        elif get_origin(field.annotation) is Literal:
            options["choices"] = get_args(field.annotation)
        else:
            options["metavar"] = "JSON" if name == "models" else name.rpartition("_")[2].upper()
        flags.add_argument("--" + name.replace("_", "-"), **options)
    return flags


def _help(name: str) -> str:
    field = Settings.model_fields[name]
    default = field.default
    shown = "" if default is None or default == [] or default is False else f" (default: {_shown(default)})"
    return f"{field.description}{shown}"


def _shown(default: Any) -> str:
    return ", ".join(default) if isinstance(default, list) else str(default)


def load(arguments: Sequence[str] | None = None) -> Settings:
    """Read all sources. Raises `SettingsError`."""
    flags = vars(parser().parse_args(arguments))
    file: Path | None = flags.pop("config")
    given = {name: value for name, value in flags.items() if value is not None}
    if "models" in given:
        try:
            given["models"] = json.loads(given["models"])
        except ValueError as error:
            raise SettingsError(f"--models is not valid JSON: {error}.") from None
    from_file = _read_yaml(file) if file else {}

    class Layered(Settings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return init_settings, env_settings, InitSettingsSource(settings_cls, init_kwargs=from_file)

    try:
        return Layered(**given)
    except ValidationError as error:
        raise SettingsError(_sentence(error)) from None
    except pydantic_settings.SettingsError as error:
        raise SettingsError(f"{error}.") from None


def _read_yaml(file: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"--config {file} cannot be read: {error}.") from None
    except yaml.YAMLError as error:
        raise SettingsError(f"--config {file} is not valid YAML: {' '.join(str(error).split())}.") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise SettingsError(f"--config {file} must hold a mapping of settings.")
    return content


def _sentence(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    name = ".".join(str(step) for step in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"The setting {name!r} does not exist; `python -m gateway --help` lists all."
    message = first["msg"].removeprefix("Value error, ").replace("Input should be", "it must be")
    return f"The setting {name!r} is wrong: {message[0].lower()}{message[1:]} (got {first['input']!r})."
