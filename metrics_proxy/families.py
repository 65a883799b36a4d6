"""What a page of metrics is made of: series and families. No I/O, no format.

A family is named as the text format names it: a counter by its samples' name, with `_total` where it has one, and an
info metric with `_info`. What OpenMetrics calls the `_created` samples of a family is a gauge family of its own.
"""

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

    __slots__ = ("key", "labels", "name", "prefix")

    def __init__(self, name: str, labels: Labels = ()) -> None:
        self.name = name
        self.labels = labels
        pairs = [f'{label}="{escaped(value)}"' for label, value in labels]
        self.prefix = f"{name}{{{','.join(pairs)}}} " if pairs else f"{name} "
        named = sorted(pair for pair in pairs if not pair.endswith('=""'))
        self.key = f"{name}{{{','.join(named)}}}"

    def __repr__(self) -> str:
        return self.prefix.rstrip()

    def renamed(self, name: str) -> "Series":
        return Series(name, self.labels)

    def with_labels(self, added: Labels) -> "Series":
        return Series(self.name, add_labels(self.labels, added))


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
    groups: dict[frozenset[tuple[str, str]], list[tuple[float, str, Sample]]] = {}
    for sample in samples:
        series = sample[0]
        at = float("inf")
        others = []
        is_placed = False
        for name, value in series.labels:
            if name == position:
                at, is_placed = _number(value), True
            elif value:
                others.append((name, value))
        # After the placed ones, in the order of their names.
        groups.setdefault(frozenset(others), []).append((at, "" if is_placed else series.name, sample))
    by_place = (sorted(group, key=lambda entry: entry[:2]) for group in groups.values())
    return [sample for _, _, sample in chain.from_iterable(by_place)]


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("inf")


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
