"""`s3://bucket/prefix/`: where a model's objects are, and which of those an announcement may name. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

# Amazon S3 user guide, "General purpose bucket naming rules"; older buckets may hold capitals and underscores.
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9]", re.ASCII)


@dataclass(frozen=True)
class Source:
    """A folder in a bucket; `prefix` ends with `/`, or is empty for a whole bucket."""

    bucket: str
    prefix: str

    @classmethod
    def parse(cls, url: str) -> "Source":
        """A missing final slash is added: the URL names a folder, not the beginning of names. Raises ValueError."""
        scheme, separator, rest = url.partition("://")
        if scheme != "s3" or not separator:
            raise ValueError(f"{url!r} is not an s3://bucket/prefix/ URL")
        bucket, _, prefix = rest.partition("/")
        if not _BUCKET.fullmatch(bucket):
            raise ValueError(f"{url!r} does not name a bucket: {bucket!r}")
        prefix = prefix.removesuffix("/")
        if prefix and any(part in ("", ".", "..") for part in prefix.split("/")):
            raise ValueError(f"{url!r} has a component that is empty, '.' or '..'")
        if not prefix.isprintable():
            raise ValueError(f"{url!r} holds a control character")
        return cls(bucket, f"{prefix}/" if prefix else "")

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"

    def holds(self, other: "Source") -> bool:
        return self.bucket == other.bucket and other.prefix.startswith(self.prefix)


def allowing(source: Source, allowed: Sequence[Source]) -> Source | None:
    """The most exact entry of the allow-list that holds `source`."""
    entries = [entry for entry in allowed if entry.holds(source)]
    return max(entries, key=lambda entry: len(entry.prefix), default=None)
