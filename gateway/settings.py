"""The gateway's settings: declared once, read from flags, environment (`GATEWAY_…`) and one YAML file,
in that order of precedence. A wrong setting is one sentence that names it (`SettingsError`).
"""

import argparse
import json
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    field_validator,
)
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from gateway.addresses import check_base_url, check_host
from gateway.environment import PREFIX, check_variables, is_service_url, variable
from gateway.files import read_yaml
from gateway.output.parsers import REASONING_PARSERS, TOOL_PARSERS
from gateway.settings_error import SettingsError as SettingsError
from gateway.settings_error import mistake, shown

NO_PARSER = "none"
"""The parser of a model whose answers are all content."""

GrammarBackend = Literal["guidance", "xgrammar", "outlines", "lm-format-enforcer", "auto"]

# What a path of a URL may hold unescaped (RFC 3986, section 3.3): the name goes into a request line.
_TRITON_NAME = re.compile(r"(?!\.{1,2}$)[\w.~!$&'()*+,;=:@-]+", re.ASCII)


def _is_path(value: Any) -> Any:
    # An empty path would be the current folder.
    if not isinstance(value, str | Path) or not str(value).strip():
        raise ValueError(f"it must be the path of a file or folder (got {shown(value)})")
    return value


def _is_triton_name(name: str) -> str:
    if not _TRITON_NAME.fullmatch(name):
        raise ValueError(f"{shown(name)} cannot be a model's name in a URL; use letters, digits, '-', '_' and '.'")
    return name


def _is_served_name(name: str) -> str:
    if not name or name != name.strip() or not name.isprintable():
        raise ValueError(f"{shown(name)} must not be empty, nor begin or end with a blank")
    return name


def _one_of(names: Sequence[str]) -> Callable[[str], str]:
    def check(name: str) -> str:
        if name not in (*names, NO_PARSER):
            raise ValueError(f"{shown(name)} is none of {', '.join(names)} and {NO_PARSER}")
        return name

    return check


def _urls(value: Any) -> Any:
    # One variable holds several URLs as a comma-separated list.
    return [url.strip() for url in value.split(",")] if isinstance(value, str) else value


def _models(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value, object_pairs_hook=_each_key_once)
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not valid JSON: {error}") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"a key stands twice in {shown(pairs)}")
    return found


def _no_service_url(value: Any) -> Any:
    if isinstance(value, str) and is_service_url(value):
        raise ValueError(
            f"{shown(value)} is what Kubernetes injects for a Service named 'gateway'; set enableServiceLinks: false "
            "in the pod's spec, set GATEWAY_PORT in the container's env, or give --port"
        )
    return value


# Strict alone, only a `Path` object would do; files and JSON hold text.
FilePath = Annotated[Path, Field(strict=False), BeforeValidator(_is_path)]


class ModelSettings(BaseModel):
    """One served model. What is absent is read from the model repository's `model.json`, where the
    gateway can read that folder, and from the tokenizer's folder."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    triton_model: Annotated[str, AfterValidator(_is_triton_name)] = Field(description="the model's name in Triton")
    names: list[Annotated[str, AfterValidator(_is_served_name)]] = Field(
        default=[], description="names that clients may ask for; Triton's unless set"
    )
    tokenizer: FilePath | None = Field(None, description="folder with the tokenizer's files and generation_config.json")
    chat_template: FilePath | None = Field(None, description="a Jinja file in place of the tokenizer's own template")
    structured_outputs_backend: GrammarBackend | None = Field(
        None, description="the engine's grammar backend (structured_outputs_config.backend)"
    )
    max_model_len: int | None = Field(None, ge=1, description="the context length in tokens")
    tool_parser: Annotated[str, AfterValidator(_one_of(TOOL_PARSERS))] | None = Field(
        None, description="how the model writes tool calls; recognised from its chat template unless set"
    )
    reasoning_parser: Annotated[str, AfterValidator(_one_of(REASONING_PARSERS))] | None = Field(
        None, description="how the model marks its thinking; recognised from its chat template unless set"
    )
    tool_structural_tag: bool = Field(
        False, description="keep calls that the model may make (tool_choice auto) valid by a structural tag"
    )

    @field_validator("names")
    @classmethod
    def _differ(cls, names: list[str]) -> list[str]:
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"the name {shown(name)} is given twice")
        return names


class Settings(BaseSettings):
    """Field descriptions are the help texts of the flags."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", frozen=True)

    host: Annotated[str, AfterValidator(check_host)] = Field("127.0.0.1", description="address to listen on")
    port: Annotated[int, BeforeValidator(_no_service_url)] = Field(
        9000, ge=0, le=65535, description="port to listen on; 0 takes a free one"
    )
    triton: Annotated[list[Annotated[str, AfterValidator(check_base_url)]], NoDecode, BeforeValidator(_urls)] = Field(
        ["http://127.0.0.1:8000"], min_length=1, description="base URL of a Triton server's HTTP port; may be repeated"
    )
    model_repository: FilePath | None = Field(
        None, description="Triton's model repository, where it can be read; gives defaults for the models"
    )
    models: Annotated[list[ModelSettings], NoDecode, BeforeValidator(_models)] = Field(
        default=[], description="the served models, as JSON; every vLLM model of the repository unless set"
    )
    accept_old_triton: bool = Field(
        False, description="use a stock vLLM backend of a Triton before release 26.01 all the same"
    )
    strict_fields: bool = Field(
        False, description="refuse unknown request fields instead of ignoring them with a warning"
    )
    max_body_bytes: int = Field(4 * 1024 * 1024, ge=1024, description="largest request body; a larger one is 413")
    max_in_flight: int = Field(
        1024, ge=1, description="open generations per model, one for each choice of a request; one more is 429"
    )
    request_timeout: float = Field(
        600, gt=0, allow_inf_nan=False, description="seconds a request may take in all; then it is 504"
    )
    connect_timeout: float = Field(5, gt=0, allow_inf_nan=False, description="seconds to connect to a Triton server")
    shutdown_timeout: int = Field(30, ge=0, description="seconds that running streams get to finish on SIGTERM")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="what is logged")

    def effective(self) -> dict[str, Any]:
        """For the log at start. There are no secrets in these settings."""
        return self.model_dump(mode="json")


