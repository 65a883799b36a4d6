"""Engines, clients and a clock made of numbers, around the real desk: hours of traffic in a second.

An engine shares its tokens per second among its requests, as one that decodes a batch does. It may be dead (connections
are refused, those that are open break) or hang (nothing comes, and probes still find it well). Clients ask at random
times, always the same ones for a seed.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from gateway.desk.ask import Ask, State
from gateway.desk.desk import TICK_S, Desk
from gateway.openai.errors import ApiError
from gateway.routing.health import State as Health
from gateway.routing.instances import Target
from gateway.triton.contract import Backend, ModelContract

MODEL = "m"
CONTRACT = ModelContract(Backend.OURS, frozenset())
STEP_S = 0.05
PROBE_S = 1.0
STALL_S = 5.0


@dataclass
class Engine:
    rate: float
    """Tokens per second, of all its requests together."""
    dead: bool = False
    hangs: bool = False
    granted: int = 0
    done: int = 0
    tokens: float = 0.0


@dataclass
class Request:
    number: int
    size: int
    """Tokens of its answer."""
    arrived: float
    engine: str = ""
    tokens: float = 0.0
    failed: str = ""
    finished: float | None = None
    places: list[str] = field(default_factory=list)


class Simulation:
    """`run` it; then look at `requests` and `engines`. `at_step` is called at each step with the time."""

    def __init__(self, rates: dict[str, float], seed: int = 1, max_in_flight: int = 1000) -> None:
        self.now = 0.0
        self.engines = {name: Engine(rate) for name, rate in rates.items()}
        self.requests: list[Request] = []
        self.running: dict[int, Request] = {}
        self.at_step: Callable[[float], None] = lambda now: None
        self._random = random.Random(seed)
        self.desk = Desk(max_in_flight, 1000, STALL_S, lambda: self.now)
        self.desk.set_models({MODEL})
        self.desk.set_urls([f"http://{name}" for name in rates])
        self._probe()

    def target(self, name: str) -> Target:
        return self.desk.table.instances[name].targets[MODEL]

    def state(self, name: str) -> Health:
        return self.target(name).health.state

    @property
    def victims(self) -> list[Request]:
        """Requests that failed though no token had come."""
        return [request for request in self.requests if request.failed and not request.tokens]

    def run(self, seconds: float, per_second: float, size: int = 50) -> None:
        """Clients ask `per_second` times, for answers of `size` tokens in the mean."""
        end = self.now + seconds
        tick = probe = self.now
        while self.now < end:
            self.now += STEP_S
            self.at_step(self.now)
            self._break_dead()
            if self._random.random() < per_second * STEP_S:
                self._arrive(self._random.randint(1, 2 * size - 1))
            self._decode()
            if self.now >= tick:
                tick += TICK_S
                entries = [(r.number, int(r.tokens), False) for r in self.running.values() if r.engine]
                self.desk.progress(self, entries)
                self.desk.tick()
            if self.now >= probe:
                probe += PROBE_S
                self._probe()

    def drain(self) -> None:
        """No new requests, until all have ended."""
        for _ in range(10_000):
            if not self.running:
                return
            self.run(STEP_S, 0)
        raise AssertionError(f"{len(self.running)} requests never end")

    # What the desk says

    def granted(self, number: int, instance: str, model: str) -> None:
        request = self.running[number]
        request.engine, request.tokens = instance, 0.0
        request.places.append(instance)
        self.engines[instance].granted += 1

    def refused(self, number: int, error: ApiError) -> None:
        request = self.running[number]
        if request.engine:
            # It was to be moved, and there is nowhere to go.
            self._end(request, request.failed or error.message)
        else:
            request.failed = error.message
            del self.running[number]

    def lost(self, numbers: list[int], problem: str) -> None:
        for number in numbers:
            self._fail(self.running[number], problem)

    def changed(self, state: State) -> None: ...

    # Inside

    def _arrive(self, size: int) -> None:
        request = Request(len(self.requests) + 1, size, self.now)
        self.requests.append(request)
        self.running[request.number] = request
        self.desk.enter(self, request.number, Ask(MODEL, MODEL, 1, 20, 1000))

    def _decode(self) -> None:
        for name, engine in self.engines.items():
            batch = [request for request in self.running.values() if request.engine == name]
            if engine.dead:
                # Whoever was sent there since the last step.
                for request in batch:
                    self.desk.failed(self, request.number, "it is dead", unreachable=True)
                    self._fail(request, "it is dead")
            elif batch and not engine.hangs:
                share = engine.rate * STEP_S / len(batch)
                for request in batch:
                    request.tokens += share
                    engine.tokens += share
                    if request.tokens >= request.size:
                        engine.done += 1
                        self._end(request, "")

    def _break_dead(self) -> None:
        for name, engine in self.engines.items():
            if engine.dead:
                for request in [r for r in self.running.values() if r.engine == name]:
                    self.desk.failed(self, request.number, "the connection broke", unreachable=False)
                    self._fail(request, "the connection broke")

    def _fail(self, request: Request, problem: str) -> None:
        request.failed = problem
        if request.tokens:
            self._end(request, problem)
        else:
            self.desk.move(self, request.number)
            if request.number in self.running:
                request.failed = ""

    def _end(self, request: Request, failed: str) -> None:
        request.failed = failed
        request.finished = None if failed else self.now
        del self.running[request.number]
        self.desk.leave(self, request.number, int(request.tokens), int(request.tokens) + 20)

    def _probe(self) -> None:
        for name, engine in self.engines.items():
            instance = self.desk.table.instances[name]
            if engine.dead:
                self.desk.probed(instance, {}, {MODEL: "the Triton server does not answer"})
            else:
                self.desk.probed(instance, {MODEL: CONTRACT}, {})
