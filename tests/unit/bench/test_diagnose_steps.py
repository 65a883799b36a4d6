"""A step from a load's outcomes, the plan that follows from steps, and the pages that show them."""

import json
import re
from html import unescape
from xml.etree import ElementTree

import pytest

from bench.diagnose import text
from bench.diagnose.chart import curves, short
from bench.diagnose.diagnosis import Diagnosis, diagnose
from bench.diagnose.measured import Engine, Latency, Process, Regime, Step, Thread
from bench.diagnose.plan import plan, sentences
from bench.diagnose.report import html
from bench.diagnose.run import Warm, made_step
from bench.diagnose.watch import Seen
from bench.load.check import Outcome
from bench.load.run import Run


def outcome(began: float, ttft: float, *gaps: float, error: str = "", tokens: int | None = None) -> Outcome:
    count = len(gaps) + 1
    ended = began + ttft + sum(gaps)
    return Outcome("decode", began, ended, 200, error, ttft, list(gaps), count, tokens or count)


def test_only_what_happens_inside_the_window_is_a_rate() -> None:
    outcomes = [
        outcome(0.0, 1.0, 1.0, 1.0, 1.0),  # Tokens at 1, 2, 3 and 4, its end too.
        outcome(3.0, 0.5, 0.5, tokens=4),  # Two events of two tokens each, at 3.5 and 4.
        outcome(9.0, 2.0, 1.0),  # Behind the end.
        outcome(1.0, 1.0, error="status 500"),
    ]
    found = made_step(Regime.DECODE, 4, Run(outcomes, cpu_share=0.3), (2.0, 10.0), None, True)
    assert (found.completed, found.failed, found.first_error) == (3, 1, "status 500")
    assert found.requests_per_second == 2 / 8
    assert found.tokens_per_second == (3 + 4) / 8
    # Latencies are of what began when all was settled.
    assert (found.ttft.p50, found.ttft.p99, found.itl.mean) == (0.5, 2.0, 0.75)
    assert (found.client, found.frontend, found.is_clean) == (0.3, None, False)


def test_what_was_seen_is_the_steps() -> None:
    seen = Seen([process(1, 0.4)], 0.2, [0.5], [], Engine(running=1.0), 0.9)
    found = made_step(Regime.DECODE, 1, Run([outcome(0.0, 1.0)]), (0.0, 2.0), seen, True)
    assert (found.client, found.gpu, found.cores, found.engine) == (0.2, 0.9, [0.5], Engine(running=1.0))
    assert [one.pid for one in found.serving] == [1]
    unseen = made_step(Regime.DECODE, 1, Run([outcome(0.0, 1.0)]), (0.0, 2.0), seen, False)
    assert unseen.frontend is None


def test_a_load_that_answers_nothing_is_a_step_too() -> None:
    found = made_step(Regime.DECODE, 1, Run([]), (0.0, 2.0), None, True)
    assert (found.completed, found.ttft, found.is_clean) == (0, Latency(0.0, 0.0, 0.0), False)


def process(pid: int, share: float, mebibytes: int = 100, engine: bool = False) -> Process:
    return Process(pid, "python -m <gateway>", [Thread("loop", share, share)], mebibytes * 2**20, True, engine)


def step(regime: Regime, streams: int, rate: float, *processes: Process, engine: Engine | None = None) -> Step:
    ttft, itl = Latency(0.02, 0.02, 0.05), Latency(0.01, 0.01, 0.02)
    rates = (rate, rate) if regime is Regime.PREPROCESS else (rate / 100, rate)
    return Step(
        regime, streams, 10.0, 100, 0, "", *rates, ttft, itl, 0.1, processes or None, (0.5, 0.1), (), engine, None
    )


PREPROCESS, DECODE = Regime.PREPROCESS, Regime.DECODE
SLOW = [step(DECODE, 1, 100, process(1, 0.1)), step(DECODE, 32, 900, process(1, 0.9, 110))]


def test_the_plan_is_for_streams_that_are_as_fast_as_one_alone() -> None:
    found = plan(SLOW, [process(1, 0.0, 100)], cores=16)
    assert found is not None
    # 0.9 of a core for 900 tokens/s: a millisecond each, of 3,200 tokens/s at 70 % of a core.
    assert found.per_token == pytest.approx(0.001)
    assert (found.needed, found.processes, found.running) == (5, 5, 1)
    assert (found.rss, found.memory) == (110 * 2**20, 550 * 2**20)
    assert found.per_stream == 10 * 2**20 / 32
    assert sentences(found)[0] == (
        "Worth running: 5 frontend processes for 32 decode-heavy streams, each as fast as one alone. 1 worked in the "
        "measurement."
    )


