"""What the adapters take and give; the errors that the webhook answers with. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from prefetch.announcement import Announcement
from prefetch.source import Source
from service_base import strict_json
from service_base.errors import mistake

_Model = TypeVar("_Model", bound=BaseModel)


@dataclass(frozen=True)
class Request:
    """Header names are in lower case, values as they came."""

    headers: Mapping[str, bytes]
    body: bytes

    def text(self, header: str) -> str:
        """Empty where there is no such header."""
        return self.headers.get(header, b"").decode("latin-1")


@dataclass(frozen=True)
class Trust:
    """Whose announcements count, and for what."""

    allow: tuple[Source, ...] = ()
    tokens: tuple[str, ...] = field(default=(), repr=False)
    mlflow_secret: str | None = field(default=None, repr=False)
    huggingface_secret: str | None = field(default=None, repr=False)
    source_template: str | None = None
    sns_topics: tuple[str, ...] = ()
    sns_cert_hosts: tuple[str, ...] = ()
    marker_names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Announced:
    """`delivery` identifies the sender's delivery, which may come again."""

    announcement: Announcement
    delivery: str | None = None


@dataclass(frozen=True)
class Ignored:
    """Authentic, and no reason to copy anything."""

    reason: str


@dataclass(frozen=True)
class Confirm:
    """A subscription that is confirmed by fetching `url` once."""

    url: str


Outcome = Announced | Ignored | Confirm


class Refused(Exception):
    """An HTTP status and a sentence; `param` is the field that is wrong."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param


class Event(BaseModel):
    """Base of what others send: they may add fields at any time."""

    model_config = ConfigDict(extra="ignore", frozen=True)


def parse(kind: type[_Model], body: bytes | str) -> _Model:
    """Raises Refused: 400 for what is no JSON, 422 with the field for the rest."""
    try:
        return strict_json.model_of(kind, body)
    except ValidationError as error:
        place, what = mistake(error)
        raise Refused(
            422, f"The field {place!r} is wrong: {what}." if place else f"The body is wrong: {what}.", place
        ) from None
    except ValueError as error:
        raise Refused(400, f"The body is not valid JSON: {error}.") from None


def announcement(**fields: object) -> Announcement:
    """From an event's values. Raises Refused."""
    try:
        return Announcement.model_validate(fields)
    except ValidationError as error:
        place, what = mistake(error)
        raise Refused(422, f"The event names no usable {place}: {what}.", place) from None


def source_of(template: str | None, *, given: str | None, name: str, version: str, alias: str | None = None) -> str:
    """The event's own source if that is in S3, else the template's. Raises Refused."""
    if given and given.startswith("s3://"):
        return given
    if template is None:
        raise Refused(
            422,
            f"The event names no source in S3{f' ({given})' if given else ''}; set 'source_template' to say where "
            "such models are.",
            "source",
        )
    if "{alias}" in template and alias is None:
        raise Refused(422, "The setting 'source_template' holds {alias}, and the event has none.", "source")
    return template.format(name=name, version=version, alias=alias)
