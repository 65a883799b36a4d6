"""What holds for every test: in CI a skip is a failure, unless the test is marked `gpu`.

A skipped test proves nothing, and in CI nobody reads why it was skipped.
"""

import os
from collections.abc import Generator

import pytest

IN_CI = os.environ.get("CI", "").lower() in ("1", "true")


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
