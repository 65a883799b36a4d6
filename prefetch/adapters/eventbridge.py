"""Amazon EventBridge's "Object Created" events of Amazon S3 (S3 user guide, "EventBridge event message structure").
Pure.

A shard says nothing about the others: only a marker or a manifest, uploaded last, announces the folder that it is in.
Below the entry of the allow-list the folder's path is `<model>/<version>/`.
"""

from collections.abc import Sequence

from pydantic import Field

from prefetch.adapters.outcome import Announced, Event, Ignored, Outcome, Refused, announcement, parse
from prefetch.source import Source, allowing
from service_base import strict_json


class _What(Event):
    source: str
    detail_type: str = Field(alias="detail-type")


class _Bucket(Event):
    name: str


class _Object(Event):
    key: str
    etag: str | None = None
    sequencer: str | None = None


class _Detail(Event):
    bucket: _Bucket
    object: _Object


class _Created(Event):
    detail: _Detail


def is_event(body: bytes | str) -> bool:
    """Whether the body is an event of EventBridge."""
    try:
        value = strict_json.value_of(body)
    except ValueError:
        return False
    return isinstance(value, dict) and "detail-type" in value


def read(body: bytes | str, markers: Sequence[str], allow: Sequence[Source]) -> Outcome:
    """Raises Refused."""
    event = parse(_What, body)
    if event.source != "aws.s3" or event.detail_type != "Object Created":
        return Ignored(f"{event.detail_type} of {event.source} announces no weights.")
    detail = parse(_Created, body).detail
    key = detail.object.key
    folder, _, name = key.rpartition("/")
    if name not in markers:
        return Ignored(f"{key} is neither a marker nor a manifest; their names are in 'marker_names'.")
    try:
        source = Source.parse(f"s3://{detail.bucket.name}/{folder}")
    except ValueError as error:
        raise Refused(422, f"The folder of {key} cannot be a source: {error}.", "detail.object.key") from None
    entry = allowing(source, allow)
    if entry is None:
        raise Refused(422, f"{source} is not allowed; 'allow' lists what is.", "source")
    model, _, version = source.prefix[len(entry.prefix) :].removesuffix("/").rpartition("/")
    if not model or not version:
        raise Refused(422, f"{source} does not name a model and a version below {entry}.", "detail.object.key")
    found = announcement(
        model=model, version=version, source=str(source), manifest_key=key if name.endswith(".json") else None
    )
    # A marker that is uploaded again announces again.
    state = detail.object.sequencer or detail.object.etag
    return Announced(found, f"s3:{detail.bucket.name}/{key}:{state}" if state else None)
