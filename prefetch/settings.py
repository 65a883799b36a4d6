"""The settings of the service and of the commands: declared once, read from flags, environment (`PREFETCH_…`) and one
YAML file, in that order of precedence. A wrong setting is one sentence that names it (`SettingsError`).
"""

import argparse
import json
import os
import re
import string
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from prefetch import lustre
from prefetch.environment import PREFIX, check_variables, is_service_url, variable
from prefetch.files import read_text, read_yaml
from prefetch.settings_error import SettingsError as SettingsError
from prefetch.settings_error import mistake, shown
from prefetch.source import Source

# Visible to every user of the machine as a flag; so it is a variable or stands in a file.
SECRETS = ("tokens", "mlflow_secret", "huggingface_secret")
_TEMPLATE_FIELDS = ("name", "version", "alias")
_URL = re.compile(r"https?://[^\s/?#@]+(/[^\s?#@]*)?")
_QUEUE = re.compile(r"sqs://[^\s/?#@]+/\S+")


def _is_path(value: Any) -> Any:
    # An empty path would be the current folder.
    if not isinstance(value, str | Path) or not str(value).strip():
        raise ValueError(f"it must be the path of a file or folder (got {shown(value)})")
    return value


def _is_url(url: str) -> str:
    if not _URL.fullmatch(url):
        raise ValueError(f"{shown(url)} is not a URL such as http://127.0.0.1:8000, without user, query or fragment")
    return url.rstrip("/")


def _is_source(url: str) -> str:
    return str(Source.parse(url))


def _is_queue(queue: str) -> str:
    if queue != "local" and not _QUEUE.fullmatch(queue):
        raise ValueError(f"{shown(queue)} is neither 'local' nor sqs://sqs.REGION.amazonaws.com/ACCOUNT/NAME")
    return queue


def _is_template(template: str) -> str:
    try:
        fields = {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}
    except ValueError as error:
        raise ValueError(f"{shown(template)} is no template: {error}") from None
    if not fields <= set(_TEMPLATE_FIELDS):
        raise ValueError(f"{shown(template)} may hold {', '.join(f'{{{name}}}' for name in _TEMPLATE_FIELDS)} alone")
    Source.parse(template.format_map(dict.fromkeys(_TEMPLATE_FIELDS, "x")))
    return template


def _list(value: Any) -> Any:
    # One variable holds several values as a comma-separated list.
    return [item.strip() for item in value.split(",") if item.strip()] if isinstance(value, str) else value


