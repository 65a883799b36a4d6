"""The gateway's settings: declared once, read from flags, environment (`GATEWAY_…`) and one YAML file,
in that order of precedence. A wrong setting is one sentence that names it (`SettingsError`).
"""

import argparse
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator
from pydantic_settings import SettingsConfigDict

from gateway.output.parsers import REASONING_PARSERS, TOOL_PARSERS
from gateway.routing.instances import instance_name
from service_base.errors import shown
from service_base.flags import Flag, Parser, add_flags
from service_base.settings import ServiceSettings, read
from service_base.types import (
    BaseUrl,
    Bytes,
    Count,
    DrainSeconds,
    FilePath,
    FolderPath,
    FromJson,
    Host,
    Listed,
    LogLevel,
    Port,
    Seconds,
)

NO_PARSER = "none"
"""The parser of a model whose answers are all content."""

BatchedEgress = Literal["auto", "never", "always"]

GrammarBackend = Literal["guidance", "xgrammar", "outlines", "lm-format-enforcer", "auto"]

# What a path of a URL may hold unescaped (RFC 3986, section 3.3): the name goes into a request line.
_TRITON_NAME = re.compile(r"(?!\.{1,2}$)[\w.~!$&'()*+,;=:@-]+", re.ASCII)

# unix(7): 108, with a zero behind the path.
_MOST_SOCKET_PATH_BYTES = 107


def check_triton_name(name: str) -> str:
    """Raises `ValueError` with a sentence's end."""
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


class ModelSettings(BaseModel):
    """One served model. What is absent is read from the model repository's `model.json`, where the
    gateway can read that folder, and from the tokenizer's folder."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    triton_model: Annotated[str, AfterValidator(check_triton_name)] = Field(description="the model's name in Triton")
    names: list[Annotated[str, AfterValidator(_is_served_name)]] = Field(
        default=[], description="names that clients may ask for; Triton's unless set"
    )
    tokenizer: FolderPath | None = Field(
        None, description="folder with the tokenizer's files and generation_config.json"
    )
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
    batched_egress: BatchedEgress = Field(
        "auto", description="whether tokens come one message per engine step; always: 503 where the backend cannot"
    )
    weight: int | None = Field(
        None, ge=0, le=1_000_000, description="its part of the requests for a name that several models share"
    )

    @field_validator("names")
    @classmethod
    def _differ(cls, names: list[str]) -> list[str]:
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"the name {shown(name)} is given twice")
        return names


def _differ(urls: list[str]) -> list[str]:
    names = [instance_name(url) for url in urls]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{shown(name)} is given twice")
    return urls


def _fits_a_socket(path: Path) -> Path:
    size = len(os.fsencode(path))
    if size > _MOST_SOCKET_PATH_BYTES:
        raise ValueError(
            f"{shown(str(path))} has {size} bytes, and the path of a socket at most {_MOST_SOCKET_PATH_BYTES}; give a "
            "shorter one"
        )
    return path


class Settings(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="GATEWAY_")

    help_command: ClassVar[str] = "python -m gateway --help"

    host: Host = Field("127.0.0.1", description="address to listen on")
    port: Port = Field(9000, description="port to listen on; 0 takes a free one")
    unix_socket: Annotated[FilePath, AfterValidator(_fits_a_socket)] | None = Field(
        None, description="Unix-domain socket to listen on as well, for this user and its group; none unless set"
    )
    triton: Annotated[Listed[BaseUrl], AfterValidator(_differ)] = Field(
        ["http://127.0.0.1:8000"], min_length=1, description="base URL of a Triton server's HTTP port; may be repeated"
    )
    model_repository: Listed[FolderPath] = Field(
        [],
        description="Triton's model repository, where it can be read; gives defaults for the models; may be repeated",
    )
    models: FromJson[list[ModelSettings]] = Field(
        default=[], description="the served models, as JSON; every vLLM model of the repositories unless set"
    )
    accept_old_triton: bool = Field(
        False, description="use a stock vLLM backend of a Triton before release 26.01 all the same"
    )
    strict_fields: bool = Field(
        False, description="refuse unknown request fields instead of ignoring them with a warning"
    )
    max_body_bytes: Bytes = Field(4 * 1024 * 1024, ge=1024, description="largest request body; a larger one is 413")
    stream_buffer_bytes: Bytes = Field(
        1024 * 1024, ge=1024, description="text that may wait for a slow client of a batched stream; more ends it"
    )
    max_in_flight: Count = Field(
        1024, description="open generations per model, one for each choice of a request; one more waits"
    )
    max_waiting: Annotated[int, Field(ge=0), Flag("COUNT")] = Field(
        256, description="requests per model that wait for room; one more is 429"
    )
    keys_file: FilePath | None = Field(
        None, description="YAML file of clients' keys (python -m gateway keys); clients need none unless set"
    )
    allow_anonymous: bool = Field(False, description="listen on more than loopback without keys all the same")
    slo_ttft: Seconds | None = Field(None, description="seconds to the first token that count as good")
    slo_itl: Seconds | None = Field(None, description="mean seconds between an answer's tokens that count as good")
    otlp_endpoint: BaseUrl | None = Field(
        None, description="base URL of an OpenTelemetry collector (OTLP over HTTP) that gets the spans of requests"
    )
    request_timeout: Seconds = Field(600, description="seconds a request may take in all; then it is 504")
    load_timeout: Seconds = Field(
        1800, description="seconds that POST /admin/models/{triton_model}/load waits for a Triton; then it is 504"
    )
    connect_timeout: Seconds = Field(5, description="seconds to connect to a Triton server")
    stall_timeout: Seconds = Field(
        60, description="seconds without any token, with requests in flight, after which an instance is given up"
    )
    canary_interval: Annotated[float, Field(ge=0, allow_inf_nan=False), Flag("SECONDS")] = Field(
        0, description="seconds between generations of one token on an instance with nothing to do; 0: none"
    )
    workers: Annotated[int, Field(ge=1, le=256), Flag("COUNT")] = Field(
        1, description="processes that share the port and all limits"
    )
    state_file: FilePath | None = Field(
        None, description="file that keeps drained instances and changed weights over a restart; not kept unless set"
    )
    shutdown_timeout: DrainSeconds = Field(30, description="seconds that running streams get to finish on SIGTERM")
    log_level: LogLevel = Field("info", description="what is logged")


_DESCRIPTION = (
    "OpenAI-compatible HTTP API in front of Triton servers that host vLLM. `python -m gateway check`, with the same "
    "settings, checks instead what works there; see `python -m gateway check --help`."
)


def parser(program: str = "python -m gateway", description: str = _DESCRIPTION) -> argparse.ArgumentParser:
    """One flag per setting, and --config."""
    epilog = Settings.epilog("a comma-separated list where it may be repeated")
    flags = Parser(prog=program, description=description, epilog=epilog, allow_abbrev=False)
    add_flags(flags, Settings)
    return flags


def load(arguments: Sequence[str] | None = None) -> Settings:
    """The settings of the command that serves. Raises `SettingsError`."""
    return read(Settings, vars(parser().parse_args(arguments)))
