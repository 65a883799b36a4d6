"""The variables of a service, `GATEWAY_…` for example: which are settings, which Kubernetes injects, which are slips.

Kubernetes gives every pod variables for the Services of its namespace, named after them: a Service `gateway`
or `gateway-x` gives names that begin like the gateway's (Kubernetes, "Discovering services", environment variables).
"""

import re
from collections.abc import Collection, Mapping

from service_base.errors import SettingsError

_INJECTED_NAME = re.compile(
    r"(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)", re.ASCII
)
_INJECTED_URL = re.compile(r"(tcp|udp|sctp)://")


def is_service_url(value: str) -> bool:
    """Whether this is what Kubernetes puts into `<SERVICE>_PORT`, such as `tcp://10.0.0.1:9000`."""
    return _INJECTED_URL.match(value) is not None


def service_name(prefix: str) -> str:
    """The Kubernetes Service whose variables begin with this prefix."""
    return prefix.removesuffix("_").replace("_", "-").lower()


def check_variables(environment: Mapping[str, str], prefix: str, known: Collection[str], help_command: str) -> None:
    """Refuse what looks like one of the `known` variables and is none. Raises `SettingsError`."""
    for name, value in environment.items():
        if name in known or not name.upper().startswith(prefix):
            continue
        if name.upper() in known:
            raise SettingsError(f"The variable {name} must be written in capitals: {name.upper()}.")
        is_injected = _INJECTED_NAME.fullmatch(name.removeprefix(prefix)) or (
            name.endswith("_PORT") and is_service_url(value)
        )
        if name.startswith(prefix) and not is_injected:
            raise SettingsError(f"The variable {name} is no setting; `{help_command}` lists all.")
