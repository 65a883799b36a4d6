"""What may stand in a setting as a host and as a URL. Raises `ValueError` with a sentence's end.

What passes here can be connected to and written into a request line and a `Host` header as it stands.
"""

import ipaddress
import re

from service_base.errors import shown

PATH_CHARACTERS = r"\w.~!$&'()*+,;=:%/\-"
"""Those of RFC 3986, section 3.3, but @; for use between brackets in a pattern."""

_ORIGIN = re.compile(
    r"https?://(?P<host>\[[0-9a-fA-F:.]+\]|[^\[\]/:?#@\s]+)(:(?P<port>[0-9]{1,5}))?", re.ASCII | re.IGNORECASE
)
_BASE_PATH = re.compile(rf"(/[{PATH_CHARACTERS}]*)?", re.ASCII)
_LABEL = re.compile(r"[\w-]{1,63}", re.ASCII)
_HOST_CHARACTERS = 253


def check_host(host: str) -> str:
    """An IP address or a host name."""
    if not (_is_ip(host) or _is_name(host)):
        raise ValueError(f"{shown(host)} is neither an IP address nor a host name; every address is 0.0.0.0 or ::")
    return host


def check_base_url(url: str) -> str:
    """`http` or `https`, a host, perhaps a port and a path."""
    _check_user(url)
    if "?" in url or "#" in url:
        raise ValueError(f"the base URL {shown(url)} must not hold a query or a fragment; remove it")
    return check_url(url, _BASE_PATH, "a base URL such as http://127.0.0.1:8000")


def check_url(url: str, rest: re.Pattern[str], kind: str) -> str:
    """`http` or `https`, a host, perhaps a port, and then what `rest` matches; `kind` says so, with an example."""
    _check_user(url.partition("?")[0])
    origin = _ORIGIN.match(url)
    if not origin or not _is_url_host(origin["host"]) or not rest.fullmatch(url, origin.end()):
        raise ValueError(f"{shown(url)} is not {kind}")
    if origin["port"] and not 1 <= int(origin["port"]) <= 65535:
        raise ValueError(f"the port of {shown(url)} must be between 1 and 65535")
    return url


def _check_user(url: str) -> None:
    if "@" in url:
        raise ValueError("a URL must not hold user:password@, since settings are logged and shown; remove it")


def _is_url_host(host: str) -> bool:
    return _is_ip(host[1:-1]) if host.startswith("[") else _is_name(host)


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _is_name(host: str) -> bool:
    labels = host.removesuffix(".").split(".")
    # Digits and dots alone are an IPv4 address, and a wrong one here.
    return (
        len(host) <= _HOST_CHARACTERS
        and all(_LABEL.fullmatch(label) for label in labels)
        and (not labels[-1].isdigit() or _is_ip(host))
    )
