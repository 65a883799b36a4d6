"""Several sources' families to those of one page: who wins where they collide, and what is counted. No I/O.

Sources rank in the order of the settings. Series of one family from several sources stand together under the first
one's HELP. Of two equal series the first stays. Two types of one family cannot both be right: the first stays.
vLLM's own families win over those that Triton's bridge (`REPORT_CUSTOM_METRICS`) shows under the same names with other
labels and buckets: together, every sum over them would count twice.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from metrics_proxy.families import Family, Labels, Sample, Type, ordered

Kind = Literal["type", "duplicate", "dropped"]

_BRIDGED = "vllm:"
_WITH_ONE_NAME = ("counter", "gauge", "info", "stateset", "unknown")


@dataclass(frozen=True)
class Policy:
    """For one family, named as in the text format: which source's is kept, or, by source, its new name or the labels
    that tell it from the others'."""

    prefer: str | None = None
    rename: Mapping[str, str] = field(default_factory=dict)
    relabel: Mapping[str, Labels] = field(default_factory=dict)


@dataclass(frozen=True)
class SourcePage:
    """What a source gave. `has_bridge` says that its `vllm:` families are copies by Triton's bridge."""

    source: str
    families: Sequence[Family]
    has_bridge: bool = False


@dataclass
class Merged:
    """`conflicts` counts, by family, samples that were left out as duplicates, and sources whose family was left out
    (`dropped`) or had another type than the one that is kept (`type`, and it is dropped too). `winners` says, by family
    and losing source, who won."""

    families: list[Family] = field(default_factory=list)
    conflicts: Counter[tuple[str, str]] = field(default_factory=Counter)
    winners: dict[tuple[str, str], str] = field(default_factory=dict)

    def count(self, family: str, kind: Kind, winner: str, loser: str, number: int = 1) -> None:
        self.conflicts[family, kind] += number
        self.winners[family, loser] = winner


class _Part(NamedTuple):
    source: str
    family: Family
    is_bridged: bool


def merge(pages: Iterable[SourcePage], policies: Mapping[str, Policy]) -> Merged:
    parts: dict[str, list[_Part]] = {}
    for page in pages:
        for family in page.families:
            policy = policies.get(family.name)
            is_bridged = page.has_bridge and family.name.startswith(_BRIDGED)
            if policy is not None and (page.source in policy.rename or page.source in policy.relabel):
                family = _changed(family, policy, page.source)
                is_bridged = False
            parts.setdefault(family.name, []).append(_Part(page.source, family, is_bridged))
    merged = Merged()
    owners: dict[str, str] = {}
    for name, candidates in parts.items():
        kept = candidates
        if len(candidates) > 1:
            kept = _of_one_type(name, _preferred(name, candidates, policies.get(name), merged), merged)
        family = kept[0].family if len(kept) == 1 else _together(kept, merged)
        # A gauge h_count beside a histogram h would be the histogram's count to every reader.
        names = family.sample_names()
        if not owners.keys().isdisjoint(names):
            taken = next(owners[n] for n in names if n in owners)
            for part in kept:
                merged.count(name, "type", taken, part.source)
                merged.count(name, "dropped", taken, part.source)
            continue
        for sample_name in names:
            owners[sample_name] = kept[0].source
        merged.families.append(family)
    return merged


def _changed(family: Family, policy: Policy, source: str) -> Family:
    name = policy.rename.get(source, family.name)
    labels = policy.relabel.get(source, ())
    samples: list[Sample] = []
    for series, value in family.samples:
        if name != family.name:
            series = series.renamed(name + series.name[len(family.name) :])
        samples.append((series.with_labels(labels) if labels else series, value))
    return Family(name, family.type, family.help, family.unit, samples)


def _preferred(name: str, parts: list[_Part], policy: Policy | None, merged: Merged) -> list[_Part]:
    """The parts that are not dropped for the sake of another."""
    if policy is not None and policy.prefer is not None:
        kept = [part for part in parts if part.source == policy.prefer] or parts
    else:
        kept = [part for part in parts if not part.is_bridged] or parts
    for part in parts:
        if part not in kept:
            merged.count(name, "dropped", kept[0].source, part.source)
    return kept


def _of_one_type(name: str, parts: list[_Part], merged: Merged) -> list[_Part]:
    """The parts whose type does not contradict the first one's; one without a type may join where names allow it."""
    first = parts[0]
    kept = [first]
    type_ = first.family.type
    for part in parts[1:]:
        other = part.family.type
        joins = "unknown" in (type_, other) and type_ in _WITH_ONE_NAME and other in _WITH_ONE_NAME
        if other == type_ or joins:
            kept.append(part)
            type_ = other if type_ == "unknown" else type_
        else:
            merged.count(name, "type", first.source, part.source)
            merged.count(name, "dropped", first.source, part.source)
    return kept


def _together(parts: list[_Part], merged: Merged) -> Family:
    name = parts[0].family.name
    type_: Type = next((part.family.type for part in parts if part.family.type != "unknown"), "unknown")
    help_text = next((part.family.help for part in parts if part.family.help), None)
    unit = next((part.family.unit for part in parts if part.family.unit), None)
    owners: dict[str, int] = {}
    samples: list[Sample] = []
    for i, part in enumerate(parts):
        for sample in part.family.samples:
            owner = owners.setdefault(sample[0].key, i)
            if owner == i:
                samples.append(sample)
            else:
                merged.count(name, "duplicate", parts[owner].source, part.source)
    return Family(name, type_, help_text, unit, ordered(type_, samples))
