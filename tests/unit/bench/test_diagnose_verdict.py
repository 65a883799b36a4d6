"""Each verdict from the steps that lead to it, and what it says."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from bench.diagnose.measured import Engine, Latency, Process, Regime, Step, Thread
from bench.diagnose.verdict import Kind, Verdict, judge, overall

DECODE, PREPROCESS = Regime.DECODE, Regime.PREPROCESS


def frontend(
    *shares: float, pid: int = 7, python: bool = True, engine: bool = False, got: float | None = None
) -> Process:
    """A process with a thread for each share of a core that it wants, and gets unless `got` says otherwise."""
    threads = [Thread(f"thread-{n}", share if got is None else got, share) for n, share in enumerate(shares)]
    return Process(pid, "uvicorn", threads, 100 * 2**20, python, engine)


def latency(milliseconds: float) -> Latency:
    return Latency(milliseconds / 1000, milliseconds / 1000, 2 * milliseconds / 1000)


def step(
    streams: int,
    rate: float,
    *processes: Process,
    regime: Regime = DECODE,
    ttft: float = 20,
    itl: float = 10,
    client: float = 0.1,
    engine: Engine | None = None,
    gpu: float | None = None,
    failed: int = 0,
) -> Step:
    """Latencies in ms; `rate` is requests or tokens per second, by the regime."""
    return Step(
        regime=regime,
        concurrency=streams,
        seconds=10,
        completed=100,
        failed=failed,
        first_error="status 429: too many" if failed else "",
        requests_per_second=rate,
        tokens_per_second=rate,
        ttft=latency(ttft),
        itl=latency(itl),
        client=client,
        frontend=processes or None,
        cores=(0.99, 0.1, 0.1, 0.1),
        engine=engine,
        gpu=gpu,
    )


def judged(*steps: Step) -> Verdict:
    return judge(steps)


def flat(*processes: Process, **measured: float | Engine | Sequence[Process] | None) -> list[Step]:
    """The rate no longer grows, and the latencies do."""
    first = step(8, 1000, *processes, ttft=20, itl=8)
    return [first, replace(step(32, 1050, *processes, ttft=80, itl=30), **measured)]  # type: ignore[arg-type]


def test_a_thread_that_never_sleeps_is_the_frontends_limit() -> None:
    found = judge(flat(frontend(0.97)))
    assert found.kind is Kind.FRONTEND
    assert found.sentence == (
        "frontend-bound: at 32 streams the frontend's busiest thread (process 7, uvicorn, thread thread-0) wanted "
        "97% of a core, while the rate no longer grew (1,000 to 1,050 tokens/s from 8 streams on)."
    )
    assert "Meanwhile 3 of 4 cores were mostly idle." in found.evidence
    assert found.missing == []


def test_what_counts_is_what_a_thread_wants_whatever_it_gets() -> None:
    crowded = judge(flat(frontend(0.97, got=0.4)))
    assert crowded.kind is Kind.FRONTEND
    assert crowded.missing == ["a frontend with cores of its own and no lower CPU limit"]
    assert any("its busiest thread waited 57% of the time for a core" in one for one in crowded.evidence)
    assert judge(flat(frontend(0.3, got=0.3))).kind is Kind.ENGINE


def test_a_frontend_that_others_leave_no_core_shows_nothing() -> None:
    greedy = Process(9, "cc1plus", [Thread("all threads", 0.8, 0.8)], 0)
    starved = judge(flat(frontend(0.97, got=0.1), others=[greedy]))
    assert starved.kind is Kind.UNDECIDED
    assert starved.reason.endswith(
        "wanted 97% of a core and got 10%; cc1plus (9) got 80%, so it is the machine that is full"
    )
    # One of many that work as much is at its ceiling, and so is one with a CPU limit.
    equal = replace(greedy, threads=[Thread("all threads", 0.15, 0.15)])
    assert judge(flat(frontend(0.97, got=0.1), others=[equal])).kind is Kind.FRONTEND
    assert judge(flat(frontend(0.97, got=0.1))).kind is Kind.FRONTEND


def test_pythons_lock_is_a_limit_of_all_threads_together() -> None:
    found = judge(flat(frontend(0.4, 0.35, 0.2)))
    assert found.kind is Kind.FRONTEND
    assert (
        "the 3 threads of the frontend's busiest process (process 7, uvicorn) together used 95% of one core"
        in found.reason
    )
    # Threads of another language share nothing, and threads of Python that run native code want more than one core.
    assert judge(flat(frontend(0.4, 0.35, 0.2, python=False))).kind is Kind.ENGINE
    assert judge(flat(frontend(0.5, 0.5, 0.5))).kind is Kind.ENGINE
    # Threads that wait for a core at the same time do not wait for the lock.
    assert judge(flat(frontend(0.4, 0.35, 0.2, got=0.1))).kind is Kind.ENGINE


def test_the_busiest_of_several_processes_counts_and_the_idlest_is_said() -> None:
    found = judge(flat(frontend(0.1), frontend(0.95, pid=8), frontend(0.2, pid=9)))
    assert found.kind is Kind.FRONTEND
    assert "process 8" in found.reason
    assert any("of its 3 processes the idlest wanted 10% of a core" in one for one in found.evidence)


def test_an_engine_below_the_frontend_is_not_the_frontend() -> None:
    found = judge(flat(frontend(0.2), frontend(1.0, pid=8, engine=True)))
    assert found.kind is Kind.ENGINE
    assert "process 7" in found.reason


def test_an_easy_frontend_leaves_the_engine() -> None:
    found = judge(flat(frontend(0.2)))
    assert found.kind is Kind.ENGINE
    assert "what the streams wait for is behind it" in found.reason
    # Also where nothing is at its limit yet: what a stream waits for is the engine's pace.
    assert judged(step(1, 20, frontend(0.01)), step(8, 160, frontend(0.05))).kind is Kind.ENGINE


@pytest.mark.parametrize(
    ("regime", "engine", "told"),
    [
        (DECODE, Engine(itl=0.028), "93% of the time between tokens passed in the engine"),
        (PREPROCESS, Engine(ttft=0.070), "88% of the time to the first token passed in the engine"),
        (DECODE, Engine(running=24, waiting=7), "31 of 32 requests were in the engine"),
    ],
)
def test_the_engines_own_numbers_make_it_the_limit(regime: Regime, engine: Engine, told: str) -> None:
    for processes in ([frontend(0.7)], []):
        steps = [replace(one, regime=regime) for one in flat(*processes, engine=engine)]
        found = judge(steps)
        assert found.kind is Kind.ENGINE
        assert told in found.reason


@pytest.mark.parametrize(
    ("regime", "engine"),
    [(DECODE, Engine(itl=0.010)), (PREPROCESS, Engine(ttft=0.020)), (DECODE, Engine(running=5, waiting=0))],
)
def test_an_engine_that_waits_makes_it_the_frontend(regime: Regime, engine: Engine) -> None:
    """Where the frontend's CPU is not seen, or is not what limits it."""
    unseen = judge([replace(one, regime=regime) for one in flat(engine=engine)])
    assert unseen.kind is Kind.FRONTEND
    easy = judge([replace(one, regime=regime) for one in flat(frontend(0.2), engine=engine)])
    assert easy.kind is Kind.FRONTEND
    assert "a limit of requests in flight, a lock, the network or what stands between" in easy.reason


