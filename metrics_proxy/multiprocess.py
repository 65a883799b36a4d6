"""The values of many processes' files to families. No I/O: what is read, and who lives, is `directory.py`'s.

Counters and histograms of all processes, dead ones too, are summed; gauges are those of live processes. Sums are exact
until they are shown: in floating point another order of adding, as when a process dies, could give a smaller total,
which Prometheus would take for a restart.

Every process has a *place*: 0, or, where series are labelled by process, the lowest number that was free when it
started. A process continues the counters of its place.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import accumulate
from operator import itemgetter
from typing import Any, NamedTuple

from metrics_proxy.families import Family, Labels, Sample, Series, Type, add_labels
from metrics_proxy.mmap_file import Key, Layout

PLACE_LABEL = "process"

_NOT_ADDED = ("_perc", "_info", "_state")
"""Gauges that are a share, or a constant 1: of several processes the largest is shown, and of all others the sum."""

# prometheus_client's modes. It shows the first with the process's id.
_BY_PID = ("all", "liveall")
_MOST_RECENT = ("mostrecent", "livemostrecent")

_MAX_LAYOUTS = 256


class Plain:
    """One series of a counter, a summary or a gauge, before the source's own labels."""

    __slots__ = ("_series", "key", "type")

    def __init__(self, type_: Type, key: Key) -> None:
        self.type = type_
        self.key = key
        self._series: dict[Labels, Series] = {}

    @property
    def family(self) -> str:
        """Named as in the text format."""
        return self.key.metric if self.type == "summary" else self.key.sample

    def series(self, added: Labels) -> Series:
        found = self._series.get(added)
        if found is None:
            found = self._series[added] = Series(self.key.sample, add_labels(self.key.labels, added))
        return found


class Bounds:
    """The upper bounds of a histogram's buckets, ascending; made by `bounds_of`, one object for each layout."""

    __slots__ = ("numbers", "texts")

    def __init__(self, texts: tuple[str, ...]) -> None:
        self.texts = texts
        self.numbers = tuple(map(float, texts))


# Two objects of one layout are only slower, so that this may forget.
bounds_of = lru_cache(maxsize=1024)(Bounds)


class Child:
    """One labelset of a histogram, without `le`."""

    __slots__ = ("_series", "help", "labels", "metric")

    def __init__(self, metric: str, labels: Labels, help_text: str) -> None:
        self.metric = metric
        self.labels = labels
        self.help = help_text
        self._series: dict[tuple[Labels, Bounds], list[Series]] = {}

    def series(self, added: Labels, bounds: Bounds) -> list[Series]:
        """Those of the buckets, then the count's and the sum's."""
        found = self._series.get((added, bounds))
        if found is None:
            labels = add_labels(self.labels, added)
            found = [Series(f"{self.metric}_bucket", (*labels, ("le", bound))) for bound in bounds.texts]
            found += [Series(f"{self.metric}_count", labels), Series(f"{self.metric}_sum", labels)]
            self._series[added, bounds] = found
        return found


Row = tuple[float, ...]
"""A histogram child's counts, one for each bound and not cumulative, then its sum."""


@dataclass
class Totals:
    """Summands of counters and histograms, by place. The sum of a list is one value; that of rows, one child's."""

    plain: dict[tuple[int, Plain], list[float]] = field(default_factory=dict)
    rows: dict[tuple[int, Child, Bounds], list[Row]] = field(default_factory=dict)

    def add(self, place: int, view: "View", values: Sequence[float]) -> None:
        """All values of one file."""
        for plain, value in zip(view.plain, values, strict=False):
            self.plain.setdefault((place, plain), []).append(value)
        for child, bounds, pick in view.children:
            self.rows.setdefault((place, child, bounds), []).append(pick(values))

    def update(self, other: "Totals") -> None:
        for key, values in other.plain.items():
            self.plain.setdefault(key, []).extend(values)
        for at, rows in other.rows.items():
            self.rows.setdefault(at, []).extend(rows)

    def condense(self) -> None:
        """The same sums with as few summands as are exact."""
        for key, values in self.plain.items():
            self.plain[key] = _parts(values)
        for at, rows in self.rows.items():
            columns = [_parts(column) for column in zip(*rows, strict=True)]
            self.rows[at] = [
                tuple(column[i] if i < len(column) else 0.0 for column in columns)
                for i in range(max(map(len, columns)))
            ]


