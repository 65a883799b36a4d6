"""What a scraper asks for in its headers: format, compression, time. No I/O."""

import math

_TEXT_VERSIONS = (None, "0.0.4")
_OPENMETRICS_VERSIONS = (None, "1.0.0", "0.0.1")


def wants_openmetrics(accept: str) -> bool:
    """Whether OpenMetrics 1.0 is preferred to the text format. Whoever asks for neither gets text."""
    text = openmetrics = 0.0
    for entry in accept.split(","):
        media_type, *rest = (part.strip().lower() for part in entry.split(";"))
        parameters = dict(part.partition("=")[::2] for part in rest)
        version = parameters.get("version", "").strip('"') or None
        quality = _quality(parameters.get("q", "1"))
        if media_type == "application/openmetrics-text" and version in _OPENMETRICS_VERSIONS:
            openmetrics = max(openmetrics, quality)
        elif media_type in ("text/plain", "text/*", "*/*") and version in _TEXT_VERSIONS:
            text = max(text, quality)
    return openmetrics > 0 and openmetrics >= text


def takes_gzip(accept_encoding: str) -> bool:
    for entry in accept_encoding.split(","):
        coding, *rest = (part.strip().lower() for part in entry.split(";"))
        if coding in ("gzip", "x-gzip", "*"):
            return all(_quality(part.removeprefix("q=")) > 0 for part in rest if part.startswith("q="))
    return False


def time_budget(scrape_timeout: str, longest: float) -> float:
    """Seconds for the sources, so that the answer comes within Prometheus' `X-Prometheus-Scrape-Timeout-Seconds`."""
    try:
        seconds = float(scrape_timeout)
    except ValueError:
        return longest
    if not math.isfinite(seconds) or seconds <= 0:
        return longest
    # The rest is for merging, rendering and the way back.
    return min(longest, seconds * 0.8)


def _quality(text: str) -> float:
    try:
        quality = float(text)
    except ValueError:
        return 0.0
    return quality if 0 <= quality <= 1 else 0.0