def test_tritons_own_process_is_not_in_the_engines_times() -> None:
    stub = Process(9, "triton_python_backend_stub", [Thread("all threads", 0.97, 0.97)], 0, is_engine=True)
    found = judge(flat(frontend(0.3), engine=Engine(itl=0.005), others=[stub]))
    assert found.kind is Kind.ENGINE
    assert "Triton's process of the model (9, triton_python_backend_stub) used 97% of a core" in found.reason
    assert judge(flat(frontend(0.95), engine=Engine(itl=0.005), others=[stub])).kind is Kind.UNDECIDED
    idle = replace(stub, threads=[Thread("all threads", 0.5, 0.5)])
    assert judge(flat(frontend(0.3), engine=Engine(itl=0.005), others=[idle])).kind is Kind.FRONTEND


def test_the_gpu_tells_where_the_engine_does_not() -> None:
    assert judge(flat(gpu=0.97)).kind is Kind.ENGINE
    assert judge(flat(gpu=0.3)).kind is Kind.FRONTEND
    assert judge(flat(frontend(0.7), gpu=0.75)).kind is Kind.UNDECIDED


def test_a_busy_load_tool_measures_itself() -> None:
    found = judge(flat(frontend(0.5), client=0.95))
    assert found.kind is Kind.CLIENT
    assert found.reason == "at 32 streams the load tool's busiest process used 95% of a core, so no more load was sent"
    both = judge(flat(frontend(0.95), client=0.95))
    assert both.kind is Kind.UNDECIDED
    assert both.missing == ["more --processes for the load, another machine for it, or fewer streams"]