@dataclass(frozen=True)
class View:
    """What the values of a layout belong to, in its order; for histograms, how a child's row is picked from them."""

    plain: list[Plain]
    children: list[tuple[Child, Bounds, "itemgetter[Any]"]]


class Registry:
    """The series of one directory, each object once, and what was found out about layouts of files."""

    def __init__(self) -> None:
        self._plain: dict[tuple[Type, str, Labels], Plain] = {}
        self._children: dict[tuple[str, Labels], Child] = {}
        self._layouts: dict[int, list[Layout]] = {}
        self._views: dict[tuple[int, Type], tuple[Layout, View]] = {}

    def read(self, data: bytes, used: int) -> tuple[Layout, Row, Row]:
        """Layout, values and timestamps of a file. Raises `BadFile`."""
        for layout in self._layouts.get(used, ()):
            if found := layout.values(data):
                return layout, *found
        layout = Layout(data, used)
        if len(self._views) >= _MAX_LAYOUTS:
            self._layouts.clear()
            self._views.clear()
        self._layouts.setdefault(used, []).append(layout)
        values = layout.values(data)
        assert values is not None
        return layout, *values

    def view(self, layout: Layout, type_: Type) -> View:
        found = self._views.get((id(layout), type_))
        if found is None:
            if type_ == "histogram":
                view = View([], self._children_of(layout))
            else:
                view = View([self.plain(type_, key) for key in layout.keys], [])
            # With the layout, so that its id stays its own.
            found = self._views[id(layout), type_] = (layout, view)
        return found[1]

    def plain(self, type_: Type, key: Key) -> Plain:
        at = (type_, key.sample, key.labels)
        return self._plain.get(at) or self._plain.setdefault(at, Plain(type_, key))

    def child(self, metric: str, labels: Labels, help_text: str) -> Child:
        at = (metric, labels)
        return self._children.get(at) or self._children.setdefault(at, Child(metric, labels, help_text))

    def _children_of(self, layout: Layout) -> list[tuple[Child, Bounds, "itemgetter[Any]"]]:
        buckets: dict[Child, list[tuple[float, str, int]]] = {}
        sums: dict[Child, int] = {}
        for i, key in enumerate(layout.keys):
            labels = tuple(label for label in key.labels if label[0] != "le")
            child = self.child(key.metric, labels, key.help)
            if key.sample == f"{key.metric}_sum":
                sums[child] = i
            elif key.sample == f"{key.metric}_bucket" and (bound := _bound(dict(key.labels).get("le", ""))) is not None:
                buckets.setdefault(child, []).append((bound, dict(key.labels)["le"], i))
        found = []
        for child, entries in buckets.items():
            entries.sort()
            # The bucket for +Inf is written last; without it the child is only just being made.
            if entries[-1][0] == math.inf and child in sums:
                bounds = bounds_of(tuple(text for _, text, _ in entries))
                found.append((child, bounds, itemgetter(*(i for _, _, i in entries), sums[child])))
        return found


class GaugeValue(NamedTuple):
    """A process's gauge, of a mode such as `mostrecent`. `is_certain`: it is known that the process lives."""

    plain: Plain
    mode: str
    pid: str
    place: int
    value: float
    timestamp: float
    is_certain: bool


@dataclass
class Combined:
    """`conflicts` counts, by family, the labelsets whose processes have different buckets (`buckets`) and the series of
    processes that have the family under another type and were left out (`type`). `shared` is how many series are the
    sum, or the largest, of several live processes'."""

    families: list[Family]
    conflicts: Counter[tuple[str, str]]
    shared: int


