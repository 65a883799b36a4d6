"""Distributions, rates and goodput on values that are known."""

from bench.load.check import Outcome
from bench.load.report import BUSY_SHARE, LONG_LAG, Objectives, distribution, report
from bench.load.run import Run


def test_percentiles_are_values_that_were_seen() -> None:
    found = distribution(float(value) for value in range(100, 0, -1))
    assert found is not None
    assert (found.count, found.mean, found.p50, found.p90, found.p99, found.max) == (100, 50.5, 50, 90, 99, 100)
    few = distribution([3.0, 1.0])
    assert few is not None
    assert (few.p50, few.p90, few.p99, few.max) == (1, 3, 3, 3)
    assert distribution([]) is None


def answer(kind: str, ttft: float, gaps: list[float], error: str = "") -> Outcome:
    return Outcome(kind, 0.0, 10.0, 200, error, ttft, gaps, len(gaps) + 1, len(gaps) + 1)


OUTCOMES = [
    answer("decode", 0.1, [0.01, 0.03]),
    answer("decode", 0.3, [0.05, 0.05]),
    answer("preprocess", 0.2, []),
    answer("preprocess", 9.0, [], "the stream ends without [DONE]"),
]


def test_parts_and_rates() -> None:
    made = report(Run(OUTCOMES, seconds=2.0), Objectives())
    assert (made.all.requests, made.all.wrong, made.all.tokens) == (4, 1, 7)
    assert made.all.errors == {"the stream ends without [DONE]": 1}
    assert (made.all.requests_per_second, made.all.tokens_per_second) == (1.5, 3.5)
    # A wrong answer has no times, and is never good.
    assert made.all.ttft is not None
    assert (made.all.ttft.count, made.all.ttft.max) == (3, 0.3)
    assert made.all.goodput == 1.5
    assert list(made.kinds) == ["decode", "preprocess"]
    assert made.kinds["preprocess"].itl is None
    assert made.kinds["decode"].itl is not None
    assert made.kinds["decode"].itl.count == 4
    assert made.as_json()["kinds"]["decode"]["itl"]["max"] == 0.05


def test_goodput_by_objectives() -> None:
    def goodput(ttft: float | None, itl: float | None) -> float:
        return report(Run(OUTCOMES, seconds=1.0), Objectives(ttft, itl)).all.goodput

    assert goodput(0.2, None) == 2
    # The mean of 0.01 and 0.03; an answer of one token has no time between tokens.
    assert goodput(None, 0.021) == 2
    assert goodput(0.1, 0.021) == 1
    assert goodput(None, 0.019) == 1


def test_a_load_that_is_itself_the_bottleneck_says_so() -> None:
    assert report(Run(OUTCOMES, 1.0, cpu_share=BUSY_SHARE - 0.01), Objectives()).notes == []
    (busy,) = report(Run(OUTCOMES, 1.0, cpu_share=0.97), Objectives()).notes
    assert busy.startswith("The load itself is the bottleneck: its busiest process used 97 % of a core")
    (held,) = report(Run(OUTCOMES, 1.0, lag=LONG_LAG), Objectives()).notes
    assert held.startswith("The load itself was held up for 0.25 s")


def test_nothing_was_asked() -> None:
    made = report(Run(), Objectives())
    assert (made.all.requests, made.all.ttft, made.kinds) == (0, None, {})
