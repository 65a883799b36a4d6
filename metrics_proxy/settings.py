"""The proxy's settings: declared once, read from flags, environment (`METRICS_PROXY_…`) and one YAML file, in that
order of precedence. A wrong setting is one sentence that names it (`SettingsError`).
"""

import argparse
import re
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from service_base.addresses import PATH_CHARACTERS, check_url
from service_base.errors import shown
from service_base.flags import Flag, Parser, add_flags
from service_base.settings import ServiceSettings, read
from service_base.types import Bytes, Count, FolderPath, FromJson, Host, LogLevel, Port, Seconds, from_json

_METRIC_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL_NAME = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")
_SOURCE_NAME = re.compile(r"[\w.:/-]+", re.ASCII)
_OF_SAMPLES = ("le", "quantile")
# The query's characters are those of RFC 3986, section 3.4, and brackets, which Prometheus' match[] has.
_PAGE = re.compile(rf"/[{PATH_CHARACTERS}]*(\?[{PATH_CHARACTERS}@?\[\]]*)?", re.ASCII)


def _is_metric_name(name: str) -> str:
    if not _METRIC_NAME.fullmatch(name):
        raise ValueError(f"{shown(name)} is no name of a metric; use letters, digits, '_' and ':'")
    return name


def _is_label_name(name: str) -> str:
    if not _LABEL_NAME.fullmatch(name) or name in _OF_SAMPLES:
        raise ValueError(f"{shown(name)} cannot be a label; use letters, digits and '_', but not le and quantile")
    return name


def _is_source_name(name: str) -> str:
    if not _SOURCE_NAME.fullmatch(name):
        raise ValueError(f"{shown(name)} is no name of a source; use letters, digits, '-', '_', '.', ':' and '/'")
    return name


def _is_page(url: str) -> str:
    return check_url(url, _PAGE, "the URL of a page such as http://127.0.0.1:8002/metrics")


def _sources(value: Any) -> Any:
    """Flags are a list of texts, the variable is JSON or one short form."""
    if isinstance(value, str):
        value = from_json(value) if value.lstrip().startswith("[") else [value]
    if isinstance(value, list):
        return [_source(entry) if isinstance(entry, str) else entry for entry in value]
    return value


def _source(text: str) -> Any:
    if text.lstrip().startswith("{"):
        return from_json(text)
    kind, equals, address = text.partition("=")
    if not equals:
        raise ValueError(f"{shown(text)} is neither KIND=ADDRESS nor a JSON object")
    return {"kind": kind, "path" if kind == "directory" else "url": address}


LabelName = Annotated[str, AfterValidator(_is_label_name)]
SourceName = Annotated[str, AfterValidator(_is_source_name)]
MetricName = Annotated[str, AfterValidator(_is_metric_name)]


class SourceSettings(BaseModel):
    """One source. A `directory` has a path, the others a URL."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    kind: Literal["triton", "directory", "exporter"] = Field(
        description="Triton's page; vLLM's Prometheus multiprocess directory; any other page"
    )
    url: Annotated[str, AfterValidator(_is_page)] | None = Field(None, description="of triton and exporter")
    path: FolderPath | None = Field(None, description="of a directory")
    name: SourceName | None = Field(None, description="what the source is called; its kind unless set")
    labels: dict[LabelName, str] = Field(default={}, description="added to every sample of this source")
    shared_pid_namespace: bool = Field(
        False, description="the processes that write to the directory are in this service's pid namespace"
    )
    same_series: Literal["sum", "label"] = Field(
        "sum", description="of processes that write the same series: their sum, or each with a label `process`"
    )

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        wanted, other = ("path", "url") if self.kind == "directory" else ("url", "path")
        if getattr(self, wanted) is None:
            raise ValueError(f"a source of the kind {self.kind} needs a {wanted}")
        if getattr(self, other) is not None:
            raise ValueError(f"a source of the kind {self.kind} has no {other}")
        if self.kind != "directory" and self.model_fields_set & {"shared_pid_namespace", "same_series"}:
            raise ValueError("shared_pid_namespace and same_series are for directories")
        return self


class PolicySettings(BaseModel):
    """What becomes of one family that several sources have."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    prefer: SourceName | None = Field(None, description="only this source's is kept, if it has one")
    rename: dict[SourceName, MetricName] = Field(default={}, description="by source: the family's new name")
    relabel: dict[SourceName, dict[LabelName, str]] = Field(default={}, description="by source: labels to add")


_DEFAULT_SOURCES = [SourceSettings(kind="triton", url="http://127.0.0.1:8002/metrics")]


class Settings(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="METRICS_PROXY_")

    help_command: ClassVar[str] = "python -m metrics_proxy --help"

    host: Host = Field("127.0.0.1", description="address to listen on")
    port: Port = Field(9401, description="port to listen on; 0 takes a free one")
    sources: Annotated[
        list[SourceSettings],
        NoDecode,
        BeforeValidator(_sources),
        Flag("KIND=ADDRESS", name="source", default=f"triton={_DEFAULT_SOURCES[0].url}"),
    ] = Field(
        default=_DEFAULT_SOURCES,
        min_length=1,
        description="triton=URL, directory=PATH, exporter=URL, or a JSON object; may be repeated",
    )
    policies: FromJson[dict[MetricName, PolicySettings]] = Field(
        default={}, description="by family, as JSON: prefer, rename or relabel where sources collide"
    )
    source_timeout: Seconds = Field(5, description="seconds a source may take")
    max_body_bytes: Bytes = Field(
        16 * 1024 * 1024, ge=1024, description="largest page, also unpacked, and largest file"
    )
    max_samples: Count = Field(100_000, description="most samples of a source")
    compact_after: Annotated[int, Flag("FILES")] = Field(
        100, ge=0, description="files of dead processes that are put together in one; 0 leaves directories as they are"
    )
    fail_when_down: bool = Field(False, description="answer 503 when a source is down, instead of 200 without it")
    log_level: LogLevel = Field("info", description="what is logged")

    @model_validator(mode="after")
    def _names_are_known(self) -> Self:
        names = self.source_names
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two sources are called {shown(name)}; give each a name")
        for family, policy in self.policies.items():
            for name in (*([policy.prefer] if policy.prefer else ()), *policy.rename, *policy.relabel):
                if name not in names:
                    raise ValueError(f"the policy for {family} names the source {shown(name)}, which does not exist")
        return self

    @property
    def source_names(self) -> list[str]:
        """In the order of `sources`; unnamed ones are called by their kind, numbered from the second on."""
        names: list[str] = []
        for source in self.sources:
            name = source.name or source.kind
            number = 1
            while source.name is None and name in names:
                number += 1
                name = f"{source.kind}-{number}"
            names.append(name)
        return names


def parser() -> argparse.ArgumentParser:
    """One flag per setting, and --config."""
    flags = Parser(
        prog="python -m metrics_proxy",
        description="One /metrics that merges Triton's page with vLLM's Prometheus multiprocess files. "
        "`python -m metrics_proxy clean [DIR]` empties a multiprocess directory.",
        epilog=Settings.epilog("METRICS_PROXY_SOURCES is JSON"),
        allow_abbrev=False,
    )
    add_flags(flags, Settings)
    return flags


def load(arguments: Sequence[str] | None = None) -> Settings:
    """Read all sources. Raises `SettingsError`."""
    return read(Settings, vars(parser().parse_args(arguments)))
