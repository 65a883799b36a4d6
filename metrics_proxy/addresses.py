"""What may stand in a setting as a host and as a page's URL. Raises `ValueError` with a sentence's end."""

import ipaddress
import re

from metrics_proxy.settings_error import shown

# The path's and query's characters are those of RFC 3986, sections 3.3 and 3.4.
_URL = re.compile(
    r"https?://(?P<host>\[[0-9a-fA-F:.]+\]|[^\[\]/:?#@\s]+)(:(?P<port>[0-9]{1,5}))?"
    r"/[\w.~!$&'()*+,;=:@%/-]*(\?[\w.~!$&'()*+,;=:@%/?\[\]-]*)?",
    re.ASCII | re.IGNORECASE,
)
_LABEL = re.compile(r"[\w-]{1,63}", re.ASCII)
_HOST_CHARACTERS = 253


def check_host(host: str) -> str:
    """An IP address or a host name."""
    if not (_is_ip(host) or _is_name(host)):
        raise ValueError(f"{shown(host)} is neither an IP address nor a host name; every address is 0.0.0.0 or ::")
    return host


def check_url(url: str) -> str:
    """`http` or `https`, a host, perhaps a port, a path, perhaps a query."""
    if "@" in url.partition("?")[0]:
        raise ValueError("a URL must not hold user:password@, since it is shown on the status page; remove it")
    match = _URL.fullmatch(url)
    if not match or not _is_url_host(match["host"]):
        raise ValueError(f"{shown(url)} is not the URL of a page such as http://127.0.0.1:8002/metrics")
    if match["port"] and not 1 <= int(match["port"]) <= 65535:
        raise ValueError(f"the port of {shown(url)} must be between 1 and 65535")
    return url


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
