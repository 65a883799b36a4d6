"""Requests and tokens per minute, at their edges."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.desk.rates import UNLIMITED, Exceeded, Limits, Rates


def test_a_minute_s_worth_at_once_and_then_one_at_a_time() -> None:
    rates, limits = Rates(), Limits(requests_per_minute=3)
    assert [rates.admit("a", limits, 10, now=100) for _ in range(3)] == [None] * 3
    assert rates.admit("a", limits, 10, now=100) == Exceeded("requests_per_minute", 3, 20)
    assert rates.admit("a", limits, 10, now=119.9) == Exceeded("requests_per_minute", 3, 1)
    assert rates.admit("a", limits, 10, now=120) is None
    assert rates.admit("a", limits, 10, now=120) is not None
    assert rates.admit("b", limits, 10, now=120) is None, "another key has a bucket of its own"


def test_no_limit_is_no_limit() -> None:
    rates = Rates()
    assert all(rates.admit("a", UNLIMITED, 10**9, now=0) is None for _ in range(1000))


def test_tokens_are_settled_when_the_request_leaves() -> None:
    rates, limits = Rates(), Limits(tokens_per_minute=600)
    assert rates.admit("a", limits, 500, now=0) is None
    assert rates.admit("a", limits, 200, now=0) == Exceeded("tokens_per_minute", 600, 10)
    rates.settle("a", estimated=500, used=100)
    assert rates.admit("a", limits, 500, now=0) is None
    rates.settle("a", estimated=500, used=800)
    assert rates.admit("a", limits, 1, now=0) == Exceeded("tokens_per_minute", 600, 31), "a debt of 300 and one more"


def test_an_estimate_larger_than_the_bucket_gets_in_when_it_is_full() -> None:
    rates, limits = Rates(), Limits(tokens_per_minute=60)
    assert rates.admit("a", limits, 240, now=0) is None
    assert rates.admit("a", limits, 240, now=239) == Exceeded("tokens_per_minute", 60, 1)
    assert rates.admit("a", limits, 240, now=240) is None


def test_what_is_refused_costs_nothing_and_is_told_of_the_longest_wait() -> None:
    rates, limits = Rates(), Limits(requests_per_minute=2, tokens_per_minute=60)
    assert rates.admit("a", limits, 60, now=0) is None
    for _ in range(5):
        assert rates.admit("a", limits, 30, now=0) == Exceeded("tokens_per_minute", 60, 30)
    assert rates.admit("a", limits, 30, now=30) is None, "the refused ones took no request"


def test_a_refund_gives_both_back() -> None:
    rates, limits = Rates(), Limits(requests_per_minute=1, tokens_per_minute=10)
    assert rates.admit("a", limits, 10, now=0) is None
    rates.refund("a", 10)
    assert rates.admit("a", limits, 10, now=0) is None


def test_what_comes_back_never_fills_a_bucket_over_its_brim() -> None:
    rates, limits = Rates(), Limits(tokens_per_minute=100)
    assert rates.admit("a", limits, 100, now=0) is None
    rates.settle("a", estimated=100, used=0)
    assert rates.admit("a", limits, 100, now=600) is None
    assert rates.admit("a", limits, 1, now=600) is not None


def test_a_new_limit_counts_from_now_on() -> None:
    rates = Rates()
    assert rates.admit("a", Limits(requests_per_minute=1), 0, now=0) is None
    assert rates.admit("a", Limits(requests_per_minute=60), 0, now=30) == Exceeded("requests_per_minute", 60, 1)
    assert rates.admit("a", Limits(requests_per_minute=60), 0, now=31) is None
    assert rates.admit("a", UNLIMITED, 0, now=31) is None


def test_a_clock_that_stands_still_gives_nothing() -> None:
    rates, limits = Rates(), Limits(requests_per_minute=1)
    assert rates.admit("a", limits, 0, now=60) is None
    assert rates.admit("a", limits, 0, now=59) is not None
    assert rates.admit("a", limits, 0, now=60) is not None


@given(
    st.integers(1, 50),
    st.integers(1, 2000),
    st.lists(st.tuples(st.floats(0, 20), st.integers(0, 500), st.integers(0, 500)), max_size=80),
)
def test_no_span_of_time_sees_more_than_a_bucket_and_what_flowed_in(
    requests: int, tokens: int, arrivals: list[tuple[float, int, int]]
) -> None:
    rates, limits = Rates(), Limits(requests, tokens)
    now = 0.0
    admitted: list[tuple[float, int]] = []
    for gap, estimate, used in arrivals:
        now += gap
        if rates.admit("a", limits, estimate, now) is None:
            rates.settle("a", estimate, used)
            admitted.append((now, used))
    for i, (begun, _) in enumerate(admitted):
        for j in range(i, len(admitted)):
            span = admitted[j][0] - begun
            assert j - i + 1 <= requests * (1 + span / 60) + 1e-3
            # The last one may use more than was left: it is let in on an estimate.
            assert sum(used for _, used in admitted[i:j]) <= tokens * (1 + span / 60) + 500 + 1e-3


@given(st.integers(1, 100), st.integers(1, 1000), st.lists(st.integers(1, 400), min_size=1, max_size=40))
def test_after_the_time_that_was_told_the_same_request_gets_in(requests: int, tokens: int, asked: list[int]) -> None:
    rates, limits = Rates(), Limits(requests, tokens)
    now = 0.0
    for estimate in asked:
        exceeded = rates.admit("a", limits, estimate, now)
        if exceeded is not None:
            assert exceeded.retry_after >= 1
            now += exceeded.retry_after
            assert rates.admit("a", limits, estimate, now) is None


@pytest.mark.parametrize("limit", [1, 7, 60, 1000, 10**6])
def test_a_steady_flow_at_the_limit_is_never_refused(limit: int) -> None:
    rates, limits = Rates(), Limits(requests_per_minute=limit)
    for i in range(2000):
        assert rates.admit("a", limits, 0, now=i * 60 / limit) is None
