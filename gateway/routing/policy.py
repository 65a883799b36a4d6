"""Which instance takes a request: a pure choice over the state table."""

from collections.abc import Iterable

from gateway.routing.instances import Instance


def choose(instances: Iterable[Instance], model: str) -> Instance | None:
    """The instance with the fewest requests in flight among those that have `model` ready."""
    ready = [instance for instance in instances if model in instance.models]
    return min(ready, key=lambda instance: instance.in_flight, default=None)
