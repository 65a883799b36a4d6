"""The instances as the desk sees them, for the page of metrics. Pure: the desk's rows in, text out.

They are gauges of one moment, asked for when the page is: any worker gives the same. Where nobody has asked anything of
an instance yet, there is no time since its last token.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from gateway.routing.health import State

GAUGES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "gateway_instance_state": (
        "1 for the state that a model on an instance is in, 0 for the others; draining goes beside them.",
        ("instance", "model", "state"),
    ),
    "gateway_instance_in_flight": ("Generations at an instance, of all workers.", ("instance", "model")),
    "gateway_instance_outstanding_tokens": (
        "Tokens that an instance is expected to compute still, by which requests are shared out.",
        ("instance", "model"),
    ),
    "gateway_seconds_since_last_token": (
        "Since an instance's last token; with requests in flight and no token it is wedged.",
        ("instance", "model"),
    ),
    "gateway_queue_waiting": ("Requests that wait for room (max_in_flight).", ("model",)),
}
"""Name → help text and labels."""

_DRAINING = "draining"


def page(instances: Sequence[Mapping[str, Any]], waiting: Mapping[str, int]) -> bytes:
    """`instances` as `GET /admin/instances` shows them; `waiting` by Triton's name of a model."""
    registry = CollectorRegistry()
    registry.register(_Rows(instances, waiting))
    return generate_latest(registry)


class _Rows(Collector):
    def __init__(self, instances: Sequence[Mapping[str, Any]], waiting: Mapping[str, int]) -> None:
        self._instances = instances
        self._waiting = waiting

    def collect(self) -> Iterable[GaugeMetricFamily]:
        families = {name: GaugeMetricFamily(name, help, labels=labels) for name, (help, labels) in GAUGES.items()}
        for labels, name, value in self._samples():
            families[name].add_metric(labels, value)
        return families.values()

    def _samples(self) -> Iterator[tuple[list[str], str, float]]:
        for instance in self._instances:
            for model, target in instance["models"].items():
                where = [instance["name"], model]
                for state in State:
                    yield [*where, state], "gateway_instance_state", float(target["state"] == state)
                yield [*where, _DRAINING], "gateway_instance_state", float(instance["draining"])
                yield where, "gateway_instance_in_flight", target["in_flight"]
                yield where, "gateway_instance_outstanding_tokens", target["outstanding_tokens"]
                if target["last_token_age"] is not None:
                    yield where, "gateway_seconds_since_last_token", target["last_token_age"]
        for model, count in self._waiting.items():
            yield [model], "gateway_queue_waiting", count
