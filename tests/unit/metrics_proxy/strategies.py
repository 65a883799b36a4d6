"""Hypothesis strategies for what a page may hold."""

import math

from hypothesis import settings
from hypothesis import strategies as st

from metrics_proxy.families import Family, Labels, Sample, Series, Type
from metrics_proxy.multiprocess import number

without_deadline = settings(deadline=None, max_examples=60)
"""This machine may pause at any time."""

_TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=12)
_LABEL_NAMES = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,6}", fullmatch=True).filter(
    lambda name: name not in ("le", "quantile", "info", "state")
)
_VALUES = st.floats(allow_nan=True, allow_infinity=True).map(number)
_COUNTS = st.integers(0, 2**60).map(str)


@st.composite
def _labels(draw: st.DrawFn) -> Labels:
    names = draw(st.lists(_LABEL_NAMES, max_size=3, unique=True))
    return tuple((name, draw(_TEXT)) for name in names)


def _labelsets() -> st.SearchStrategy[list[Labels]]:
    return st.lists(_labels(), min_size=1, max_size=3, unique_by=lambda labels: Series("a", labels).key)


@st.composite
def _help(draw: st.DrawFn) -> str | None:
    text = draw(_TEXT).strip()
    return text or None


@st.composite
def _histogram(draw: st.DrawFn, name: str) -> Family:
    bounds = [*map(str, sorted(draw(st.sets(st.integers(0, 1000), max_size=4)))), "+Inf"]
    samples: list[Sample] = []
    for labels in draw(_labelsets()):
        counts = sorted(draw(st.lists(st.integers(0, 9999), min_size=len(bounds), max_size=len(bounds))))
        samples += [
            (Series(f"{name}_bucket", (*labels, ("le", bound))), str(count))
            for bound, count in zip(bounds, counts, strict=True)
        ]
        samples.append((Series(f"{name}_count", labels), str(counts[-1])))
        samples.append((Series(f"{name}_sum", labels), draw(_COUNTS)))
    return Family(name, "histogram", draw(_help()), None, samples)


@st.composite
def _summary(draw: st.DrawFn, name: str) -> Family:
    quantiles = sorted(draw(st.sets(st.sampled_from(("0", "0.5", "0.99", "1")))))
    samples: list[Sample] = []
    for labels in draw(_labelsets()):
        samples += [(Series(name, (*labels, ("quantile", q))), draw(_COUNTS)) for q in quantiles]
        samples.append((Series(f"{name}_count", labels), draw(_COUNTS)))
        samples.append((Series(f"{name}_sum", labels), draw(_COUNTS)))
    return Family(name, "summary", draw(_help()), None, samples)


@st.composite
def _simple(draw: st.DrawFn, name: str) -> Family:
    types: tuple[Type, ...] = ("counter", "gauge", "unknown")
    type_ = draw(st.sampled_from(types))
    if type_ == "counter" and draw(st.booleans()):
        name += "_total"
    values = _COUNTS if type_ == "counter" and draw(st.booleans()) else _VALUES
    return Family(
        name, type_, draw(_help()), None, [(Series(name, labels), draw(values)) for labels in draw(_labelsets())]
    )


@st.composite
def families(draw: st.DrawFn, prefix: str = "f") -> list[Family]:
    """Names that do not collide, some of them alike."""
    found = []
    for i in range(draw(st.integers(0, 4))):
        name = draw(st.sampled_from((f"{prefix}{i}", f"{prefix}:{i}:x", f"{prefix}{i}_seconds", f"{prefix}{i}_count")))
        make = draw(st.sampled_from((_histogram, _summary, _simple)))
        found.append(draw(make(name)))
    return found


def content(found: list[Family]) -> dict[str, object]:
    """What must survive: by series, value and type and help of its family."""
    return {
        series.key: (float(value) if not math.isnan(float(value)) else "NaN", family.name, family.type, family.help)
        for family in found
        for series, value in family.samples
    }


def values(found: list[Family]) -> dict[str, object]:
    return {key: kept[0] for key, kept in content(found).items()}  # type: ignore[index]
