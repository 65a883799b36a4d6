"""The file of keys: what stands in it, how a key is made, and how the one that a client sent is found. Pure but for
reading the file.

A key is `gw-<id>-<secret>`: 8 hexadecimal digits that say which one it is, and 256 random bits in base64url. The file
holds for each key's name its id and the SHA-256 of the whole key, so whoever reads the file cannot use it. A plain hash
will do: what is guessed are 256 bits, not a password.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from gateway.desk.rates import UNLIMITED, Limits
from service_base.errors import SettingsError, mistake
from service_base.files import read_yaml

_NAME = re.compile(r"[\w.@+-]{1,64}", re.ASCII)
_ID = re.compile(r"[0-9a-f]{8}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_KEY = re.compile(rb"gw-([0-9a-f]{8})-[A-Za-z0-9_-]{43}")

# What an unknown key is compared with: nothing has this hash.
_NOBODY = bytes(32)


@dataclass(frozen=True, slots=True)
class Key:
    """What a key may do. `name` is "" where there are no keys; `models` are names that clients ask for (`None`: all);
    `priority` as in vLLM, smaller is earlier (`None`: not set); an `admin` key opens the admin routes, and only these.
    """

    name: str
    limits: Limits = UNLIMITED
    priority: int | None = None
    models: frozenset[str] | None = None
    admin: bool = False

    def may_use(self, names: Iterable[str]) -> bool:
        """Whether it may use the model that has these names."""
        return self.models is None or not self.models.isdisjoint(names)


ANONYMOUS = Key("")


def _matches(pattern: re.Pattern[str], what: str) -> AfterValidator:
    def check(value: str) -> str:
        if not pattern.fullmatch(value):
            # Not the value: whoever mixes the columns up may have put a key there.
            raise ValueError(f"it must be {what}")
        return value

    return AfterValidator(check)


class Entry(BaseModel):
    """One key, as the file has it under its name."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    id: Annotated[str, _matches(_ID, "8 hexadecimal digits, the part of the key behind gw-")]
    sha256: Annotated[str, _matches(_SHA256, "the SHA-256 of the key in 64 small hexadecimal digits")]
    models: Annotated[list[str], Field(min_length=1)] | None = None
    requests_per_minute: int | None = Field(None, ge=1)
    tokens_per_minute: int | None = Field(None, ge=1)
    priority: int | None = Field(None, ge=-(2**31), lt=2**31)
    admin: bool = False

    def key(self, name: str) -> Key:
        limits = Limits(self.requests_per_minute, self.tokens_per_minute)
        return Key(name, limits, self.priority, None if self.models is None else frozenset(self.models), self.admin)


class Keys:
    """The keys of one reading of the file."""

    def __init__(self, entries: Mapping[str, Entry]) -> None:
        self._by_id = {
            entry.id.encode(): (bytes.fromhex(entry.sha256), entry.key(name)) for name, entry in entries.items()
        }

    def __len__(self) -> int:
        return len(self._by_id)

    def find(self, sent: bytes) -> Key | None:
        """Whose key this is. Takes as long for a wrong secret as for an unknown id."""
        match = _KEY.fullmatch(sent)
        known, key = self._by_id.get(match[1] if match else b"", (_NOBODY, None))
        return key if hmac.compare_digest(hashlib.sha256(sent).digest(), known) else None


def new_key(taken: Iterable[str]) -> tuple[str, str, str]:
    """A new key, its id, which is none of those `taken`, and its hash."""
    ids = set(taken)
    while (key_id := secrets.token_hex(4)) in ids:
        pass
    key = f"gw-{key_id}-{secrets.token_urlsafe(32)}"
    return key, key_id, hashlib.sha256(key.encode()).hexdigest()


def check_name(name: str) -> str:
    """A key's name, which stands in logs and metrics. Raises `ValueError` with a sentence's end that does not show it:
    it may be a key that was put in the wrong place."""
    if _KEY.fullmatch(name.encode("utf-8", "replace")):
        raise ValueError("it is a key itself; give it a name")
    if not _NAME.fullmatch(name):
        raise ValueError("it must be 1 to 64 letters, digits and . _ @ + -")
    return name


def read_entries(file: Path) -> dict[str, Entry]:
    """What the file holds, by name. Raises `SettingsError`; no value of the file is shown, since one may be a key."""
    return checked(file, read_yaml(file))


def checked(file: Path, content: Mapping[str, Any]) -> dict[str, Entry]:
    """The same of content that is read already."""
    entries: dict[str, Entry] = {}
    name_of: dict[str, str] = {}
    for number, (name, value) in enumerate(content.items(), 1):
        try:
            check_name(name)
        except ValueError as error:
            raise SettingsError(f"The name of key {number} in {file} is wrong: {error}.") from None
        try:
            entry = Entry.model_validate(value)
        except ValidationError as error:
            place, what = mistake(error, name)
            raise SettingsError(f"The key {place} in {file} is wrong: {what.partition(' (got ')[0]}.") from None
        if twin := name_of.get(entry.id):
            raise SettingsError(f"The keys {twin} and {name} in {file} have the same id; make one of them anew.")
        name_of[entry.id] = name
        entries[name] = entry
    return entries
