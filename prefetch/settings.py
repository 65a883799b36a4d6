"""The settings of the service and of the commands: declared once, read from flags, environment (`PREFETCH_…`) and one
YAML file, in that order of precedence. A wrong setting is one sentence that names it (`SettingsError`).
"""

import re
import string
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, model_validator
from pydantic_settings import SettingsConfigDict

from prefetch import lustre
from prefetch.source import Source
from service_base.errors import SettingsError, shown
from service_base.files import read_text
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

# Visible to every user of the machine as a flag; so it is a variable or stands in a file.
SECRETS = ("tokens", "mlflow_secret", "huggingface_secret")
_TEMPLATE_FIELDS = ("name", "version", "alias")
_QUEUE = re.compile(r"sqs://[^\s/?#@]+/\S+")


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


# A request line is a base URL, '/' and a path.
Url = Annotated[BaseUrl, AfterValidator(lambda url: url.rstrip("/"))]
SourceUrl = Annotated[str, AfterValidator(_is_source)]


class AssociationSettings(BaseModel):
    """A data repository association of FSx for Lustre."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    path: FolderPath = Field(description="where the association is on the file system")
    source: SourceUrl = Field(description="what it shows")
    auto_export: bool = Field(False, description="whether what is written there is exported to S3")


class Settings(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="PREFETCH_")

    help_command: ClassVar[str] = "python -m prefetch serve --help"

    target: FolderPath | None = Field(None, description="the folder of the models, on the shared file system")
    state: FolderPath = Field(
        Path("~/.local/state/prefetch"), description="local folder for the queue and locks; not on a shared file system"
    )
    host: Host = Field("127.0.0.1", description="address to listen on")
    port: Port = Field(9500, description="port to listen on; 0 takes a free one")
    allow: Listed[SourceUrl] = Field([], description="s3://bucket/prefix/ that announcements may name; may be repeated")
    tokens: Listed[SecretStr] = Field([], description="bearer tokens of those who may announce and change jobs")
    tokens_file: FilePath | None = Field(None, description="file with such tokens, one a line")
    mlflow_secret: SecretStr | None = Field(None, description="the secret of MLflow's webhook")
    huggingface_secret: SecretStr | None = Field(None, description="the secret of the Hugging Face webhook")
    source_template: Annotated[str, AfterValidator(_is_template)] | None = Field(
        None, description="the source of an event that has none in S3, with {name}, {version}, {alias}"
    )
    sns_topics: Listed[str] = Field([], description="ARN of an Amazon SNS topic that may announce; may be repeated")
    sns_cert_hosts: Listed[str] = Field(
        [], description="host that SNS certificates may come from; sns.REGION.amazonaws.com of the topics unless set"
    )
    marker_names: Listed[str] = Field(
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
    bytes_per_second: Bytes | None = Field(None, ge=1024, description="limit of what all jobs read together")
    part_bytes: Bytes = Field(32 * 1024 * 1024, ge=64 * 1024, description="size of one ranged GET")
    attempts: Count = Field(8, description="attempts for each part")
    connect_timeout: Seconds = Field(5, description="seconds to connect to S3")
    read_timeout: Seconds = Field(30, description="seconds without a byte after which a request is repeated")
    reserve_bytes: Bytes = Field(1024**3, ge=0, description="bytes that stay free on the target's file system")
    high_watermark: float = Field(0.9, gt=0, le=1, description="part of the file system above which versions go")
    low_watermark: float = Field(0.8, gt=0, le=1, description="part of the file system down to which they go")
    staging_seconds: Seconds = Field(24 * 3600, description="seconds after which failed staging is removed")
    associations: FromJson[list[AssociationSettings]] = Field(
        [], description="data repository associations, as JSON: path, source, auto_export"
    )
    hydrate_stall: Seconds = Field(300, description="seconds without a restored file before `lfs hsm_restore` is left")
    triton: Listed[Url] = Field([], description="base URL of a Triton that loads what is published; may be repeated")
    triton_repository: FolderPath | None = Field(None, description="the Triton model repository that prefetch owns")
    triton_template: FolderPath | None = Field(None, description="folder with the template of an entry in it")
    triton_load_timeout: Seconds = Field(1800, description="seconds that loading may take")
    max_body_bytes: Bytes = Field(4 * 1024 * 1024, ge=1024, description="largest announcement; a larger one is 413")
    shutdown_timeout: DrainSeconds = Field(10, description="seconds that open requests get to finish on SIGTERM")
    log_level: LogLevel = Field("info", description="what is logged")

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


def load(flags: Mapping[str, Any]) -> Settings:
    """All sources together; `flags` are parsed ones, by the settings' names. Raises `SettingsError`."""
    settings = read(Settings, flags)
    kind = lustre.file_system(settings.state.expanduser())
    if kind in lustre.NETWORK:
        raise SettingsError(
            f"The setting 'state' is wrong: {settings.state} is on a shared file system ({kind}), where SQLite's log "
            "cannot work; give a folder on a local disk."
        )
    return settings
