"""The policy under traffic: who gets what, and what becomes of requests when an instance dies, hangs, or flaps."""

import itertools
import statistics

import pytest

from gateway.routing.health import RAMP_S, State
from tests.unit.gateway.routing.simulator import STALL_S, Request, Simulation


def latency(requests: list[Request]) -> float:
    return statistics.mean(r.finished - r.arrived for r in requests if r.finished is not None)


@pytest.mark.parametrize("seed", range(3))
def test_uneven_instances_get_tokens_by_their_speed(seed: int) -> None:
    simulation = Simulation({"a": 800, "b": 400, "c": 200}, seed)
    # A little more than they can do together, so that every one is busy all the time.
    simulation.run(120, per_second=15, size=100)
    tokens = {name: engine.tokens for name, engine in simulation.engines.items()}
    assert not simulation.victims
    assert tokens["a"] / tokens["b"] == pytest.approx(2, rel=0.2)
    assert tokens["b"] / tokens["c"] == pytest.approx(2, rel=0.2)


def test_equal_instances_get_the_same() -> None:
    simulation = Simulation(dict.fromkeys("abc", 400.0))
    simulation.run(120, per_second=8, size=100)
    shares = [engine.granted / len(simulation.requests) for engine in simulation.engines.values()]
    assert max(shares) - min(shares) < 0.05


def test_a_slow_one_gets_its_fair_share_and_slows_nobody_else_down() -> None:
    simulation = Simulation({"a": 500, "b": 500, "slow": 50})
    simulation.run(300, per_second=6, size=100)
    simulation.drain()
    assert not simulation.victims
    assert all(request.finished for request in simulation.requests)
    tokens = {name: engine.tokens for name, engine in simulation.engines.items()}
    # Of what is to do it takes what it can: neither nothing, nor what a blind round robin would give it.
    assert 0.01 < tokens["slow"] / sum(tokens.values()) < 0.15
    others = [request for request in simulation.requests if request.places != ["slow"]]
    alone = Simulation({"a": 500, "b": 500})
    alone.run(300, per_second=6, size=100)
    assert latency(others) < 1.5 * latency(alone.requests)


@pytest.mark.parametrize("seed", range(5))
def test_one_that_dies_loses_no_request_without_a_token(seed: int) -> None:
    simulation = Simulation(dict.fromkeys("abc", 400.0), seed)
    simulation.run(10, per_second=20, size=50)
    simulation.engines["b"].dead = True
    before = simulation.engines["b"].granted
    simulation.run(30, per_second=15, size=50)
    simulation.drain()
    assert not simulation.victims
    # Its connections broke, which shows; one request at most finds out that none is to be had any more.
    assert simulation.engines["b"].granted <= before + 1
    assert simulation.state("b") is State.DOWN
    assert all(request.places[-1] == "b" for request in simulation.requests if request.failed)


@pytest.mark.parametrize("seed", range(5))
def test_one_that_hangs_is_given_up_while_its_probes_are_good(seed: int) -> None:
    simulation = Simulation(dict.fromkeys("abc", 400.0), seed)
    simulation.run(10, per_second=15, size=50)
    simulation.engines["b"].hangs = True
    hung_at = simulation.now
    ejected: list[float] = []

    def watch(now: float) -> None:
        if simulation.state("b") is State.EJECTED and not ejected:
            ejected.append(now)

    simulation.at_step = watch
    simulation.run(30, per_second=15, size=50)
    assert ejected[0] - hung_at <= STALL_S + 2
    # Later tries take one request each, which goes elsewhere when it does not get anything.
    late = [r for r in simulation.requests if r.arrived > ejected[0] and "b" in r.places]
    assert 0 < len(late) <= 3
    simulation.engines["b"].hangs = False
    simulation.run(60, per_second=10, size=50)
    simulation.drain()
    assert not simulation.victims
    assert simulation.state("b") is State.READY


def test_no_stampede_on_one_that_returns() -> None:
    """It has nothing to do, the others are full: least outstanding tokens alone would send it everything."""
    simulation = Simulation(dict.fromkeys("abc", 300.0))
    simulation.engines["c"].dead = True
    simulation.run(30, per_second=15, size=50)
    assert len(simulation.running) > 50
    simulation.engines["c"].dead = False
    others = simulation.target("a").in_flight
    seen: list[tuple[float, State, int]] = []
    simulation.at_step = lambda now: seen.append((now, simulation.state("c"), simulation.target("c").in_flight))
    simulation.run(40, per_second=15, size=50)
    states = [state for state, _ in itertools.groupby(state for _, state, _ in seen)]
    assert states[-3:] == [State.HALF_OPEN, State.RAMPING, State.READY]
    assert max(in_flight for _, state, in_flight in seen if state is State.HALF_OPEN) == 1
    ramping = [(now, in_flight) for now, state, in_flight in seen if state is State.RAMPING]
    start, end = ramping[0][0], ramping[-1][0]
    assert end - start == pytest.approx(RAMP_S, abs=1)
    first_second = [in_flight for now, in_flight in ramping if now < start + 1]
    assert max(first_second) < 0.3 * others
    assert not simulation.victims


@pytest.mark.parametrize("seed", range(5))
def test_one_that_flaps_loses_no_request_and_gets_ever_fewer(seed: int) -> None:
    simulation = Simulation({"a": 500, "b": 500, "flapping": 500}, seed)

    def flap(now: float) -> None:
        simulation.engines["flapping"].dead = now % 4 < 2

    simulation.at_step = flap
    granted = []
    for _ in range(4):
        before = simulation.engines["flapping"].granted
        simulation.run(60, per_second=12, size=50)
        granted.append(simulation.engines["flapping"].granted - before)
    simulation.drain()
    assert not simulation.victims
    # Far from a third of them.
    assert granted[-1] < 0.1 * 60 * 12
    # What failed had tokens of the flapping one.
    assert all(request.places[-1] == "flapping" for request in simulation.requests if request.failed)
