"""Our own announcement: the JSON of `Announcement`. Pure."""

from prefetch.adapters.outcome import Announced, parse
from prefetch.announcement import Announcement


def read(body: bytes | str) -> Announced:
    """Raises Refused."""
    return Announced(parse(Announcement, body))