def test_the_plan_ends_with_the_machine() -> None:
    found = plan(SLOW, [], cores=2)
    assert found is not None
    assert (found.needed, found.processes) == (5, 2)
    assert "2 frontend processes, as many as this machine has cores; 5 would be for 32" in sentences(found)[0]


def test_an_engine_that_slows_down_under_load_needs_fewer() -> None:
    engine = Engine(itl=0.02)
    slower = [SLOW[0], step(DECODE, 32, 900, process(1, 0.9), engine=engine)]
    found = plan(slower, [], cores=16)
    assert found is not None
    # 32 streams at 20 ms a token are 1,600 tokens/s.
    assert found.needed == 3


def test_the_plan_is_for_the_regime_that_needs_more_and_without_the_engines_processes() -> None:
    long = [
        step(PREPROCESS, 1, 40, process(1, 0.1)),
        step(PREPROCESS, 32, 100, process(1, 0.2), process(2, 9.0, 999, True)),
    ]
    found = plan([*SLOW, *long], [], cores=64)
    assert found is not None
    assert found.per_request == pytest.approx(0.002)
    assert found.per_token == pytest.approx(0.001)
    # 1,280 requests/s of two milliseconds each are less than 3,200 tokens/s of one.
    assert (found.needed, found.for_what) == (5, "32 decode-heavy streams, each as fast as one alone")
    assert found.rss < 200 * 2**20
    assert plan([step(DECODE, 1, 100)], [], cores=2) is None


def diagnosis() -> Diagnosis:
    engine = Engine(running=3.0, waiting=1.0, kv_usage=0.2, itl=0.009, ttft=0.01)
    steps = [
        step(PREPROCESS, 1, 50, process(1, 0.3)),
        step(PREPROCESS, 8, 60, process(1, 0.99)),
        step(DECODE, 1, 100, process(1, 0.2), engine=engine),
        step(DECODE, 8, 700, process(1, 0.4), process(2, 0.9, engine=True), engine=engine),
    ]
    warm = [Warm(PREPROCESS, 4000, 0.2, 0.01), Warm(DECODE, 200, 0.02, 0.01)]
    return diagnose("http://127.0.0.1:9000", "<m>", "", warm, steps, [process(1, 0.0)], 2)


def test_the_page_is_whole_and_needs_nothing_else() -> None:
    page = html(diagnosis(), "today")
    assert not re.findall(r"<script|<link|<img|@import|url\(|src=", page)
    assert "frontend-bound: preprocess-heavy, at 8 streams the frontend's busiest thread" in unescape(page)
    assert "&lt;m&gt;" in page
    assert "<m>" not in page
    for picture in (pictures := re.findall(r"<svg.*?</svg>", page, re.DOTALL)):
        ElementTree.fromstring(picture)
    # Three of the first regime; the second one has the time between tokens and the engine's requests besides.
    assert len(pictures) == 8


def test_the_terminal_ends_with_the_verdict() -> None:
    lines = text.conclusion(diagnosis())
    assert lines[-1].startswith("frontend-bound: ")
    assert any("python -m <gateway>, engine: 90% of a core used" in line for line in lines)
    assert any(line.startswith("  Worth running: ") for line in lines)
    row = text.row(diagnosis().steps[1])
    assert len(row) == len(text.HEADER)
    assert row.split()[:3] == ["8", "100", "0"]
    assert text.row(step(DECODE, 1, 1.0)).split()[-2:] == ["unseen", "10%"]


def test_what_programs_read_is_json() -> None:
    found = json.loads(json.dumps(diagnosis().as_json()))
    assert (found["verdict"], found["regimes"]["decode-heavy"]["verdict"]) == ("frontend-bound", "engine-bound")
    assert found["plan"]["processes"] >= 1
    assert found["steps"][3]["engine"]["running"] == 3.0


@pytest.mark.parametrize(
    ("value", "shown"), [(0, "0"), (0.0123, "0.0123"), (1.5, "1.5"), (12.34, "12.3"), (1234.5, "1,234"), (0.1, "0.1")]
)
def test_numbers_have_three_digits(value: float, shown: str) -> None:
    assert short(value) == shown


def test_a_curve_of_nothing_and_one_of_a_single_step_are_drawn() -> None:
    for xs, values in (([4], [0.0]), ([4], [3.0]), ([1, 64], [0.001, 900.0]), ([1, 2], [0.0, 0.0])):
        picture = curves("ms", xs, {"p50": values})
        numbers = re.findall(r'cy="([\d.]+)"', picture)
        assert len(numbers) == len(xs)
        assert all(0 <= float(number) <= 190 for number in numbers)