def combine(
    totals: Sequence[Totals], gauges: Iterable[GaugeValue], labels: Labels, *, with_places: bool
) -> Combined:
    """`totals` are those of dead processes and, last, those of live ones. `labels` are added to every series."""
    *dead, live = totals
    together = live
    if any(one.plain or one.rows for one in dead):
        together = Totals()
        for one in (*dead, live):
            together.update(one)
    shared = sum(len(values) > 1 for values in live.plain.values()) + sum(len(rows) > 1 for rows in live.rows.values())
    texts = _Texts()
    families: dict[str, Family] = {}
    conflicts: Counter[tuple[str, str]] = Counter()

    @cache
    def added(place: int) -> Labels:
        return ((PLACE_LABEL, str(place)), *labels) if with_places else labels

    def add(name: str, type_: Type, help_text: str, samples: Iterable[Sample]) -> None:
        family = families.get(name)
        if family is None:
            family = families[name] = Family(name, type_, help_text or None)
        if family.type == type_:
            family.samples.extend(samples)
        else:
            conflicts[name, "type"] += 1

    for (place, plain), values in together.plain.items():
        add(plain.family, plain.type, plain.key.help, [(plain.series(added(place)), texts[_sum(values)])])
    children: dict[tuple[int, Child], list[_Layout]] = {}
    for (place, child, bounds), rows in together.rows.items():
        children.setdefault((place, child), []).append((bounds, rows))
    for (place, child), layouts in children.items():
        if len(layouts) == 1:
            ((bounds, rows),) = layouts
            values = _shown(_added(rows))
        else:
            conflicts[child.metric, "buckets"] += 1
            bounds, values = _at_common_bounds(layouts)
        series = child.series(added(place), bounds)
        add(child.metric, "histogram", child.help, zip(series, map(texts.__getitem__, values), strict=True))
    for group in _groups(gauges, with_places=with_places):
        first = group[0]
        one_series = first.plain.series(added(first.place))
        if first.mode in _BY_PID:
            one_series = one_series.with_labels((("pid", first.pid),))
        add(first.plain.family, "gauge", first.plain.key.help, [(one_series, texts[_gauge(group)])])
        shared += len(group) > 1
    return Combined([families[name] for name in sorted(families)], conflicts, shared)


_Layout = tuple[Bounds, list[Row]]
"""One of the layouts of buckets that the processes of a child have, and the rows of those with it."""


def _shown(row: Sequence[float]) -> list[float]:
    """The values of a child's series: counts, now cumulative, then count and sum."""
    values = list(accumulate(row[:-1]))
    values += (values[-1], row[-1])
    return values


def _at_common_bounds(layouts: list[_Layout]) -> tuple[Bounds, list[float]]:
    """Only the bounds that all layouts have are known for all observations."""
    values = [_shown(_added(rows)) for _, rows in layouts]
    at = [dict(zip(bounds.numbers, one, strict=False)) for (bounds, _), one in zip(layouts, values, strict=True)]
    first = layouts[0][0]
    common = [i for i, number in enumerate(first.numbers) if all(number in counts for counts in at)]
    summed = [_sum([counts[first.numbers[i]] for counts in at]) for i in common]
    total = _sum([row[-1] for _, rows in layouts for row in rows])
    return bounds_of(tuple(first.texts[i] for i in common)), [*summed, summed[-1], total]


def _groups(gauges: Iterable[GaugeValue], *, with_places: bool) -> Iterator[list[GaugeValue]]:
    """Those that are one series on the page."""
    groups: dict[tuple[Plain, int, str], list[GaugeValue]] = {}
    for gauge in gauges:
        pid = gauge.pid if gauge.mode in _BY_PID else ""
        groups.setdefault((gauge.plain, gauge.place if with_places else 0, pid), []).append(gauge)
    for group in groups.values():
        if group[0].mode in _MOST_RECENT:
            # Of processes that may be dead, at most one is the writer now: the one that wrote last.
            doubtful = sorted((gauge for gauge in group if not gauge.is_certain), key=lambda gauge: gauge.timestamp)
            yield [gauge for gauge in group if gauge.is_certain] + doubtful[-1:]
        else:
            yield group


def _gauge(group: list[GaugeValue]) -> float:
    plain, mode = group[0].plain, group[0].mode
    values = [gauge.value for gauge in group]
    if mode in ("min", "livemin"):
        return min(values)
    if mode in ("max", "livemax") or (mode in _MOST_RECENT and plain.family.endswith(_NOT_ADDED)):
        return max(values)
    return _sum(values)


def _added(rows: list[Row]) -> Sequence[float]:
    return rows[0] if len(rows) == 1 else [_sum(column) for column in zip(*rows, strict=True)]


class _Texts(dict[float, str]):
    """Numbers as text: most counts of a histogram are equal to their neighbours."""

    def __missing__(self, value: float) -> str:
        text = self[value] = number(value)
        return text


def number(value: float) -> str:
    """As both formats take it."""
    text = repr(value)
    if text[-1] in "fn":
        return {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}[text]
    return text


def _sum(values: Sequence[float]) -> float:
    """The exact sum, rounded once."""
    if len(values) == 1:
        return values[0]
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):
        # Infinities.
        return sum(values)


def _parts(values: Sequence[float]) -> list[float]:
    """A few numbers whose exact sum is that of `values`."""
    parts = [_sum(values)]
    while math.isfinite(parts[-1]) and (rest := math.fsum([*values, *(-part for part in parts)])):
        parts.append(rest)
    return parts


def _bound(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
