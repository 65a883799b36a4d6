"""Which published versions are removed to make room, and which never. Pure.

Above the high watermark (a part of the file system) versions are removed until the low one is reached; for a job, until
it fits beside the reserve. Least recently used first.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Candidate:
    model: str
    version: str
    bytes: int
    last_used: float  # Unix time
    kept: str | None  # why it may not be removed


@dataclass(frozen=True)
class Usage:
    """Of the file system, in bytes; `free` is what may still be written."""

    total: int
    free: int


@dataclass(frozen=True)
class Policy:
    high: float = 0.90
    low: float = 0.80
    reserve_bytes: int = 1024**3


def to_remove(usage: Usage, candidates: Iterable[Candidate], policy: Policy, needed: int = 0) -> list[Candidate]:
    """In the order of removal; as many as are necessary, or as can be, for `needed` bytes more."""
    used = usage.total - usage.free + needed
    limit = usage.total
    if used > policy.high * usage.total:
        limit = int(policy.low * usage.total)
    if needed:
        limit = min(limit, usage.total - policy.reserve_bytes)
    chosen = []
    # One that frees nothing, such as links into a data repository association, is no help.
    for candidate in sorted(candidates, key=lambda c: c.last_used):
        if used <= limit:
            break
        if candidate.kept is None and candidate.bytes > 0:
            chosen.append(candidate)
            used -= candidate.bytes
    return chosen


def fits(usage: Usage, needed: int, policy: Policy) -> bool:
    return needed + policy.reserve_bytes <= usage.free


def text(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
