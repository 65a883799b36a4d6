"""The desk by itself, with a clock of numbers: limits, the queue, moves, versions, drains, the list of instances."""

from typing import Any

import pytest

from gateway.desk.ask import Ask, State
from gateway.desk.desk import Desk
from gateway.desk.rates import Limits
from gateway.openai.errors import ApiError
from gateway.routing.health import BACK_OFF_S
from gateway.routing.health import State as Health
from gateway.triton.contract import Backend, ModelContract

CONTRACT = ModelContract(Backend.OURS, frozenset())
STALL_S = 10.0


class Worker:
    """Notes what the desk says."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.places: dict[int, tuple[str, str]] = {}
        self.errors: dict[int, ApiError] = {}
        self.lost_ones: list[int] = []
        self.states: list[State] = []

    def enter(self, number: int, **ask: Any) -> str | None:
        """Where it may go; None: it waits or is refused."""
        wanted: dict[str, Any] = {"name": "m", "model": "m", "generations": 1, "prompt_tokens": 10, "max_tokens": 100}
        self.desk.enter(self, number, Ask(**wanted | ask))
        return self.places[number][0] if number in self.places else None

    def granted(self, number: int, instance: str, model: str) -> None:
        self.places[number] = (instance, model)

    def refused(self, number: int, error: ApiError) -> None:
        self.errors[number] = error

    def lost(self, numbers: list[int], problem: str) -> None:
        self.lost_ones += numbers

    def changed(self, state: State) -> None:
        self.states.append(state)


class World:
    def __init__(self, instances: str = "ab", max_in_flight: int = 10, max_waiting: int = 10, model: str = "m") -> None:
        self.now = 1000.0
        self.desk = Desk(max_in_flight, max_waiting, STALL_S, lambda: self.now)
        self.desk.set_models({model})
        self.desk.set_urls([f"http://{name}" for name in instances])
        self.probe(instances)
        self.worker = Worker(self.desk)

    def probe(self, well: str) -> None:
        for name, instance in self.desk.table.instances.items():
            models = instance.targets
            if name in well:
                self.desk.probed(instance, dict.fromkeys(models, CONTRACT), {})
            else:
                self.desk.probed(instance, {}, dict.fromkeys(models, "it is down"))

    def health(self, name: str) -> Health:
        return self.desk.table.instances[name].targets["m"].health.state

    def shown(self, name: str) -> dict[str, Any]:
        (found,) = [one for one in self.desk.instances() if one["name"] == name]
        return found


def test_the_fewest_outstanding_tokens_not_the_fewest_requests() -> None:
    world = World()
    assert world.worker.enter(1, prompt_tokens=5000) == "a"
    assert [world.worker.enter(n) for n in (2, 3, 4)] == ["b", "b", "b"]
    world.desk.leave(world.worker, 1, 20, 5020)
    assert world.worker.enter(5) == "a"


def test_tokens_that_came_are_outstanding_no_longer() -> None:
    world = World()
    world.worker.enter(1, max_tokens=100)
    before = world.shown("a")["models"]["m"]["outstanding_tokens"]
    world.desk.progress(world.worker, [(1, 60, False)])
    assert world.shown("a")["models"]["m"]["outstanding_tokens"] == before - 60
    world.desk.leave(world.worker, 1, 200, 210)
    assert world.shown("a")["models"]["m"] | {"last_token_age": 0} == {
        "state": "ready",
        "reason": "",
        "share": 1.0,
        "in_flight": 0,
        "outstanding_tokens": 0,
        "last_token_age": 0,
    }


def test_one_more_waits_one_too_many_is_429_and_who_leaves_makes_room() -> None:
    world = World(max_in_flight=2, max_waiting=1)
    worker = world.worker
    assert worker.enter(1)
    assert worker.enter(2)
    assert worker.enter(3) is None
    assert not worker.errors
    worker.enter(4)
    error = worker.errors[4]
    assert (error.status, error.code, error.headers) == (429, "too_many_requests", {"retry-after": "1"})
    world.desk.leave(worker, 1, 5, 15)
    assert worker.places[3]
    world.desk.abandon(worker, 2)
    assert worker.enter(5)


def test_a_worker_that_dies_gives_everything_back() -> None:
    world = World(max_in_flight=2, max_waiting=2)
    other = Worker(world.desk)
    for number in (1, 2, 3):
        other.enter(number)
    assert world.worker.enter(1) is None
    world.desk.gone(other)
    assert world.worker.places[1]
    assert sum(one["in_flight"] for one in world.desk.instances()) == 1


def test_a_keys_rate_is_429_with_the_time_to_wait() -> None:
    world = World()
    limits = Limits(requests_per_minute=2)
    for number in (1, 2, 3):
        world.worker.enter(number, key="k", limits=limits)
    error = world.worker.errors[3]
    assert (error.status, error.code, error.headers["retry-after"]) == (429, "rate_limit_exceeded", "30")
    assert world.worker.enter(4, key="other", limits=limits)


def test_a_request_moves_once() -> None:
    world = World("abc")
    worker = world.worker
    first = worker.enter(1)
    world.desk.failed(worker, 1, "it is gone", unreachable=True)
    assert world.health(str(first)) is Health.DOWN
    world.desk.move(worker, 1)
    second = worker.places[1][0]
    assert second != first
    world.desk.failed(worker, 1, "it is gone", unreachable=True)
    world.desk.move(worker, 1)
    assert worker.errors[1].status == 503
    world.desk.leave(worker, 1, 0, 0)
    assert sum(one["in_flight"] for one in world.desk.instances()) == 0


def test_without_another_instance_there_is_no_move() -> None:
    world = World("a")
    world.worker.enter(1)
    world.desk.failed(world.worker, 1, "it broke", unreachable=False)
    world.desk.move(world.worker, 1)
    assert world.worker.errors[1].status == 503


def test_the_last_instance_is_not_given_up_for_broken_connections() -> None:
    """A request that may fail is better than none."""
    world = World("a")
    for number in range(10):
        assert world.worker.enter(number) == "a"
        world.desk.failed(world.worker, number, "it broke", unreachable=False)
        world.desk.leave(world.worker, number, 0, 0)
    assert world.health("a") is Health.READY


def test_one_that_answers_nobody_is_ejected_where_there_is_another() -> None:
    world = World()
    for number in range(20):
        if world.worker.enter(number) == "a":
            world.desk.failed(world.worker, number, "it broke", unreachable=False)
        world.desk.leave(world.worker, number, 0, 0)
    assert world.health("a") is Health.EJECTED
    assert "it broke" in world.shown("a")["models"]["m"]["reason"]


def test_what_is_in_flight_without_a_token_for_too_long_is_given_up() -> None:
    world = World()
    worker = world.worker
    for number in (1, 2):
        worker.enter(number)
    on_a = [n for n, (instance, _) in worker.places.items() if instance == "a"]
    on_b = [n for n, (instance, _) in worker.places.items() if instance == "b"]
    for _ in range(30):
        world.now += 0.5
        world.desk.progress(worker, [(number, int(world.now), False) for number in on_b])
        world.desk.tick()
    assert worker.lost_ones == on_a
    assert (world.health("a"), world.health("b")) == (Health.EJECTED, Health.READY)


def test_a_client_that_does_not_read_is_no_sign_of_a_hang() -> None:
    world = World("a")
    world.worker.enter(1)
    world.desk.progress(world.worker, [(1, 5, False)])
    for _ in range(100):
        world.now += 0.5
        world.desk.progress(world.worker, [(1, 5, True)])
        world.desk.tick()
    assert (world.worker.lost_ones, world.health("a")) == ([], Health.READY)


def test_one_that_comes_back_gets_one_request_and_the_others_wait_where_there_is_no_other() -> None:
    world = World("a")
    world.probe("")
    assert world.worker.enter(0) is None
    assert world.worker.errors[0].status == 503
    world.probe("a")
    assert world.health("a") is Health.HALF_OPEN
    assert world.worker.enter(1) == "a"
    assert world.worker.enter(2) is None
    assert world.worker.enter(3) is None
    # One that says nothing leaves the try to the next.
    world.desk.leave(world.worker, 1, 0, 0)
    assert world.worker.places[2] == ("a", "m")
    assert 3 not in world.worker.places
    world.desk.progress(world.worker, [(2, 1, False)])
    assert world.worker.places[3] == ("a", "m")
    assert world.health("a") is Health.RAMPING


def test_the_back_off_doubles_while_tries_fail() -> None:
    world = World()
    waits = []
    for number in range(1, 4):
        world.probe("b")
        world.probe("ab")
        ejected_at = world.now
        while world.health("a") is not Health.HALF_OPEN:
            world.now += 0.5
            world.probe("ab")
        waits.append(world.now - ejected_at)
        assert world.worker.enter(number) == "a"
        world.desk.failed(world.worker, number, "it broke", unreachable=False)
        world.desk.leave(world.worker, number, 0, 0)
    assert waits == [0, BACK_OFF_S, 2 * BACK_OFF_S]


def test_with_canaries_no_request_tries_a_half_open_one() -> None:
    world = World()
    world.desk.has_canaries = True
    world.probe("b")
    world.probe("ab")
    assert [world.worker.enter(number) for number in range(3)] == ["b", "b", "b"]
    (target,) = [one for one in world.desk.canary_targets() if one.instance.name == "a"]
    world.desk.canary_ended(target, "no token came")
    assert world.health("a") is Health.EJECTED
    world.now += 60
    world.probe("ab")
    world.desk.canary_ended(target, "")
    assert world.health("a") is Health.RAMPING
    assert "a" in {world.worker.enter(number) for number in range(10, 20)}


def test_a_drained_instance_gets_nothing_new_and_its_requests_go_on() -> None:
    world = World()
    assert world.worker.enter(1) == "a"
    assert world.desk.call("drain", "a")["draining"] is True
    assert {world.worker.enter(number) for number in range(2, 8)} == {"b"}
    assert world.shown("a")["in_flight"] == 1
    assert 1 not in world.worker.lost_ones
    world.desk.call("undrain", "a")
    assert "a" in {world.worker.enter(number) for number in range(8, 10)}
    with pytest.raises(ApiError, match="There is no instance 'x'"):
        world.desk.call("drain", "x")


def test_an_instance_that_leaves_the_settings_goes_when_its_requests_have_ended() -> None:
    world = World()
    assert world.worker.enter(1) == "a"
    assert world.desk.set_urls(["http://b", "http://c"]) == ["c"]
    assert world.worker.enter(2) == "b"
    world.desk.tick()
    assert set(world.desk.table.instances) == {"a", "b", "c"}
    world.desk.leave(world.worker, 1, 5, 15)
    world.desk.tick()
    assert set(world.desk.table.instances) == {"b", "c"}


def test_one_that_comes_back_into_the_settings_is_used_again() -> None:
    world = World()
    assert world.worker.enter(1) == "a"
    world.desk.set_urls(["http://b"])
    world.desk.set_urls(["http://a", "http://b"])
    world.desk.leave(world.worker, 1, 5, 15)
    assert {world.worker.enter(number) for number in (2, 3)} == {"a", "b"}


def versions() -> World:
    world = World()
    world.desk.set_models({"v1", "v2"}, {"m": {"v1": 1, "v2": 0}})
    world.probe("ab")
    return world


def test_weights_change_at_once_and_go_back() -> None:
    world = versions()
    worker = world.worker
    worker.enter(1, model="v1")
    assert worker.places[1][1] == "v1"
    assert world.desk.call("set_weights", "m", {"v1": 0, "v2": 5})["weights"] == {"v1": 0, "v2": 5}
    # Also one that was made for the old version.
    worker.enter(2, model="v1")
    assert worker.places[2][1] == "v2"
    assert world.desk.call("roll_back", "m") == {
        "model": "m",
        "weights": {"v1": 1, "v2": 0},
        "previous": {"v1": 0, "v2": 5},
    }
    worker.enter(3, model="v2")
    assert worker.places[3][1] == "v1"


@pytest.mark.parametrize(
    ("name", "weights", "status"), [("m", {"v3": 1}, 400), ("m", {"v1": 0}, 400), ("other", {"v1": 1}, 404)]
)
def test_wrong_weights_change_nothing(name: str, weights: dict[str, int], status: int) -> None:
    world = versions()
    with pytest.raises(ApiError) as caught:
        world.desk.call("set_weights", name, weights)
    assert caught.value.status == status
    assert world.desk.call("weights_of", "m")["previous"] is None
    with pytest.raises(ApiError) as caught:
        world.desk.call("roll_back", "m")
    assert caught.value.status == 409


def test_a_version_that_is_not_ready_leaves_its_requests_to_the_others() -> None:
    world = versions()
    world.desk.call("set_weights", "m", {"v1": 1, "v2": 1})
    for instance in world.desk.table.instances.values():
        world.desk.probed(instance, {"v1": CONTRACT}, {"v2": "it is not loaded"})
    for number in range(4):
        world.worker.enter(number, model="v2")
    assert {model for _, model in world.worker.places.values()} == {"v1"}


def test_models_may_come_and_go() -> None:
    world = World()
    world.desk.set_models({"m", "new"})
    world.probe("ab")
    assert world.worker.enter(1, name="new", model="new")
    world.desk.set_models({"m"})
    world.worker.enter(2, name="new", model="new")
    assert world.worker.errors[2].status == 503
    assert set(world.shown("a")["models"]) == {"m", "new"}
    world.desk.leave(world.worker, 1, 1, 11)
    world.desk.tick()
    assert set(world.shown("a")["models"]) == {"m"}


def test_workers_are_told_of_changes_and_not_of_loads() -> None:
    world = World()
    world.desk.join(world.worker)
    told = len(world.worker.states)
    for number in range(5):
        world.worker.enter(number)
        world.desk.leave(world.worker, number, 5, 15)
    world.desk.tick()
    assert len(world.worker.states) == told
    world.desk.call("drain", "a")
    assert world.worker.states[-1]["instances"][0]["draining"] is True
