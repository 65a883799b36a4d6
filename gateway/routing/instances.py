"""The state table of routing: which Triton instances there are, what each serves, how each is and how busy.

A *target* is one model on one instance. The table is filled by the desk (`gateway.desk.desk`); a worker in a process of
its own has a copy of what does not change with every request (`Table.snapshot`). Values only, no I/O.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.routing.health import Health, State
from gateway.triton.contract import Backend, ModelContract

NOT_YET = "no Triton server answered yet"


@dataclass(slots=True, eq=False)
class Target:
    """`contract` is what the model takes there, as far as it was ever seen. `in_flight` are open generations,
    `outstanding` the tokens that they are expected to take still (prompt and answer); `last_token` is when a token last
    came; `turn` is the number of the last choice that fell on it."""

    instance: "Instance"
    model: str
    contract: ModelContract | None = None
    health: Health = field(default_factory=lambda: Health(reason=NOT_YET))
    in_flight: int = 0
    outstanding: int = 0
    last_token: float | None = None
    turn: int = 0

    @property
    def is_open(self) -> bool:
        return self.health.is_open and not self.instance.is_closed

    @property
    def takes(self) -> bool:
        return self.health.takes and not self.instance.is_closed

    @property
    def reason(self) -> str:
        """Why it takes no requests, without a full stop; empty where it takes them."""
        if self.health.is_open and self.instance.is_closed:
            return "its Triton server is being drained"
        return self.health.reason


@dataclass(slots=True, eq=False)
class Instance:
    """One Triton server. `name` is what logs, metrics and the admin routes call it; `draining`: an operator wants
    it to get no new requests; `removed`: it is no longer in the settings, and goes when its last request has ended."""

    name: str
    url: str
    draining: bool = False
    removed: bool = False
    targets: dict[str, Target] = field(default_factory=dict)

    @property
    def is_closed(self) -> bool:
        """To new requests."""
        return self.draining or self.removed

    @property
    def in_flight(self) -> int:
        return sum(target.in_flight for target in self.targets.values())


def instance_name(url: str) -> str:
    """`http://triton-a:8000` → `triton-a:8000`: stays the same when the list of instances changes around it."""
    return url.partition("://")[2].rstrip("/")


class Table:
    """The instances by name; `models` are Triton's names of the models that are looked for on each."""

    def __init__(self) -> None:
        self.instances: dict[str, Instance] = {}
        self.models: set[str] = set()
        self._targets: dict[str, list[Target]] = {}
        """By model, as far as they were asked for since the table last changed."""

    def targets(self, model: str) -> Sequence[Target]:
        found = self._targets.get(model)
        if found is None:
            found = []
            if model in self.models:
                found += [one.targets[model] for one in self.instances.values() if model in one.targets]
                self._targets[model] = found
        return found

    def is_ready(self, model: str) -> bool:
        return self._open(model) is not None

    def contract(self, model: str) -> ModelContract | None:
        """What the model takes where it can be asked now."""
        target = self._open(model)
        return None if target is None else target.contract

    def _open(self, model: str) -> Target | None:
        for target in self.targets(model):
            if target.is_open:
                return target
        return None

    def why_not_ready(self, model: str) -> str:
        """In the words of the first instance that has a reason of its own, without a full stop."""
        reasons = [target.reason for target in self.targets(model)]
        return next((reason for reason in reasons if reason and reason != NOT_YET), NOT_YET)

    def set_urls(self, urls: list[str]) -> list[str]:
        """Add and remove instances so that they are those of `urls`. Returns the names of the new ones."""
        wanted = {instance_name(url): url for url in urls}
        for name, instance in list(self.instances.items()):
            instance.removed = wanted.get(name) != instance.url
        added = [name for name in wanted if name not in self.instances or self.instances[name].removed]
        for name in added:
            self.instances[name] = self._instance(name, wanted[name])
        self.sweep()
        return added

    def sweep(self) -> list[str]:
        """Forget instances and models that are gone and whose requests have ended; returns the instances' names."""
        for instance in self.instances.values():
            for model in [m for m, target in instance.targets.items() if m not in self.models and not target.in_flight]:
                del instance.targets[model]
        gone = [name for name, one in self.instances.items() if one.removed and not one.in_flight]
        for name in gone:
            del self.instances[name]
        self._targets.clear()
        return gone

    def set_models(self, models: set[str]) -> None:
        """The models to look for, by Triton's names; what is known of those that stay is kept."""
        self.models = set(models)
        for instance in self.instances.values():
            for model in self.models - instance.targets.keys():
                instance.targets[model] = Target(instance, model)
        self.sweep()

    def _instance(self, name: str, url: str) -> Instance:
        instance = Instance(name, url)
        instance.targets = {model: Target(instance, model) for model in sorted(self.models)}
        return instance

    def snapshot(self) -> list[dict[str, Any]]:
        """What a worker needs: JSON values, the same as long as nothing but loads has changed."""
        return [
            {
                "name": instance.name,
                "url": instance.url,
                "draining": instance.is_closed,
                "targets": {
                    model: {
                        "state": target.health.state,
                        "reason": target.health.reason,
                        "contract": _as_json(target.contract),
                    }
                    for model, target in instance.targets.items()
                },
            }
            for instance in self.instances.values()
        ]

    def restore(self, snapshot: list[dict[str, Any]]) -> None:
        """Become what `snapshot` says."""
        self.instances = {}
        self.models = set()
        self._targets.clear()
        for one in snapshot:
            instance = Instance(one["name"], one["url"], one["draining"])
            for model, target in one["targets"].items():
                health = Health(State(target["state"]), target["reason"])
                instance.targets[model] = Target(instance, model, _contract(target["contract"]), health)
            self.models |= instance.targets.keys()
            self.instances[instance.name] = instance


def _as_json(contract: ModelContract | None) -> dict[str, Any] | None:
    return None if contract is None else {"backend": contract.backend, "inputs": sorted(contract.inputs)}


def _contract(value: Mapping[str, Any] | None) -> ModelContract | None:
    return None if value is None else ModelContract(Backend(value["backend"]), frozenset(value["inputs"]))