def _json(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise ValueError(f"it is not valid JSON: {error}") from None


def _no_service_url(value: Any) -> Any:
    if isinstance(value, str) and is_service_url(value):
        raise ValueError(
            f"{shown(value)} is what Kubernetes injects for a Service named 'prefetch'; set enableServiceLinks: false "
            "in the pod's spec, set PREFETCH_PORT in the container's env, or give --port"
        )
    return value


# Strict alone, only a `Path` object would do; files and JSON hold text.
FolderPath = Annotated[Path, Field(strict=False), BeforeValidator(_is_path)]
Url = Annotated[str, AfterValidator(_is_url)]
SourceUrl = Annotated[str, AfterValidator(_is_source)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class AssociationSettings(BaseModel):
    """A data repository association of FSx for Lustre."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    path: FolderPath = Field(description="where the association is on the file system")
    source: SourceUrl = Field(description="what it shows")
    auto_export: bool = Field(False, description="whether what is written there is exported to S3")


class Settings(BaseSettings):
    """Field descriptions are the help texts of the flags."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", frozen=True)

    target: FolderPath | None = Field(None, description="the folder of the models, on the shared file system")
    state: FolderPath = Field(
        Path("~/.local/state/prefetch"), description="local folder for the queue and locks; not on a shared file system"
    )
    host: str = Field("127.0.0.1", min_length=1, description="address to listen on")
    port: Annotated[int, BeforeValidator(_no_service_url)] = Field(
        9500, ge=0, le=65535, description="port to listen on; 0 takes a free one"
    )
    allow: Annotated[list[SourceUrl], NoDecode, BeforeValidator(_list)] = Field(
        [], description="s3://bucket/prefix/ that announcements may name; may be repeated"
    )
    tokens: Annotated[list[SecretStr], NoDecode, BeforeValidator(_list)] = Field(
        [], description="bearer tokens of those who may announce and change jobs"
    )
    tokens_file: FolderPath | None = Field(None, description="file with such tokens, one a line")
    mlflow_secret: SecretStr | None = Field(None, description="the secret of MLflow's webhook")
    huggingface_secret: SecretStr | None = Field(None, description="the secret of the Hugging Face webhook")
    source_template: Annotated[str, AfterValidator(_is_template)] | None = Field(
        None, description="the source of an event that has none in S3, with {name}, {version}, {alias}"
    )
    sns_topics: Annotated[list[str], NoDecode, BeforeValidator(_list)] = Field(
        [], description="ARN of an Amazon SNS topic that may announce; may be repeated"
    )
    sns_cert_hosts: Annotated[list[str], NoDecode, BeforeValidator(_list)] = Field(
        [], description="host that SNS certificates may come from; sns.REGION.amazonaws.com of the topics unless set"
    )
    marker_names: Annotated[list[str], NoDecode, BeforeValidator(_list)] = Field(
        ["_READY", "manifest.json"],
        description="name of an object whose creation announces its folder; one that ends in .json is a manifest",
    )
    queue: Annotated[str, AfterValidator(_is_queue)] = Field(
        "local", description="'local' (one machine), or the Amazon SQS queue as sqs://HOST/ACCOUNT/NAME"
    )
    sqs_endpoint: Url | None = Field(None, description="URL of another SQS server than Amazon's")
    sqs_visibility: int = Field(
        120, ge=6, le=43200, description="seconds for which a message that is worked on is hidden, again and again"
    )
    jobs: int = Field(2, ge=1, le=64, description="jobs at a time")
    deadline: Seconds = Field(3600, description="seconds after the announcement when a job counts as late")
    s3_endpoint: Url | None = Field(None, description="URL of another S3 server than Amazon's")
    s3_region: str | None = Field(None, description="the buckets' region")
    concurrency: int = Field(8, ge=1, le=256, description="requests to S3 at a time, all jobs together")
    bytes_per_second: int | None = Field(None, ge=1024, description="limit of what all jobs read together")
    part_bytes: int = Field(32 * 1024 * 1024, ge=64 * 1024, description="size of one ranged GET")
    attempts: int = Field(8, ge=1, description="attempts for each part")
    connect_timeout: Seconds = Field(5, description="seconds to connect to S3")
    read_timeout: Seconds = Field(30, description="seconds without a byte after which a request is repeated")
    reserve_bytes: int = Field(1024**3, ge=0, description="bytes that stay free on the target's file system")
    high_watermark: float = Field(0.9, gt=0, le=1, description="part of the file system above which versions go")
    low_watermark: float = Field(0.8, gt=0, le=1, description="part of the file system down to which they go")
    staging_seconds: Seconds = Field(24 * 3600, description="seconds after which failed staging is removed")
    associations: Annotated[list[AssociationSettings], NoDecode, BeforeValidator(_json)] = Field(
        [], description="data repository associations, as JSON: path, source, auto_export"
    )
    hydrate_stall: Seconds = Field(300, description="seconds without a restored file before `lfs hsm_restore` is left")
    triton: Annotated[list[Url], NoDecode, BeforeValidator(_list)] = Field(
        [], description="base URL of a Triton that loads what is published; may be repeated"
    )
    triton_repository: FolderPath | None = Field(None, description="the Triton model repository that prefetch owns")
    triton_template: FolderPath | None = Field(None, description="folder with the template of an entry in it")
    triton_load_timeout: Seconds = Field(1800, description="seconds that loading may take")
    max_body_bytes: int = Field(4 * 1024 * 1024, ge=1024, description="largest announcement; a larger one is 413")
    shutdown_timeout: int = Field(10, ge=0, description="seconds that open requests get to finish on SIGTERM")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="what is logged")

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if self.low_watermark > self.high_watermark:
            raise ValueError("'low_watermark' must not be above 'high_watermark'")
        given = [name for name in ("triton", "triton_repository", "triton_template") if getattr(self, name)]
        if given and len(given) < 3:
            raise ValueError("'triton', 'triton_repository' and 'triton_template' are given together or not at all")
        for association in self.associations:
            if association.auto_export and self.target and _is_in(self.target, association.path):
                raise ValueError(
                    f"'target' {self.target} is inside the association at {association.path}, which exports to S3 what "
                    "is written there: every staged part would go back to the bucket. Put the target elsewhere"
                )
        return self

    def effective(self) -> dict[str, Any]:
        """For the log at start, without secrets."""
        return self.model_dump(mode="json", exclude=set(SECRETS)) | {
            name: "(set)" for name in SECRETS if getattr(self, name)
        }

    def all_tokens(self) -> list[str]:
        """Raises SettingsError."""
        tokens = [token.get_secret_value() for token in self.tokens]
        if self.tokens_file:
            lines = [line.strip() for line in read_text(self.tokens_file).splitlines()]
            tokens += [line for line in lines if line and not line.startswith("#")]
        return tokens


