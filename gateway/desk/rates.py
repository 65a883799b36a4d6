"""Requests and tokens per minute of each key: token buckets. Pure: the time is an argument, in seconds of any clock
that does not go back.

A bucket holds a minute's worth and fills evenly, so a key that was quiet may use its minute at once. Tokens are
charged on entry as estimated and settled when the request leaves; what it used beyond the estimate is a debt that later
requests wait for. A request whose estimate is larger than the bucket is let in when the bucket is full: an estimate
must not shut a key out for ever.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Per minute; `None`: as many as there are."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None


UNLIMITED = Limits()


@dataclass(frozen=True, slots=True)
class Exceeded:
    """Why a request has to wait. `limit` is the name of the limit and `per_minute` its value; after `retry_after`
    seconds (at least 1) the same request gets in if nothing else of this key does before."""

    limit: str
    per_minute: int
    retry_after: int


class _Bucket:
    """`per_minute` units at most, filling at `per_minute / 60` a second."""

    def __init__(self, per_minute: int, now: float) -> None:
        self.per_minute = per_minute
        self.level = float(per_minute)
        self._filled_at = now

    def fill(self, per_minute: int, now: float) -> None:
        """Up to `now`; a new limit counts from now on."""
        passed = max(0.0, now - self._filled_at)
        self.level = min(float(per_minute), self.level + passed * self.per_minute / 60)
        self.per_minute = per_minute
        self._filled_at = max(now, self._filled_at)

    def wait(self, units: int) -> float:
        """Seconds until so many can be taken."""
        return max(0.0, min(units, self.per_minute) - self.level) * 60 / self.per_minute


class Rates:
    """The buckets of all keys, by name."""

    def __init__(self) -> None:
        self._requests: dict[str, _Bucket] = {}
        self._tokens: dict[str, _Bucket] = {}

    def admit(self, key: str, limits: Limits, tokens: int, now: float) -> Exceeded | None:
        """Charge one request and its estimated `tokens`, or say why not and charge nothing."""
        if limits is UNLIMITED and not self._requests and not self._tokens:
            return None
        requests = _filled(self._requests, key, limits.requests_per_minute, now)
        budget = _filled(self._tokens, key, limits.tokens_per_minute, now)
        if requests is None and budget is None:
            return None
        found = [
            Exceeded(name, bucket.per_minute, math.ceil(wait))
            for name, bucket, units in (
                ("requests_per_minute", requests, 1),
                ("tokens_per_minute", budget, tokens),
            )
            if bucket is not None and (wait := bucket.wait(units)) > _ROUNDING
        ]
        if found:
            return max(found, key=lambda exceeded: exceeded.retry_after)
        if requests is not None:
            requests.level -= 1
        if budget is not None:
            budget.level -= tokens
        return None

    def settle(self, key: str, estimated: int, used: int) -> None:
        """A request left that was charged with `estimated` tokens and used so many."""
        if bucket := self._tokens.get(key):
            bucket.level += estimated - used

    def refund(self, key: str, estimated: int) -> None:
        """A request that was charged did not get in after all, such as one that a full queue refused."""
        self.settle(key, estimated, 0)
        if bucket := self._requests.get(key):
            bucket.level += 1


# Floating point: a bucket that is full but for its last bit is full.
_ROUNDING = 1e-6


def _filled(buckets: dict[str, _Bucket], key: str, per_minute: int | None, now: float) -> _Bucket | None:
    if per_minute is None:
        buckets.pop(key, None)
        return None
    bucket = buckets.get(key)
    if bucket is None:
        bucket = buckets[key] = _Bucket(per_minute, now)
    bucket.fill(per_minute, now)
    return bucket
