"""One page from what the sources gave: merged, with what the proxy has to say about itself. No I/O."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from metrics_proxy import render
from metrics_proxy.families import Family, Labels, Sample, Series, Type
from metrics_proxy.merge import Merged, Policy, SourcePage, merge
from metrics_proxy.multiprocess import number
from metrics_proxy.sources import Outcome, Source

# A source whose families have new names every time must not make this service grow.
_MAX_CONFLICTS = 1000
_OTHERS = "(others)"

_PREFIX = "metrics_proxy_"


@dataclass
class Conflicts:
    """How often each kind of conflict was met since the start, by family and kind."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, conflicts: Mapping[tuple[str, str], int]) -> None:
        for (family, kind), times in conflicts.items():
            is_known = (family, kind) in self.counts or len(self.counts) < _MAX_CONFLICTS
            self.counts[family if is_known else _OTHERS, kind] += times


@dataclass
class Page:
    """`outcomes` in the order of the sources; `families` are all that is served."""

    outcomes: Sequence[Outcome]
    merged: Merged
    families: list[Family]

    @property
    def is_whole(self) -> bool:
        return all(outcome.content for outcome in self.outcomes)

    @property
    def samples(self) -> int:
        return sum(outcome.samples for outcome in self.outcomes)

    @cached_property
    def text(self) -> bytes:
        return render.text(self.families).encode()

    @cached_property
    def openmetrics(self) -> bytes:
        return render.openmetrics(self.families).encode()


def build(
    sources: Sequence[Source], outcomes: Sequence[Outcome], policies: Mapping[str, Policy], conflicts: Conflicts
) -> Page:
    """Counts the conflicts of this page into `conflicts`."""
    pages = []
    for source, outcome in zip(sources, outcomes, strict=True):
        if outcome.content:
            conflicts.add(outcome.content.conflicts)
            pages.append(SourcePage(source.name, outcome.content.families, source.has_bridge))
    merged = merge(pages, policies)
    conflicts.add(merged.conflicts)
    families = list(_own(sources, outcomes, conflicts))
    # A source may be another proxy, whose series are told apart by their labels.
    if any(family.name.startswith(_PREFIX) for family in merged.families):
        families = merge([SourcePage("", families), SourcePage("sources", merged.families)], {}).families
    else:
        families += merged.families
    return Page(outcomes, merged, families)


# The same few at every scrape.
_series = lru_cache(maxsize=4 * _MAX_CONFLICTS)(Series)


def _own(sources: Sequence[Source], outcomes: Sequence[Outcome], conflicts: Conflicts) -> Iterable[Family]:
    def family(name: str, type_: Type, help_text: str, values: Iterable[tuple[Labels, float]]) -> Iterable[Family]:
        name = _PREFIX + name
        samples: list[Sample] = [(_series(name, labels), number(value)) for labels, value in values]
        return [Family(name, type_, help_text, None, samples)] if samples else []

    def of(outcome: Outcome | Source) -> Labels:
        return (("source", outcome.source if isinstance(outcome, Outcome) else outcome.name),)

    yield from family(
        "source_up",
        "gauge",
        "1 if the source's metrics are on this page, 0 if it could not be read.",
        [(of(outcome), 1.0 if outcome.content else 0.0) for outcome in outcomes],
    )
    yield from family(
        "source_fetch_duration_seconds",
        "gauge",
        "How long reading the source took.",
        [(of(outcome), outcome.seconds) for outcome in outcomes],
    )
    yield from family(
        "source_last_success_timestamp_seconds",
        "gauge",
        "When the source could be read last; absent if it never could.",
        [(of(source), source.last_success) for source in sources if source.last_success],
    )
    yield from family(
        "source_samples",
        "gauge",
        "How many samples the source gave.",
        [(of(outcome), float(outcome.samples)) for outcome in outcomes],
    )
    yield from family(
        "source_parse_errors_total",
        "counter",
        "Pages and files of the source that could not be understood.",
        [(of(source), float(source.parse_errors)) for source in sources],
    )
    yield from family(
        "conflicts_total",
        "counter",
        "Conflicts, by family: type (sources disagree on it), duplicate (a series that was there before), dropped (a "
        "source's family that another's wins over), buckets (processes with different histogram buckets).",
        [((("family", name), ("kind", kind)), float(times)) for (name, kind), times in conflicts.counts.items()],
    )
    reports = [(of(outcome), outcome.content.report) for outcome in outcomes if outcome.content]
    directories = [(labels, report) for labels, report in reports if report]
    yield from family(
        "directory_processes",
        "gauge",
        "Processes with files in the directory. unknown: neither a lock nor the process table tells whether it lives, "
        "so its gauges are served and may be those of a dead process.",
        [
            ((*labels, ("state", state)), float(report.processes[state]))
            for labels, report in directories
            for state in ("live", "dead", "unknown")
        ],
    )
    yield from family(
        "directory_bad_files",
        "gauge",
        "Files that were left out, by reason.",
        [
            ((*labels, ("reason", reason)), float(count))
            for labels, report in directories
            for reason, count in sorted(Counter(problem.reason for problem in report.bad.values()).items())
        ],
    )
    yield from family(
        "directory_shared_series",
        "gauge",
        "Series on this page that are the sum, or for shares and constants the largest, of several live processes'.",
        [(labels, float(report.combined.shared)) for labels, report in directories],
    )
    yield from family(
        "directory_compactions_total",
        "counter",
        "How often files of dead processes were put together in one.",
        [(labels, float(report.compactions)) for labels, report in directories],
    )
    yield from family(
        "directory_tidying_failed",
        "gauge",
        "1 if files of dead processes cannot be put aside or together; the status page says why.",
        [(labels, 1.0 if report.tidying else 0.0) for labels, report in directories],
    )
