"""The proxy's settings: declared once, read from flags, environment (`METRICS_PROXY_…`) and one YAML file, in that
order of precedence. A wrong setting is one sentence that names it (`SettingsError`).
"""

import argparse
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, Self, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
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

from metrics_proxy.addresses import check_host, check_url
from metrics_proxy.environment import PREFIX, check_variables, is_service_url, variable
from metrics_proxy.settings_error import SettingsError as SettingsError
from metrics_proxy.settings_error import mistake, shown
from metrics_proxy.yaml_file import read_yaml

_METRIC_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL_NAME = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")
_SOURCE_NAME = re.compile(r"[\w.:/-]+", re.ASCII)
_OF_SAMPLES = ("le", "quantile")


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


def _is_path(value: Any) -> Any:
    # An empty path would be the current folder.
    if not isinstance(value, str | Path) or not str(value).strip() or "\0" in str(value):
        raise ValueError(f"it must be the path of a folder (got {shown(value)})")
    return value


def _sources(value: Any) -> Any:
    """Flags are a list of texts, the variable is JSON or one short form."""
    if isinstance(value, str):
        value = _json(value) if value.lstrip().startswith("[") else [value]
    if isinstance(value, list):
        return [_source(entry) if isinstance(entry, str) else entry for entry in value]
    return value


def _source(text: str) -> Any:
    if text.lstrip().startswith("{"):
        return _json(text)
    kind, equals, address = text.partition("=")
    if not equals:
        raise ValueError(f"{shown(text)} is neither KIND=ADDRESS nor a JSON object")
    return {"kind": kind, "path" if kind == "directory" else "url": address}


def _policies(value: Any) -> Any:
    return _json(value) if isinstance(value, str) else value


def _json(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_each_key_once)
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
            f"{shown(value)} is what Kubernetes injects for a Service named 'metrics-proxy'; set enableServiceLinks: "
            "false in the pod's spec, set METRICS_PROXY_PORT in the container's env, or give --port"
        )
    return value


LabelName = Annotated[str, AfterValidator(_is_label_name)]
SourceName = Annotated[str, AfterValidator(_is_source_name)]
MetricName = Annotated[str, AfterValidator(_is_metric_name)]


class SourceSettings(BaseModel):
    """One source. A `directory` has a path, the others a URL."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    kind: Literal["triton", "directory", "exporter"] = Field(
        description="Triton's page; vLLM's Prometheus multiprocess directory; any other page"
    )
    url: Annotated[str, AfterValidator(check_url)] | None = Field(None, description="of triton and exporter")
    path: Annotated[Path, Field(strict=False), BeforeValidator(_is_path)] | None = Field(
        None, description="of a directory"
    )
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


class Settings(BaseSettings):
    """Field descriptions are the help texts of the flags."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", frozen=True)

    host: Annotated[str, AfterValidator(check_host)] = Field("127.0.0.1", description="address to listen on")
    port: Annotated[int, BeforeValidator(_no_service_url)] = Field(
        9401, ge=0, le=65535, description="port to listen on; 0 takes a free one"
    )
    sources: Annotated[list[SourceSettings], NoDecode, BeforeValidator(_sources)] = Field(
        default=_DEFAULT_SOURCES,
        min_length=1,
        description="triton=URL, directory=PATH, exporter=URL, or a JSON object; may be repeated",
    )
    policies: Annotated[dict[MetricName, PolicySettings], NoDecode, BeforeValidator(_policies)] = Field(
        default={}, description="by family, as JSON: prefer, rename or relabel where sources collide"
    )
    source_timeout: float = Field(5, gt=0, allow_inf_nan=False, description="seconds a source may take")
    max_body_bytes: int = Field(16 * 1024 * 1024, ge=1024, description="largest page, also unpacked, and largest file")
    max_samples: int = Field(100_000, ge=1, description="most samples of a source")
    compact_after: int = Field(
        100, ge=0, description="files of dead processes that are put together in one; 0 leaves directories as they are"
    )
    fail_when_down: bool = Field(False, description="answer 503 when a source is down, instead of 200 without it")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="what is logged")

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

    def effective(self) -> dict[str, Any]:
        """For the log at start. There are no secrets in these settings."""
        return self.model_dump(mode="json", exclude_defaults=False)


class _Flags(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SettingsError(f"{message[0].upper()}{message[1:]}; `python -m metrics_proxy --help` lists all settings.")


_METAVARS = {
    "host": "ADDRESS",
    "port": "PORT",
    "policies": "JSON",
    "source_timeout": "SECONDS",
    "max_body_bytes": "BYTES",
    "max_samples": "COUNT",
    "compact_after": "FILES",
}


def parser() -> argparse.ArgumentParser:
    """One flag per setting."""
    flags = _Flags(
        prog="python -m metrics_proxy",
        description="One /metrics that merges Triton's page with vLLM's Prometheus multiprocess files. "
        "`python -m metrics_proxy clean [DIR]` empties a multiprocess directory.",
        epilog="Every flag is also an environment variable (METRICS_PROXY_PORT; METRICS_PROXY_SOURCES is JSON) and, "
        "but for --config, a key of the YAML file (port, sources). Flags win over the environment, the environment "
        "over the file.",
        allow_abbrev=False,
    )
    flags.add_argument("--config", metavar="FILE", help="YAML file with settings")
    for name, field in Settings.model_fields.items():
        options: dict[str, Any] = {"dest": name, "help": _help(name), "default": None}
        flag = name
        if field.annotation is bool:
            options["action"] = argparse.BooleanOptionalAction
        elif name == "sources":
            flag = "source"
            options |= {"action": "append", "metavar": "KIND=ADDRESS"}
        elif get_origin(field.annotation) is Literal:
            options["metavar"] = "{" + ",".join(get_args(field.annotation)) + "}"
        else:
            options["metavar"] = _METAVARS[name]
        flags.add_argument("--" + flag.replace("_", "-"), **options)
    return flags


def _help(name: str) -> str:
    field = Settings.model_fields[name]
    default = field.default
    if name == "sources":
        default = f"triton={_DEFAULT_SOURCES[0].url}"
    said = "" if default is None or default == {} or default is False else f" (default: {default})"
    return f"{field.description}{said}"


def load(arguments: Sequence[str] | None = None) -> Settings:
    """Read all sources. Raises `SettingsError`."""
    flags = {name: value for name, value in vars(parser().parse_args(arguments)).items() if value is not None}
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
        if not place:
            raise SettingsError(f"The settings contradict each other: {what}.") from None
        name = place.partition("[")[0].partition(".")[0]
        flag = "--source" if name == "sources" else f"--{name.replace('_', '-')}"
        raise SettingsError(
            f"The setting {place!r} ({flag if name in flags else variable(name)}) is wrong: {what}."
        ) from None


def _from_file(file: Path) -> dict[str, Any]:
    """The file's settings, checked: a flag or variable is text and is converted, but in the file a value has a
    type, and a wrong one is a slip (`port: true` would be 1)."""
    content = read_yaml(file)
    for name, value in content.items():
        field = Settings.model_fields.get(name)
        if field is None:
            raise SettingsError(
                f"The setting {name!r} ({file}) does not exist; `python -m metrics_proxy --help` lists all."
            )
        kind: TypeAdapter[Any] = TypeAdapter(field.rebuild_annotation(), config=ConfigDict(strict=True))
        try:
            kind.validate_python(value)
        except ValidationError as error:
            place, what = mistake(error, name)
            raise SettingsError(f"The setting {place!r} ({file}) is wrong: {what}.") from None
    return content
