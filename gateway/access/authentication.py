"""Which key a request came with, judged by its head alone: nothing of a body is read for a client without one.

`Access` also follows the file of keys. One that is broken keeps the old keys: a slip of the editor must not lock
everybody out, nor let anybody in.
"""

import asyncio
import ipaddress
import logging
import os
from pathlib import Path

from gateway.access.keys import ANONYMOUS, Key, Keys, read_entries
from gateway.api.http import Scope
from gateway.openai.errors import ApiError
from gateway.settings import Settings
from service_base.errors import SettingsError

_log = logging.getLogger(__name__)

# What probes and scrapers ask, who have no keys, and what is the same for every gateway.
OPEN_PATHS = frozenset(
    {"/health/live", "/health/ready", "/metrics", "/docs", "/docs/oauth2-redirect", "/redoc", "/openapi.json"}
)
ADMIN_PREFIX = "/admin/"
_POLL_S = 0.5

_CHALLENGE = {"www-authenticate": "Bearer"}
_NO_ADMIN = (
    "The admin routes need an admin key: make one with `python -m gateway keys new NAME --admin` and start the gateway "
    "with --keys-file."
)
_HOW = "Send it as the header `Authorization: Bearer gw-…`; the operator makes one with `python -m gateway keys new`."


class Access:
    """The keys of a file, the setting `keys_file`; without one every client is anonymous. Raises `SettingsError` when
    made."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._keys: Keys | None = None
        self._seen: tuple[int, ...] | None = None
        if self._file is not None:
            # Before it is read: a change meanwhile is seen by the next look.
            self._seen = _state(self._file)
            self._keys = Keys(read_entries(self._file))
            if not len(self._keys):
                _log.warning("%s holds no key: every request is refused", self._file)

    def authenticate(self, scope: Scope) -> Key:
        """The key of a request. Raises a 401; a 403 for an admin key on another route, and on an admin route for any
        other key or none, also where clients need no keys."""
        path: str = scope["path"]
        is_admin = path.startswith(ADMIN_PREFIX)
        if self._keys is None and is_admin:
            raise ApiError(403, _NO_ADMIN, code="admin_key_required")
        if self._keys is None or path in OPEN_PATHS:
            return ANONYMOUS
        key = self._found(scope, self._keys)
        if is_admin and not key.admin:
            raise ApiError(403, "This needs an admin key.", code="admin_key_required")
        if key.admin and not is_admin:
            raise ApiError(403, "An admin key opens the admin routes only; use another.", code="admin_key_not_allowed")
        return key

    def reload(self) -> None:
        """Read the file again. A broken one changes nothing and is logged."""
        if self._file is None:
            return
        self._seen = _state(self._file)
        try:
            keys = Keys(read_entries(self._file))
        except SettingsError as error:
            _log.error("the old keys stay in force: %s", error)
            return
        self._keys = keys
        _log.info("%d keys read from %s", len(keys), self._file)

    async def follow(self) -> None:
        """Read the file again whenever it changes, until cancelled."""
        while self._file is not None:
            await asyncio.sleep(_POLL_S)
            if _state(self._file) != self._seen:
                self.reload()

    @staticmethod
    def _found(scope: Scope, keys: Keys) -> Key:
        sent = [value for name, value in scope["headers"] if name == b"authorization"]
        if not sent:
            raise ApiError(401, f"There is no API key. {_HOW}", code="invalid_api_key", headers=_CHALLENGE)
        scheme, _, credentials = sent[0].partition(b" ")
        key = keys.find(credentials.strip(b" \t")) if len(sent) == 1 and scheme.lower() == b"bearer" else None
        if key is None:
            # Which of the reasons it is helps nobody but who guesses.
            raise ApiError(401, f"The API key is not valid. {_HOW}", code="invalid_api_key", headers=_CHALLENGE)
        return key


def check_exposure(address: str, settings: Settings) -> None:
    """Raises `SettingsError` where other machines could ask without a key. `address`: what is listened on, as an IP
    address; a Unix-domain socket is no way in for them."""
    if settings.keys_file is None and not settings.allow_anonymous and not _is_loopback(address):
        raise SettingsError(
            f"Other machines could use {address} without a key: make keys with `python -m gateway keys new NAME` and "
            "give --keys-file, or listen on 127.0.0.1, or say --allow-anonymous."
        )


def _is_loopback(address: str) -> bool:
    # A scope such as %eth0 is no part of the address.
    parsed = ipaddress.ip_address(address.partition("%")[0])
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return (mapped or parsed).is_loopback


def _state(file: Path) -> tuple[int, ...] | None:
    """What differs when the file was written or replaced; a link's is its target's."""
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