def test_a_busy_frontend_before_a_full_engine_is_undecided() -> None:
    found = judge(flat(frontend(0.95), engine=Engine(itl=0.029)))
    assert found.kind is Kind.UNDECIDED
    assert "97% of the time between tokens passed in the engine" in found.reason
    assert found.missing


def test_neither_easy_nor_at_its_ceiling_is_undecided() -> None:
    found = judge(flat(frontend(0.7)))
    assert found.kind is Kind.UNDECIDED
    assert "the engine's metrics (--metrics)" in found.missing


def test_failed_requests_end_the_climb() -> None:
    steps = [*flat(frontend(0.95)), step(128, 300, frontend(0.1), failed=50)]
    found = judge(steps)
    assert found.kind is Kind.FRONTEND
    assert found.step is steps[1]
    assert any(one == "From 128 streams on requests failed: status 429: too many" for one in found.evidence)
    nothing = judged(step(1, 0, failed=50))
    assert (nothing.kind, nothing.reason) == (Kind.UNDECIDED, "requests failed (status 429: too many)")
    assert judge([]).kind is Kind.UNDECIDED


def growing(regime: Regime, *, ttft: Sequence[float], itl: Sequence[float], rate: Sequence[float]) -> list[Step]:
    measured = zip((1, 8, 64), ttft, itl, rate, strict=True)
    return [step(streams, r, regime=regime, ttft=t, itl=i) for streams, t, i, r in measured]


def test_latencies_alone() -> None:
    """Nothing else is seen: another machine, and no metrics."""
    serial = judge(growing(PREPROCESS, ttft=(10, 80, 640), itl=(0, 0, 0), rate=(100, 101, 102)))
    assert serial.kind is Kind.FRONTEND
    assert serial.reason.startswith("judged by latencies alone")
    assert serial.missing
    queueing = judge(growing(DECODE, ttft=(20, 300, 3000), itl=(10, 11, 12), rate=(100, 700, 800)))
    assert queueing.kind is Kind.ENGINE
    assert "requests queue for it" in queueing.reason
    shared = judge(growing(DECODE, ttft=(20, 160, 1280), itl=(10, 80, 640), rate=(100, 101, 102)))
    assert shared.kind is Kind.UNDECIDED
    scaling = judge(growing(DECODE, ttft=(20, 21, 22), itl=(10, 10, 10), rate=(100, 800, 6400)))
    assert (scaling.kind, scaling.reason) == (Kind.UNDECIDED, "up to 64 streams nothing is at its limit")
    assert judged(step(8, 100)).reason == "one step of load shows no growth"


FRONTEND = Verdict(Kind.FRONTEND, "so", ["a"], [], None)
ENGINE = Verdict(Kind.ENGINE, "thus", ["b"], ["m"], None)
UNDECIDED = Verdict(Kind.UNDECIDED, "who knows", ["c"], ["m"], None)
CLIENT = Verdict(Kind.CLIENT, "busy", [], [], None)


@pytest.mark.parametrize(
    ("one", "other", "kind", "reason"),
    [
        (FRONTEND, ENGINE, Kind.FRONTEND, "preprocess-heavy, so"),
        (ENGINE, FRONTEND, Kind.FRONTEND, "decode-heavy, so"),
        (ENGINE, ENGINE, Kind.ENGINE, "preprocess-heavy, thus; decode-heavy, thus"),
        (ENGINE, CLIENT, Kind.CLIENT, "decode-heavy, busy"),
        (ENGINE, UNDECIDED, Kind.ENGINE, "preprocess-heavy, thus"),
        (UNDECIDED, UNDECIDED, Kind.UNDECIDED, "preprocess-heavy, who knows; decode-heavy, who knows"),
    ],
)
def test_both_regimes_are_one_verdict(one: Verdict, other: Verdict, kind: Kind, reason: str) -> None:
    found = overall({PREPROCESS: one, DECODE: other})
    assert (found.kind, found.reason) == (kind, reason)
    assert found.missing in ([], ["m"])


def test_what_the_other_regime_is_stands_in_the_evidence() -> None:
    found = overall({PREPROCESS: FRONTEND, DECODE: ENGINE})
    assert list(found.evidence) == ["preprocess-heavy: a", "decode-heavy is engine-bound: thus."]
    assert found.sentence == "frontend-bound: preprocess-heavy, so."
