"""Settings of a service, declared once as a class: read from flags, environment and one YAML file, in that order of
precedence. A wrong setting is one sentence that names it (`SettingsError`).
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict

from service_base.environment import check_variables, is_service_url, service_name
from service_base.errors import SettingsError, mistake, shown
from service_base.files import read_yaml
from service_base.flags import flag_name


class ServiceSettings(BaseSettings):
    """What a service's settings are made from, with an `env_prefix` of its own. Field descriptions are the help texts
    of the flags."""

    model_config = SettingsConfigDict(extra="forbid", frozen=True)

    help_command: ClassVar[str]
    """What lists all settings."""

    @classmethod
    def variable(cls, setting: str) -> str:
        """The variable of a setting."""
        return f"{cls.model_config['env_prefix']}{setting}".upper()

    @classmethod
    def epilog(cls, variables: str) -> str:
        """The last words of the help; `variables` says how a variable holds what a flag cannot, or says repeatedly."""
        return (
            f"Every setting is also an environment variable ({cls.variable('port')}; {variables}) and, but for "
            "--config, a key of the YAML file (port). Flags win over the environment, the environment over the file."
        )

    def effective(self) -> dict[str, Any]:
        """For the log at start. There are no secrets in these settings, unless the subclass says so."""
        return self.model_dump(mode="json")


_Settings = TypeVar("_Settings", bound=ServiceSettings)


def read(settings: type[_Settings], flags: Mapping[str, Any]) -> _Settings:
    """All sources together; `flags` are parsed ones, by the settings' names, `None` where not given. Raises
    `SettingsError`."""
    given = {name: value for name, value in flags.items() if value is not None}
    known = {settings.variable(name) for name in ("config", *settings.model_fields)}
    check_variables(os.environ, settings.variable(""), known, settings.help_command)
    config = given.pop("config", os.environ.get(settings.variable("config")))
    if config is not None and not config.strip():
        raise SettingsError("The setting 'config' is wrong: give the path of a YAML file, or leave it out.")
    from_file = _from_file(settings, Path(config)) if config else {}
    try:
        return settings(**(from_file | EnvSettingsSource(settings)() | given))
    except ValidationError as error:
        raise SettingsError(_sentence(settings, error, given)) from None


def _sentence(settings: type[ServiceSettings], error: ValidationError, given: Mapping[str, Any]) -> str:
    place, what = mistake(error)
    if not place:
        return f"The settings contradict each other: {what}."
    name = re.split(r"[.\[]", place)[0]
    flag, variable = flag_name(settings, name), settings.variable(name)
    value = os.environ.get(variable, "")
    if name not in given and is_service_url(value):
        what = (
            f"{shown(value)} is what Kubernetes injects for a Service named "
            f"'{service_name(settings.variable(''))}'; set enableServiceLinks: false in the pod's spec, set {variable} "
            f"in the container's env, or give {flag}"
        )
    return f"The setting {place!r} ({flag if name in given else variable}) is wrong: {what}."


def _from_file(settings: type[ServiceSettings], file: Path) -> dict[str, Any]:
    """The file's settings, checked: a flag or variable is text and is converted, but in the file a value has a
    type, and a wrong one is a slip (`port: true` would be 1)."""
    content = read_yaml(file)
    for name, value in content.items():
        field = settings.model_fields.get(name)
        if field is None:
            raise SettingsError(f"The setting {name!r} ({file}) does not exist; `{settings.help_command}` lists all.")
        kind: TypeAdapter[Any] = TypeAdapter(field.rebuild_annotation(), config=ConfigDict(strict=True))
        try:
            kind.validate_python(value)
        except ValidationError as error:
            place, what = mistake(error, name)
            raise SettingsError(f"The setting {place!r} ({file}) is wrong: {what}.") from None
    return content
