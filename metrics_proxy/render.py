"""Families to a page: the text format 0.0.4 and OpenMetrics 1.0. No I/O.

Names and labels are never changed. What OpenMetrics has rules for that a family does not keep, such as a counter
without `_total`, is typed `unknown` there, sample name by sample name.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby, pairwise

from metrics_proxy.families import Family, Group, Sample, Series, ordered, split

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

_TEXT_TYPES = {"unknown": "untyped", "info": "gauge", "stateset": "gauge"}
# What OpenMetrics takes from a family's name for its samples, used or not.
_RESERVED = {
    "counter": ("", "_total", "_created"),
    "info": ("", "_info"),
    "histogram": ("", "_bucket", "_count", "_sum", "_created"),
    "summary": ("", "_count", "_sum", "_created"),
    "gaugehistogram": ("", "_bucket", "_gcount", "_gsum"),
}
_ENDINGS = {"counter": "_total", "info": "_info"}


def text(families: Iterable[Family]) -> str:
    """A page in the text format."""
    lines: list[str] = []
    for family in families:
        # The format has no such type.
        for part in split(family) if family.type == "gaugehistogram" else (family,):
            if part.help:
                lines.append(f"# HELP {part.name} {_escaped(part.help)}\n")
            lines.append(f"# TYPE {part.name} {_TEXT_TYPES.get(part.type, part.type)}\n")
            lines += [f"{series.prefix}{value}\n" for series, value in part.samples]
    return "".join(lines)


def openmetrics(families: Iterable[Family]) -> str:
    """A page in OpenMetrics, which ends with `# EOF`."""
    lines: list[str] = []
    for family in _with_openmetrics_types(list(families)):
        name = family.name.removesuffix(_ENDINGS.get(family.type, ""))
        lines.append(f"# TYPE {name} {family.type}\n")
        if family.unit and name.endswith(f"_{family.unit}"):
            lines.append(f"# UNIT {name} {family.unit}\n")
        if family.help:
            escaped = _escaped(family.help).replace('"', r"\"")
            lines.append(f"# HELP {name} {escaped}\n")
        lines += [f"{series.prefix}{value}\n" for series, value in family.samples]
    lines.append("# EOF\n")
    return "".join(lines)


def _escaped(help_text: str) -> str:
    return help_text.replace("\\", r"\\").replace("\n", r"\n")


def _with_openmetrics_types(families: list[Family]) -> Iterator[Family]:
    """What OpenMetrics calls these families; several for one that does not keep its rules."""
    kept = [family for family in families if _keeps_rules(family)]
    created = _created(families, {_base(family) + "_created" for family in kept if family.type in _WITH_CREATED})
    used = Counter(name for family in families if family.name not in created for name in _used_names(family))
    kept_names = {family.name for family in kept}
    claimed: set[str] = set()
    for family in families:
        if family.name in created:
            continue
        base = _base(family)
        own = set(_used_names(family))
        reserved = {base + suffix for suffix in _RESERVED.get(family.type, ("",))} | own
        if (
            family.name in kept_names
            and reserved.isdisjoint(claimed)
            and all(used[name] == (name in own) for name in reserved)
        ):
            claimed |= reserved
            if with_it := created.get(f"{base}_created"):
                # One family, each labelset with its own creation.
                together = _by_labelset([*family.samples, *with_it.samples], family)
                yield Family(family.name, family.type, family.help, family.unit, together)
            else:
                yield family
        else:
            for part in split(family):
                claimed.add(part.name)
                yield part
            if with_it := created.get(f"{base}_created"):
                yield with_it


_WITH_CREATED = ("counter", "histogram", "summary")


def _base(family: Family) -> str:
    return family.name.removesuffix(_ENDINGS.get(family.type, ""))


def _used_names(family: Family) -> Iterable[str]:
    return dict.fromkeys(series.name for series, _ in family.samples)


def _created(families: list[Family], names: set[str]) -> dict[str, Family]:
    """The gauges that OpenMetrics has as part of another family."""
    return {family.name: family for family in families if family.name in names and family.type in ("gauge", "unknown")}


def _by_labelset(samples: list[Sample], family: Family) -> list[Sample]:
    if family.type != "counter":
        return ordered(family.type, samples)
    groups: dict[Group, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(sample[0].placed("le")[0], []).append(sample)
    return [sample for group in groups.values() for sample in group]


def _keeps_rules(family: Family) -> bool:
    """Whether OpenMetrics allows these samples under this type."""
    match family.type:
        case "gauge" | "unknown":
            return True
        case "counter":
            return family.name.endswith("_total") and all(_counts(value) for _, value in family.samples)
        case "info":
            return family.name.endswith("_info") and all(float(value) == 1 for _, value in family.samples)
        case "stateset":
            return all(
                float(value) in (0, 1) and family.name in dict(series.labels) for series, value in family.samples
            )
        case "summary":
            return all(_is_part_of_summary(family.name, series, value) for series, value in family.samples)
    groups = groupby(family.samples, lambda sample: sample[0].placed("le")[0])
    return all(_is_histogram(family, group) for _, group in groups)


def _counts(value: str) -> bool:
    return float(value) >= 0


def _is_part_of_summary(name: str, series: Series, value: str) -> bool:
    if series.name != name:
        return _counts(value)
    _, quantile = series.placed("quantile")
    number = float(value)
    return quantile is not None and 0 <= quantile <= 1 and (number >= 0 or math.isnan(number))


def _is_histogram(family: Family, group: Iterable[Sample]) -> bool:
    """Whether buckets ascend to one for +Inf, which equals the count, and nothing is negative where there is a sum."""
    bucket = f"{family.name}_bucket"
    bounds: list[float] = []
    counts: list[float] = []
    count = total = None
    for series, value in group:
        if series.name == bucket:
            _, bound = series.placed("le")
            if bound is None:
                return False
            bounds.append(bound)
            counts.append(float(value))
        elif series.name.endswith("count"):
            count = float(value)
        elif series.name.endswith("sum"):
            total = float(value)
        else:
            return False
    if not bounds or bounds[-1] != math.inf or not all(a < b for a, b in pairwise(bounds)):
        return False
    if not counts[0] >= 0 or not all(a <= b for a, b in pairwise(counts)):
        return False
    if (count is None) != (total is None) or (count is not None and count != counts[-1]):
        return False
    return family.type == "gaugehistogram" or total is None or (total >= 0 and bounds[0] >= 0)
