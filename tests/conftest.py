"""What holds for every test: in CI a skip is a failure, unless the test is marked `gpu`; no example of Hypothesis has a
time limit; a real tritonserver is asked for by the fixture `engine_platform`.

A skipped test proves nothing, and in CI nobody reads why it was skipped. How long an example takes says something
about the machine, not about the code.
"""

import logging
import os
import signal
from collections.abc import Generator, Iterator

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")

# What a shell starts in the background ignores it, and so would all that a test starts and interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

IN_CI = os.environ.get("CI", "").lower() in ("1", "true")


@pytest.fixture(autouse=True)
def _log_level() -> Iterator[None]:
    """A command that a test calls in this process sets what is logged; the next test sees its warnings again."""
    level = logging.getLogger().level
    yield
    logging.getLogger().setLevel(level)


@pytest.fixture(scope="session")
def engine_platform() -> None:
    """Skips, with the reason, where a real tritonserver cannot run."""
    # Here and not at the top: what this file says of skips is tried by itself, outside the checkout.
    from devtools import preconditions, pythons
    from devtools.errors import DevError

    try:
        preconditions.check_engine_platform()
        pythons.engine_python()
    except DevError as problem:
        pytest.skip(str(problem))


def _refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    # An expected failure is reported as skipped too.
    if not report.skipped or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    report.outcome = "failed"
    report.longrepr = f"In CI only a test marked gpu may be skipped. {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if IN_CI and item.get_closest_marker("gpu") is None:
        _refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if IN_CI:
        _refuse_skip(report)
    return report
