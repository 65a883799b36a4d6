"""What a page of metrics is made of: series and families. No I/O, no format.

A family is named as the text format names it: a counter by its samples' name, with `_total` where it has one, and an
info metric with `_info`. What OpenMetrics calls the `_created` samples of a family is a gauge family of its own.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal

Type = Literal["counter", "gauge", "histogram", "summary", "unknown", "info", "stateset", "gaugehistogram"]
Labels = tuple[tuple[str, str], ...]

SUFFIXES: dict[str, tuple[str, ...]] = {
    "histogram": ("_bucket", "_count", "_sum"),
    "summary": ("", "_count", "_sum"),
    "gaugehistogram": ("_bucket", "_gcount", "_gsum"),
}
"""How the samples of a family are named after it, for the types with several."""

_POSITION = {"histogram": "le", "gaugehistogram": "le", "summary": "quantile"}
"""The label that tells the samples of one labelset apart."""


class Series:
    """A sample's name and labels. `key` is the same for two spellings that are one series to Prometheus: the order of
    labels does not matter, and an empty label is none. `prefix` is a line of either format up to the value."""

    __slots__ = ("_placed", "key", "labels", "name", "prefix")

    def __init__(self, name: str, labels: Labels = ()) -> None:
        self.name = name
        self.labels = labels
        pairs = [f'{label}="{escaped(value)}"' for label, value in labels]
        self.prefix = f"{name}{{{','.join(pairs)}}} " if pairs else f"{name} "
        named = sorted(pair for pair in pairs if not pair.endswith('=""'))
        self.key = f"{name}{{{','.join(named)}}}"
        self._placed: tuple[str, Group, float | None] | None = None

    def __repr__(self) -> str:
        return self.prefix.rstrip()

    def placed(self, position: str) -> tuple["Group", float | None]:
        """Which labelset it belongs to, and where it stands there: `position` is the label that says so, `le` or
        `quantile`. None without one that is a number."""
        found = self._placed
        if found is None or found[0] != position:
            group = frozenset(label for label in self.labels if label[1] and label[0] != position)
            text = next((value for name, value in self.labels if name == position), "")
            found = self._placed = (position, group, _number(text))
        return found[1:]

    def renamed(self, name: str) -> "Series":
        return Series(name, self.labels)

    def with_labels(self, added: Labels) -> "Series":
        return Series(self.name, add_labels(self.labels, added))


Group = frozenset[tuple[str, str]]
"""The labels of a labelset, without empty ones."""

Sample = tuple[Series, str]
"""A series and its value, as text that both formats take."""


@dataclass(slots=True)
class Family:
    name: str
    type: Type = "unknown"
    help: str | None = None
    unit: str | None = None
    samples: list[Sample] = field(default_factory=list)

    def sample_names(self) -> tuple[str, ...]:
        """The names that samples of this family can have."""
        return tuple(self.name + suffix for suffix in SUFFIXES.get(self.type, ("",)))


def add_labels(labels: Labels, added: Labels) -> Labels:
    """Added labels win; a label of the source with the same name is kept as `exported_<name>`, as Prometheus does."""
    taken = {name for name, _ in added}
    kept: list[tuple[str, str]] = []
    for name, value in labels:
        while name in taken:
            name = f"exported_{name}"
        taken.add(name)
        kept.append((name, value))
    return (*kept, *added)


def ordered(type_: Type, samples: list[Sample]) -> list[Sample]:
    """The samples of one labelset together, its buckets and quantiles ascending: OpenMetrics demands both."""
    position = _POSITION.get(type_)
    if position is None:
        return samples
    groups: dict[Group, list[tuple[float, str, Sample]]] = {}
    for sample in samples:
        series = sample[0]
        group, at = series.placed(position)
        # After the placed ones, in the order of their names.
        entry = (math.inf, series.name, sample) if at is None else (at, "", sample)
        groups.setdefault(group, []).append(entry)
    by_place = (sorted(group, key=lambda entry: entry[:2]) for group in groups.values())
    return [sample for _, _, sample in chain.from_iterable(by_place)]


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def has_positions(family: Family) -> bool:
    """Whether every bucket and quantile says with a number which it is: a histogram or summary is none otherwise."""
    position = _POSITION.get(family.type)
    if position is None:
        return True
    named = f"{family.name}_bucket" if position == "le" else family.name
    return all(series.placed(position)[1] is not None for series, _ in family.samples if series.name == named)


def count_samples(families: Iterable[Family]) -> int:
    return sum(len(family.samples) for family in families)


def split(family: Family) -> Iterator[Family]:
    """The samples as families of type unknown, one for each of their names: for what a format has no type for."""
    parts: dict[str, Family] = {}
    for series, value in family.samples:
        part = parts.setdefault(series.name, Family(series.name, "unknown", family.help))
        part.samples.append((series, value))
    yield from parts.values()


def escaped(value: str) -> str:
    """A label's value between its quotes; the same in both formats."""
    if "\\" in value or '"' in value or "\n" in value:
        return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    return value
