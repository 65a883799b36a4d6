"""What a scraper's headers ask for."""

import pytest

from metrics_proxy.negotiation import takes_gzip, time_budget, wants_openmetrics

PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,application/openmetrics-text;version=0.0.1;"
    "q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
)


@pytest.mark.parametrize(
    ("accept", "openmetrics"),
    [
        ("", False),
        ("*/*", False),
        ("text/html,application/xhtml+xml,*/*;q=0.8", False),
        ("text/plain;version=0.0.4", False),
        ("application/openmetrics-text", True),
        ("application/openmetrics-text; version=1.0.0; charset=utf-8", True),
        ('Application/OpenMetrics-Text; Version="1.0.0"', True),
        ("application/openmetrics-text;version=2.0.0", False),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=x", False),
        ("application/openmetrics-text;q=0.3,text/plain;q=0.9", False),
        (PROMETHEUS_2, True),
        (PROMETHEUS_3, True),
        ("application/vnd.google.protobuf;q=0.7,text/plain;version=0.0.4;q=0.5", False),
    ],
)
def test_format(accept: str, openmetrics: bool) -> None:
    assert wants_openmetrics(accept) is openmetrics


@pytest.mark.parametrize(
    ("accept", "gzip"),
    [("", False), ("gzip", True), ("br, GZIP;q=0.5", True), ("gzip;q=0", False), ("identity", False), ("*", True)],
)
def test_compression(accept: str, gzip: bool) -> None:
    assert takes_gzip(accept) is gzip


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("", 5), ("x", 5), ("nan", 5), ("inf", 5), ("-1", 5), ("0", 5), ("100", 5), ("1", 0.8), ("0.5", 0.4)],
)
def test_time(header: str, seconds: float) -> None:
    assert time_budget(header, 5) == seconds