_DESCRIPTION = (
    "OpenAI-compatible HTTP API in front of Triton servers that host vLLM. `python -m gateway check`, with the same "
    "settings, checks instead what works there; see `python -m gateway check --help`."
)


class _Flags(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SettingsError(f"{message[0].upper()}{message[1:]}; `{self.prog} --help` lists all settings.")


def parser(program: str = "python -m gateway", description: str = _DESCRIPTION) -> argparse.ArgumentParser:
    """One flag per setting, and --config."""
    flags = _Flags(
        prog=program,
        description=description,
        epilog="Every flag is also an environment variable (GATEWAY_PORT; GATEWAY_TRITON is a comma-separated list) "
        "and, but for --config, a key of the YAML file (port, triton). Flags win over the environment, the "
        "environment over the file.",
        allow_abbrev=False,
    )
    flags.add_argument("--config", metavar="FILE", help="YAML file with settings")
    for name, field in Settings.model_fields.items():
        options: dict[str, Any] = {"dest": name, "help": _help(name), "default": None}
        if field.annotation is bool:
            options["action"] = argparse.BooleanOptionalAction
        elif name == "triton":
            options |= {"action": "append", "metavar": "URL"}
        elif get_origin(field.annotation) is Literal:
            options["metavar"] = "{" + ",".join(get_args(field.annotation)) + "}"
        else:
            options["metavar"] = _METAVARS[name]
        flags.add_argument("--" + name.replace("_", "-"), **options)
    return flags


_METAVARS = {
    "host": "ADDRESS",
    "port": "PORT",
    "model_repository": "DIR",
    "models": "JSON",
    "max_body_bytes": "BYTES",
    "max_in_flight": "COUNT",
    "request_timeout": "SECONDS",
    "connect_timeout": "SECONDS",
    "shutdown_timeout": "SECONDS",
}


def _help(name: str) -> str:
    field = Settings.model_fields[name]
    default = field.default
    shown = "" if default is None or default == [] or default is False else f" (default: {_shown(default)})"
    return f"{field.description}{shown}"


def _shown(default: Any) -> str:
    return ", ".join(default) if isinstance(default, list) else str(default)


def load(arguments: Sequence[str] | None = None) -> Settings:
    """The settings of the command that serves. Raises `SettingsError`."""
    return read(parser().parse_args(arguments))


def read(given: argparse.Namespace) -> Settings:
    """Read all sources, the flags of `parser` first. Raises `SettingsError`."""
    flags = {name: value for name, value in vars(given).items() if value is not None}
    check_variables(os.environ, {"config", *Settings.model_fields})
    config = flags.pop("config", os.environ.get(variable("config")))
    if config is not None and not config.strip():
        raise SettingsError("The setting 'config' is wrong: give the path of a YAML file, or leave it out.")
    from_file = _from_file(Path(config)) if config else {}

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
        return Layered(**flags)
    except ValidationError as error:
        place, what = mistake(error)
        name = place.partition("[")[0]
        source = f"--{name.replace('_', '-')}" if name in flags else variable(name)
        raise SettingsError(f"The setting {place!r} ({source}) is wrong: {what}.") from None


def _from_file(file: Path) -> dict[str, Any]:
    """The file's settings, checked: a flag or variable is text and is converted, but in the file a value has a
    type, and a wrong one is a slip (`port: true` would be 1)."""
    content = read_yaml(file)
    for name, value in content.items():
        field = Settings.model_fields.get(name)
        if field is None:
            raise SettingsError(f"The setting {name!r} ({file}) does not exist; `python -m gateway --help` lists all.")
        kind: TypeAdapter[Any] = TypeAdapter(field.rebuild_annotation(), config=ConfigDict(strict=True))
        try:
            kind.validate_python(value)
        except ValidationError as error:
            place, what = mistake(error, name)
            raise SettingsError(f"The setting {place!r} ({file}) is wrong: {what}.") from None
    return content
