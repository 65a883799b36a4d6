"""The variables `PREFETCH_…`: which are settings, which Kubernetes injects, which are slips.

Kubernetes gives every pod variables for the Services of its namespace, named after them: a Service `prefetch` gives
names that begin like ours (Kubernetes, "Discovering services", environment variables).
"""

import re
from collections.abc import Collection, Mapping

from prefetch.settings_error import SettingsError

PREFIX = "PREFETCH_"

_INJECTED_NAME = re.compile(
    r"PREFETCH_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)", re.ASCII
)
_INJECTED_URL = re.compile(r"(tcp|udp|sctp)://")


def variable(setting: str) -> str:
    return PREFIX + setting.upper()


def is_service_url(value: str) -> bool:
    """Whether this is what Kubernetes puts into `<SERVICE>_PORT`, such as `tcp://10.0.0.1:9500`."""
    return _INJECTED_URL.match(value) is not None


def check_variables(environment: Mapping[str, str], settings: Collection[str]) -> None:
    """Refuse what looks like a setting and is none. Raises `SettingsError`."""
    known = {variable(name) for name in settings}
    for name, value in environment.items():
        if name in known or not name.upper().startswith(PREFIX):
            continue
        if name.upper() in known:
            raise SettingsError(f"The variable {name} must be written in capitals: {name.upper()}.")
        is_injected = _INJECTED_NAME.fullmatch(name) or (name.endswith("_PORT") and is_service_url(value))
        if name.startswith(PREFIX) and not is_injected:
            raise SettingsError(f"The variable {name} is no setting; `python -m prefetch serve --help` lists all.")