def _is_in(path: Path, folder: Path) -> bool:
    return path.expanduser().resolve().is_relative_to(folder.expanduser().resolve())


def add_flags(flags: argparse.ArgumentParser, names: Iterable[str]) -> None:
    """A flag for each of these settings, and `--config`."""
    flags.add_argument("--config", metavar="FILE", help="YAML file with settings")
    for name in names:
        field = Settings.model_fields[name]
        options: dict[str, Any] = {"dest": name, "help": _help(name), "default": None}
        if get_origin(field.annotation) is list and name != "associations":
            options |= {"action": "append", "metavar": "VALUE"}
        elif get_origin(field.annotation) is Literal:
            options["metavar"] = "{" + ",".join(get_args(field.annotation)) + "}"
        else:
            options["metavar"] = _metavar(name)
        flags.add_argument("--" + name.replace("_", "-"), **options)


def _metavar(name: str) -> str:
    if name in ("target", "state", "triton_repository", "triton_template"):
        return "DIR"
    return {"associations": "JSON", "port": "PORT", "tokens_file": "FILE"}.get(
        name, "URL" if "endpoint" in name else "VALUE"
    )


def _help(name: str) -> str:
    field = Settings.model_fields[name]
    if field.default is None or field.default == []:
        return str(field.description)
    default = ", ".join(field.default) if isinstance(field.default, list) else field.default
    return f"{field.description} (default: {default})".replace("%", "%%")


def load(flags: Mapping[str, Any]) -> Settings:
    """All sources together; `flags` are parsed ones, by the settings' names. Raises `SettingsError`."""
    given = {name: value for name, value in flags.items() if value is not None}
    check_variables(os.environ, {"config", *Settings.model_fields})
    config = given.pop("config", os.environ.get(variable("config")))
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
        settings = Layered(**given)
    except ValidationError as error:
        place, what = mistake(error)
        if not place:
            raise SettingsError(f"The settings are wrong: {what}.") from None
        name = re.split(r"[.\[]", place)[0]
        source = f"--{name.replace('_', '-')}" if name in given else variable(name)
        raise SettingsError(f"The setting {place!r} ({source}) is wrong: {what}.") from None
    kind = lustre.file_system(settings.state.expanduser())
    if kind in lustre.NETWORK:
        raise SettingsError(
            f"The setting 'state' is wrong: {settings.state} is on a shared file system ({kind}), where SQLite's log "
            "cannot work; give a folder on a local disk."
        )
    return settings


def _from_file(file: Path) -> dict[str, Any]:
    """The file's settings, checked: a flag or variable is text and is converted, but in the file a value has a
    type, and a wrong one is a slip (`port: true` would be 1)."""
    content = read_yaml(file)
    for name, value in content.items():
        field = Settings.model_fields.get(name)
        if field is None:
            raise SettingsError(
                f"The setting {name!r} ({file}) does not exist; `python -m prefetch serve --help` lists all."
            )
        kind: TypeAdapter[Any] = TypeAdapter(field.rebuild_annotation(), config=ConfigDict(strict=True))
        try:
            kind.validate_python(value)
        except ValidationError as error:
            place, what = mistake(error, name)
            raise SettingsError(f"The setting {place!r} ({file}) is wrong: {what}.") from None
    return content
