"""The desk: the only place with state that all requests share. It admits them (`queue`, `rates`), chooses where they go
(`gateway.routing`), and judges the instances by what probes and requests report.

There is one per replica. No I/O and no tasks: `gateway.desk.local` calls it in the same process, `gateway.desk.link`
over a socket; both call `tick` every `TICK_S`.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from gateway.desk.ask import Ask, Owner, State
from gateway.desk.queue import Change, FairQueue, Ticket
from gateway.desk.rates import Rates
from gateway.openai.errors import ApiError, bad_request, unavailable
from gateway.routing.health import State as HealthState
from gateway.routing.instances import Instance, Table, Target
from gateway.routing.policy import choose
from gateway.routing.weights import Weights
from gateway.triton.contract import ModelContract

_log = logging.getLogger(__name__)

TICK_S = 0.5
# What an answer comes to before any has been seen, in tokens; and how much the newest answer says of the next.
_FIRST_MEAN = 256.0
_MEAN_WEIGHT = 0.05
# Waiting requests leave the queue within a second as a rule: answers end all the time.
_RETRY_AFTER = {"retry-after": "1"}


class _Place(Ticket):
    """One request at the desk, and in its queue. `estimate` is what it is expected to take in tokens, `left` what of it
    is still to come; `since` is from when on a token is waited for; `trial`: it is the one request of a half-open
    target; `is_open`: the queue let it in."""

    __slots__ = (
        "ask",
        "estimate",
        "is_open",
        "is_told",
        "left",
        "model",
        "number",
        "owner",
        "since",
        "target",
        "tokens",
        "trial",
        "was_moved",
    )

    def __init__(self, owner: Owner, number: int, ask: Ask, model: str, estimate: int) -> None:
        super().__init__(ask.key, ask.generations, ask.priority)
        self.owner = owner
        self.number = number
        self.ask = ask
        self.model = model
        self.estimate = self.left = estimate
        self.target: Target | None = None
        self.tokens = 0
        self.since = 0.0
        self.trial = self.was_moved = self.is_told = self.is_open = False


@dataclass(slots=True)
class _Loads:
    """What is known of one model across its instances. `mean` is that of recent answers in tokens; `parked` were let in
    while the only target tries one request."""

    queue: FairQueue[_Place]
    mean: float = _FIRST_MEAN
    parked: list[_Place] = field(default_factory=list)


class Desk:
    """`max_in_flight` open generations and `max_waiting` waiting requests per model; `stall_timeout` in seconds.

    `suspect` is called with the name of an instance that deserves a probe at once, `operated` when an operator has
    changed something. `has_canaries`: half-open targets are tried by canaries alone.
    """

    def __init__(
        self,
        max_in_flight: int,
        max_waiting: int,
        stall_timeout: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.table = Table()
        self.weights: dict[str, Weights] = {}
        self.suspect: Callable[[str], None] = lambda instance: None
        self.operated: Callable[[], None] = lambda: None
        self.has_canaries = False
        self._max_in_flight = max_in_flight
        self._max_waiting = max_waiting
        self._stall_timeout = stall_timeout
        self._clock = clock
        self._rates = Rates()
        self._models: dict[str, _Loads] = {}
        self._places: dict[tuple[Owner, int], _Place] = {}
        self._owners: list[Owner] = []
        self._published: State = {}
        self._turn = 0
        self._listing = ""

    # The workers

    def join(self, owner: Owner) -> None:
        """`owner.changed` is called now and whenever the state changes."""
        self._publish()
        self._owners.append(owner)
        self._published = self.state()
        owner.changed(self._published)

    def gone(self, owner: Owner) -> None:
        """A worker is no more; nor are its requests."""
        if owner in self._owners:
            self._owners.remove(owner)
        for place in [place for place in self._places.values() if place.owner is owner]:
            self.leave(owner, place.number, place.tokens, place.estimate)

    def state(self) -> State:
        return {
            "instances": self.table.snapshot(),
            "weights": {name: weights.current for name, weights in self.weights.items()},
            "listing": self._listing,
        }

    # A request

    def enter(self, owner: Owner, number: int, ask: Ask) -> None:
        """`granted` or `refused` follows, perhaps at once."""
        model = self._version(ask) if self.weights else ask.model
        if not self.table.is_ready(model):
            owner.refused(number, self._not_ready(ask.name, model))
            return
        loads = self._loads(model)
        estimate = ask.prompt_tokens + ask.generations * min(ask.max_tokens, int(loads.mean))
        if exceeded := self._rates.admit(ask.key, ask.limits, estimate, self._clock()):
            error = ApiError(
                429,
                f"The key has used its {exceeded.per_minute} {exceeded.limit.replace('_', ' ')}; try again in "
                f"{exceeded.retry_after} s.",
                code="rate_limit_exceeded",
                headers={"retry-after": str(exceeded.retry_after)},
            )
            owner.refused(number, error)
            return
        place = self._places[owner, number] = _Place(owner, number, ask, model, estimate)
        self._apply(loads, loads.queue.offer(place))

    def abandon(self, owner: Owner, number: int) -> None:
        """A request that waits gives up. That it was granted in the same moment makes no difference."""
        if place := self._places.get((owner, number)):
            self._rates.refund(place.ask.key, place.estimate)
            self._remove(place)

    def failed(self, owner: Owner, number: int, problem: str, *, unreachable: bool) -> None:
        """The request's instance gave no answer. `unreachable`: there was no connection to it."""
        place = self._places.get((owner, number))
        if place is None or place.target is None:
            return
        target, now = place.target, self._clock()
        before = target.health.state
        if unreachable:
            for each in target.instance.targets.values():
                each.health.unreachable(problem, now)
        else:
            is_last = not any(t.is_open and t is not target for t in self.table.targets(target.model))
            target.health.failed(problem, now, is_last=is_last)
        self._report(target, before)
        self.suspect(target.instance.name)
        self._changed(target.model)

    def move(self, owner: Owner, number: int) -> None:
        """Another instance for a request whose own has failed, once: `granted` or `refused` follows at once."""
        place = self._places.get((owner, number))
        if place is None:
            return
        failed = place.target
        self._release(place)
        now = self._clock()
        target = None
        if failed is not None and not place.was_moved:
            exclude = (failed.instance.name,)
            place.left = place.estimate
            target = choose(self.table.targets(place.model), place.left, now, exclude, is_retry=True)
        place.was_moved = True
        if target is None:
            owner.refused(number, self._not_ready(place.ask.name, place.model))
        else:
            self._grant(place, target, now)

    def progress(self, owner: Owner, entries: list[tuple[int, int, bool]]) -> None:
        """(number, tokens that came so far, whether its client keeps it from reading more)."""
        now = self._clock()
        for number, tokens, is_held in entries:
            place = self._places.get((owner, number))
            if place is None or place.target is None:
                continue
            if is_held:
                place.since = now
            if tokens > place.tokens:
                self._count(place, tokens, now)

    def leave(self, owner: Owner, number: int, tokens: int, used: int) -> None:
        """The request is over. `tokens` came; `used` are those of prompt and answer together."""
        place = self._places.get((owner, number))
        if place is None:
            return
        if place.target is not None and tokens > place.tokens:
            self._count(place, tokens, self._clock())
        if tokens:
            loads = self._loads(place.model)
            each = tokens / place.ask.generations
            loads.mean += _MEAN_WEIGHT * (each - loads.mean)
        self._rates.settle(place.ask.key, place.estimate, used)
        self._remove(place)

    # The instances

    def probed(self, instance: Instance, contracts: Mapping[str, ModelContract], problems: Mapping[str, str]) -> None:
        """What a probe found: the contracts of the models that are ready, and why the others are not."""
        now = self._clock()
        for target in instance.targets.values():
            if target.model in contracts:
                self._is_ready(target, contracts[target.model], now)
            elif target.model in problems:
                self._is_not_ready(target, problems[target.model], now)
        self._publish()

    def _is_ready(self, target: Target, contract: ModelContract, now: float) -> None:
        before, known = target.health.state, target.contract
        if known != contract:
            target.contract = contract
        target.health.probed("", now)
        if target.health.state is HealthState.HALF_OPEN and before is not HealthState.HALF_OPEN and self.has_canaries:
            target.health.trial = True
        if (before is HealthState.DOWN and target.health.is_open) or known != contract:
            where, backend = target.instance.name, contract.backend.value
            _log.info("model %s is ready on %s (%s backend)", target.model, where, backend)
        if target.health.state is not before:
            self._serve_parked(target.model)

    def _is_not_ready(self, target: Target, problem: str, now: float) -> None:
        before, reason = target.health.state, target.health.reason
        target.health.probed(problem, now)
        if before is not HealthState.DOWN or reason != problem:
            _log.warning("model %s is not ready on %s: %s", target.model, target.instance.name, problem)
            self._serve_parked(target.model)

    def canary_targets(self) -> list[Target]:
        """Those with nothing to do, and those that only a canary may try."""
        return [
            target
            for instance in self.table.instances.values()
            for target in instance.targets.values()
            if target.is_open and (target.health.trial or not target.in_flight)
        ]

    def canary_ended(self, target: Target, problem: str) -> None:
        """`problem` is empty where the token came."""
        now, before = self._clock(), target.health.state
        if problem:
            target.health.stalled(problem, now)
        else:
            target.last_token = now
            target.health.progressed(now)
        self._report(target, before)
        self._changed(target.model)

    def tick(self) -> None:
        """Call it every `TICK_S`."""
        now = self._clock()
        waiting: dict[Target, list[_Place]] = defaultdict(list)
        for place in self._places.values():
            if place.target is not None and not place.is_told:
                waiting[place.target].append(place)
        for target, places in waiting.items():
            if self._is_stalled(target, places, now):
                self._stall(target, places, now)
        for instance in self.table.instances.values():
            for target in instance.targets.values():
                before = target.health.state
                target.health.tick(now)
                self._report(target, before)
        for model in list(self._models):
            self._serve_parked(model)
        for name in self.table.sweep():
            _log.info("%s is gone from the settings and has no requests left", name)
        self._publish()

    # The operator

    def call(self, name: str, *arguments: Any) -> Any:
        """One of the calls that an operator may make, by its name, with JSON values."""
        calls: dict[str, Callable[..., Any]] = {
            "instances": self.instances,
            "waiting": self.waiting,
            "drain": lambda instance: self.drain(instance, is_drained=True),
            "undrain": lambda instance: self.drain(instance, is_drained=False),
            "weights_of": self.weights_of,
            "set_weights": self.set_weights,
            "roll_back": self.roll_back,
        }
        return calls[name](*arguments)

    def set_urls(self, urls: list[str]) -> list[str]:
        """New instances. Those that are no longer there get no new requests. Returns the names of the new ones."""
        added = self.table.set_urls(urls)
        self._publish()
        return added

    def set_models(
        self, models: set[str], weights: Mapping[str, Mapping[str, int]] = MappingProxyType({}), listing: str = ""
    ) -> None:
        """Triton's names of the models to look for, and the weights of versions as they are set: those that an operator
        changed stay as long as the versions are the same. `listing` is passed on to the workers."""
        self.table.set_models(models)
        self._listing = listing
        for name in self.weights.keys() - weights.keys():
            del self.weights[name]
        for name, each in weights.items():
            if name not in self.weights or self.weights[name].current.keys() != each.keys():
                self.weights[name] = Weights(each)
        self._publish()

    def drain(self, name: str, *, is_drained: bool) -> dict[str, Any]:
        """No new requests for an instance, or new ones again. Raises a 404."""
        instance = self.table.instances.get(name)
        if instance is None:
            raise ApiError(
                404,
                f"There is no instance {name!r}; GET /admin/instances lists those that there are.",
                param="instance",
                code="instance_not_found",
            )
        instance.draining = is_drained
        _log.info("%s %s by an admin", name, "is drained" if is_drained else "takes requests again")
        for model in instance.targets:
            self._serve_parked(model)
        self._publish()
        self.operated()
        return self._shown(name)

    def instances(self) -> list[dict[str, Any]]:
        """For the operator: how each instance is, and how busy. Ages are in seconds."""
        return [self._shown(name) for name in self.table.instances]

    def waiting(self) -> dict[str, int]:
        """How many requests wait for room, by Triton's name of a model."""
        return {model: loads.queue.waiting for model, loads in self._models.items()}

    def set_weights(self, name: str, weights: Mapping[str, int]) -> dict[str, Any]:
        """Share out the requests for a served name anew, all at once. Raises a 404, a 400."""
        known = self._weights(name)
        if unknown := sorted(weights.keys() - known.current.keys()):
            message = f"{name!r} has no version {unknown[0]!r}, it has {', '.join(known.current)}."
            raise bad_request(message, unknown[0], "invalid_value")
        if not any(weights.values()):
            raise bad_request("One weight must be above 0, or no version would answer.", None, "invalid_value")
        known.replace(dict.fromkeys(known.current, 0) | dict(weights))
        _log.info("the weights of %s are %s now", name, known.current)
        self._publish()
        self.operated()
        return self.weights_of(name)

    def roll_back(self, name: str) -> dict[str, Any]:
        """Back to the weights before, which become those to go back to. Raises a 404, a 409."""
        if not (known := self._weights(name)).roll_back():
            raise ApiError(409, f"The weights of {name!r} were never changed.", code="nothing_to_roll_back")
        _log.info("the weights of %s are %s again", name, known.current)
        self._publish()
        self.operated()
        return self.weights_of(name)

    def weights_of(self, name: str) -> dict[str, Any]:
        """Raises a 404."""
        known = self._weights(name)
        return {"model": name, "weights": known.current, "previous": known.previous}

    def _weights(self, name: str) -> Weights:
        if name not in self.weights:
            raise ApiError(
                404,
                f"The model {name!r} has no versions with weights (setting models[].weight).",
                param="model",
                code="model_without_versions",
            )
        return self.weights[name]

    def _shown(self, name: str) -> dict[str, Any]:
        instance, now = self.table.instances[name], self._clock()
        return {
            "name": name,
            "url": instance.url,
            "draining": instance.draining,
            "removed": instance.removed,
            "in_flight": instance.in_flight,
            "models": {
                model: {
                    "state": target.health.state,
                    "reason": target.reason,
                    "share": round(target.health.share(now), 3),
                    "in_flight": target.in_flight,
                    "outstanding_tokens": target.outstanding,
                    "last_token_age": None if target.last_token is None else round(now - target.last_token, 3),
                }
                for model, target in instance.targets.items()
            },
        }

    # Inside

    def _version(self, ask: Ask) -> str:
        """The version that the request was translated for, unless it gets no requests any more or cannot take any."""
        weights = self.weights.get(ask.name)
        if weights is None or (weights.current.get(ask.model) and self.table.is_ready(ask.model)):
            return ask.model
        return weights.pick([model for model in weights.current if self.table.is_ready(model)]) or ask.model

    def _not_ready(self, name: str, model: str) -> ApiError:
        return unavailable(f"The model {name!r} is not ready: {self.table.why_not_ready(model)}.")

    def _loads(self, model: str) -> _Loads:
        loads = self._models.get(model)
        if loads is None:
            loads = self._models[model] = _Loads(FairQueue(self._max_in_flight, self._max_waiting))
        return loads

    def _apply(self, loads: _Loads, change: Change[_Place]) -> None:
        for place in change.refused:
            del self._places[place.owner, place.number]
            self._rates.refund(place.ask.key, place.estimate)
            place.owner.refused(place.number, self._full(loads))
        for place in change.admitted:
            place.is_open = True
            self._put(loads, place)

    def _full(self, loads: _Loads) -> ApiError:
        return ApiError(
            429,
            f"{loads.queue.open} of at most {self._max_in_flight} requests for this model are open (setting "
            f"max_in_flight) and {loads.queue.waiting} of at most {self._max_waiting} wait (setting max_waiting); try "
            "again.",
            code="too_many_requests",
            headers=_RETRY_AFTER,
        )

    def _put(self, loads: _Loads, place: _Place) -> None:
        """Send a request that was let in somewhere."""
        now = self._clock()
        target = choose(self.table.targets(place.model), place.left, now)
        if target is not None:
            self._grant(place, target, now)
        elif self.table.is_ready(place.model):
            loads.parked.append(place)
        else:
            self._rates.refund(place.ask.key, place.estimate)
            place.owner.refused(place.number, self._not_ready(place.ask.name, place.model))
            self._remove(place)

    def _grant(self, place: _Place, target: Target, now: float) -> None:
        place.target, place.since, place.is_told, place.tokens = target, now, False, 0
        target.in_flight += place.ask.generations
        target.outstanding += place.left
        self._turn = target.turn = self._turn + 1
        place.trial = target.health.state is HealthState.HALF_OPEN
        if place.trial:
            target.health.trial = True
        place.owner.granted(place.number, target.instance.name, place.model)

    def _release(self, place: _Place) -> None:
        target, place.target = place.target, None
        if target is None:
            return
        target.in_flight -= place.ask.generations
        target.outstanding -= place.left
        if place.trial:
            # It ended without a token and without a failure, such as one whose client went away: the next one tries.
            place.trial = target.health.trial = False

    def _remove(self, place: _Place) -> None:
        del self._places[place.owner, place.number]
        self._release(place)
        loads = self._loads(place.model)
        if place in loads.parked:
            loads.parked.remove(place)
        queue = loads.queue
        self._apply(loads, queue.leave(place) if place.is_open else queue.withdraw(place))
        if loads.parked:
            self._serve_parked(place.model)

    def _count(self, place: _Place, tokens: int, now: float) -> None:
        """Tokens came."""
        target = place.target
        assert target is not None
        left = max(0, place.estimate - tokens)
        target.outstanding += left - place.left
        place.tokens, place.left = tokens, left
        target.last_token = now
        before = target.health.state
        target.health.progressed(now)
        place.trial = False
        if target.health.state is not before:
            self._report(target, before)
            self._changed(target.model)

    def _is_stalled(self, target: Target, places: list[_Place], now: float) -> bool:
        if target.last_token is not None and now - target.last_token < self._stall_timeout:
            return False
        return any(now - place.since >= self._stall_timeout for place in places)

    def _stall(self, target: Target, places: list[_Place], now: float) -> None:
        before = target.health.state
        problem = f"no token came for {self._stall_timeout:g} s"
        target.health.stalled(problem, now)
        self._report(target, before)
        self._publish()
        numbers: dict[Owner, list[int]] = defaultdict(list)
        for place in places:
            place.is_told = True
            numbers[place.owner].append(place.number)
        for owner, lost in numbers.items():
            owner.lost(lost, problem)

    def _changed(self, model: str) -> None:
        self._serve_parked(model)
        self._publish()

    def _serve_parked(self, model: str) -> None:
        loads = self._models.get(model)
        if loads is None or not loads.parked:
            return
        parked, loads.parked = loads.parked, []
        for place in parked:
            if (place.owner, place.number) in self._places:
                self._put(loads, place)

    def _publish(self) -> None:
        if not self._owners:
            return
        state = self.state()
        if state != self._published:
            self._published = state
            for owner in self._owners:
                owner.changed(state)

    @staticmethod
    def _report(target: Target, before: HealthState) -> None:
        now = target.health.state
        if now is not before:
            level = logging.WARNING if now in (HealthState.DOWN, HealthState.EJECTED) else logging.INFO
            why = f": {target.health.reason}" if target.health.reason else ""
            _log.log(level, "model %s on %s is %s%s", target.model, target.instance.name, now.value, why)
