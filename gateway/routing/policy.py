"""Which instance takes a request: a pure choice over the state table."""

from collections.abc import Iterable

from gateway.routing.instances import Instance


def choose(instances: Iterable[Instance], model: str) -> Instance | None:
    """The instance with the fewest requests in flight among those that have `model` ready."""
    ready = [instance for instance in instances if model in instance.models]
    return min(ready, key=lambda instance: instance.in_flight, default=None)


def why_not_ready(instances: Iterable[Instance], model: str) -> str:
    """In the words of the first instance that has a reason, without a full stop."""
    reasons = (instance.reasons.get(model) for instance in instances)
    return next((reason for reason in reasons if reason), "no Triton server answered yet")
