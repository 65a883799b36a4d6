"""Pages of metrics to families: the text format 0.0.4 and OpenMetrics 1.0. No I/O.

As strict as Prometheus: one line that is no metric, and the page is refused, since nobody knows what else is wrong with
it. More lenient only where it is harmless: CRLF, a missing last line feed, a TYPE that comes late or twice. Timestamps
and exemplars are dropped.

https://github.com/prometheus/docs/blob/main/docs/instrumenting/exposition_formats.md
https://github.com/prometheus/OpenMetrics/blob/main/specification/OpenMetrics.md
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import cast

from metrics_proxy.families import SUFFIXES, Family, Labels, Series, Type, add_labels, has_positions, ordered, split

_TEXT_TYPES = {"counter": "counter", "gauge": "gauge", "histogram": "histogram", "summary": "summary"} | {
    "untyped": "unknown"
}
_OPENMETRICS_TYPES = {
    name: name
    for name in ("counter", "gauge", "histogram", "gaugehistogram", "stateset", "info", "summary", "unknown")
}
_OPENMETRICS_SUFFIXES = {
    "counter": ("_total", "_created"),
    "info": ("_info",),
    **{name: (*suffixes, "_created") for name, suffixes in SUFFIXES.items()},
}

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*+"
# A sample: its name and labels, its value, the rest. Possessive, so that no line costs more than its length.
_BRACES = r'\{[^"}]*+(?:"[^"\\]*+(?:\\.[^"\\]*+)*+"[^"}]*+)*+\}'
_SAMPLE = re.compile(rf"[ \t]*+({_NAME}[ \t]*+{_BRACES}[ \t]*+|{_NAME}[ \t]++)(\S++)(.*)")
_LABEL = re.compile(r'[ \t]*+([a-zA-Z_][a-zA-Z0-9_]*+)[ \t]*+=[ \t]*+"([^"\\]*+(?:\\.[^"\\]*+)*+)"[ \t]*+(,|$)')
_METADATA = re.compile(rf"#[ \t]+(HELP|TYPE|UNIT)[ \t]+({_NAME})(?:[ \t]+(.*))?$", re.DOTALL)
_NUMBER = re.compile(r"[+-]?(?:[0-9]++\.?+[0-9]*+|\.[0-9]++)(?:[eE][+-]?[0-9]++)?+")
_TEXT_TIMESTAMP = re.compile(r"(?:[ \t]+[+-]?[0-9]+)?[ \t]*")
_OPENMETRICS_TIMESTAMP = re.compile(rf"(?: {_NUMBER.pattern})?(?: # \{{.*\}} \S+(?: {_NUMBER.pattern})?)?")
_SPECIAL = {"nan": "NaN", "+nan": "NaN", "-nan": "NaN"} | {
    sign + name: shown for sign, shown in (("", "+Inf"), ("+", "+Inf"), ("-", "-Inf")) for name in ("inf", "infinity")
}
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPES = {"n": "\n", "\\": "\\", '"': '"'}


class ParseError(Exception):
    """A sentence that says where a page is wrong."""


@dataclass(slots=True)
class Page:
    """`repeated` counts, by family, the samples that were on the page before; `retyped`, the second TYPE of a family
    that contradicts its first."""

    families: list[Family] = field(default_factory=list)
    repeated: dict[str, int] = field(default_factory=dict)
    retyped: dict[str, int] = field(default_factory=dict)


class Parser:
    """For the pages of one source: what it has seen on the last page, it need not parse again.

    `labels` are added to every sample. More than `max_samples` is a `ParseError`.
    """

    def __init__(self, labels: Labels = (), max_samples: int | None = None) -> None:
        self._labels = labels
        self._max_samples = max_samples
        self._known: dict[str, Series] = {}

    def parse(self, text: str, *, openmetrics: bool) -> Page:
        """Raises `ParseError`."""
        reader = _Reader(self._known, self._labels, self._max_samples, openmetrics=openmetrics)
        page = reader.read(text)
        self._known = reader.used
        return page


class _Reader:
    """One page on its way to families."""

    def __init__(
        self, known: dict[str, Series], labels: Labels, max_samples: int | None, *, openmetrics: bool
    ) -> None:
        self.used: dict[str, Series] = {}
        self._known = known
        self._labels = labels
        self._left = max_samples
        self._openmetrics = openmetrics
        self._types = _OPENMETRICS_TYPES if openmetrics else _TEXT_TYPES
        self._suffixes = _OPENMETRICS_SUFFIXES if openmetrics else SUFFIXES
        self._rest = _OPENMETRICS_TIMESTAMP if openmetrics else _TEXT_TIMESTAMP
        self._declared: dict[str, Family] = {}
        # By sample name: where its samples go.
        self._targets: dict[str, Family] = {}
        self._seen: set[str] = set()
        self._page = Page()

    def read(self, text: str) -> Page:
        number = 0
        try:
            for line in self._lines(text):
                number += 1
                if line.startswith("#"):
                    self._comment(line)
                else:
                    self._sample(line)
        except ParseError as error:
            raise ParseError(f"line {number}: {error}" if number else str(error)) from None
        self._join_untyped()
        families = list(self._declared.values())
        named = _named_as_text(families) if self._openmetrics else families
        for family in named:
            if has_positions(family):
                family.samples = ordered(family.type, family.samples)
                found = [family] if family.samples else []
            else:
                found = list(split(family))
            self._page.families += found
        return self._page

    def _lines(self, text: str) -> Iterator[str]:
        lines = text.split("\n")
        last = lines.pop()
        if self._openmetrics:
            # The end is marked, so that a page that was cut off is noticed.
            if last:
                lines.append(last)
            if not lines or lines[-1].removesuffix("\r") != "# EOF":
                raise ParseError(f"the page ends with {_shown(lines[-1] if lines else '')} instead of # EOF")
            del lines[-1]
        elif last:
            lines.append(last)
        for line in lines:
            stripped = line.removesuffix("\r")
            if not stripped.strip(" \t") and not self._openmetrics:
                yield "#"
            else:
                yield stripped

    def _comment(self, line: str) -> None:
        found = _METADATA.match(line)
        if not found:
            if self._openmetrics:
                raise ParseError(f"{_shown(line)} is neither metadata nor a sample")
            return
        what, name, text = found[1], found[2], found[3] or ""
        family = self._family(name)
        if what == "HELP":
            family.help = family.help or _ESCAPE.sub(_unescaped if self._openmetrics else _unescaped_help, text) or None
        elif what == "TYPE":
            type_ = self._types.get(text.strip(" \t"))
            if type_ is None:
                raise ParseError(f"{_shown(text)} is no type of a metric")
            self._declare(family, cast(Type, type_))
        elif self._openmetrics:
            family.unit = text or None

    def _declare(self, family: Family, type_: Type) -> None:
        if family.type != "unknown" and family.type != type_:
            self._page.retyped[family.name] = self._page.retyped.get(family.name, 0) + 1
            return
        family.type = type_
        for suffix in self._suffixes.get(type_, ("",)):
            # What is declared by itself is no part of another: Triton's nv_inference_count is a counter.
            if family.name + suffix not in self._declared:
                self._targets[family.name + suffix] = family

    def _family(self, name: str) -> Family:
        family = self._declared.get(name)
        if family is None:
            family = self._declared[name] = Family(name)
            self._targets[name] = family
        return family

    def _sample(self, line: str) -> None:
        found = _SAMPLE.fullmatch(line)
        if not found:
            raise ParseError(f"{_shown(line)} is no sample")
        head, value, rest = found.groups()
        series = self.used.get(head)
        if series is None:
            series = self.used[head] = self._known.get(head) or self._series(head)
        if not _NUMBER.fullmatch(value):
            shown = _SPECIAL.get(value.lower())
            if shown is None:
                raise ParseError(f"{_shown(value)} is no value")
            value = shown
        elif ("e" in value or "E" in value or len(value) > 300) and math.isinf(float(value)):
            raise ParseError(f"{_shown(value)} is out of range")
        if rest and not self._rest.fullmatch(rest):
            raise ParseError(f"{_shown(rest)} after the value")
        if self._left is not None:
            if not self._left:
                raise ParseError("there are more samples than max_samples")
            self._left -= 1
        # The name on the page: the labels that are added do not change it.
        name = series.name
        family = self._targets.get(name) or self._family(name)
        if series.key in self._seen:
            self._page.repeated[family.name] = self._page.repeated.get(family.name, 0) + 1
            return
        self._seen.add(series.key)
        family.samples.append((series, value))

    def _series(self, head: str) -> Series:
        name, _, inner = head.partition("{")
        name = name.rstrip(" \t")
        labels: list[tuple[str, str]] = []
        # Without the closing brace.
        inner = inner.rstrip(" \t")[:-1].rstrip(" \t")
        at = 0
        while at < len(inner):
            found = _LABEL.match(inner, at)
            if not found:
                raise ParseError(f"{_shown(inner[at:])} is no label")
            value = found[2]
            labels.append((found[1], _ESCAPE.sub(_unescaped, value) if "\\" in value else value))
            at = found.end()
        if len({label for label, _ in labels}) < len(labels):
            raise ParseError(f"{_shown(head)} has a label twice")
        if any(label == "__name__" for label, _ in labels):
            # The name again, under which Prometheus keeps it: it would refuse the whole page.
            raise ParseError(f"{_shown(head)} has its name twice")
        return Series(name, add_labels(tuple(labels), self._labels) if self._labels else tuple(labels))

    def _join_untyped(self) -> None:
        """Samples that came before the TYPE of the family that they belong to, or after a HELP of their own."""
        for family in list(self._declared.values()):
            for suffix in self._suffixes.get(family.type, ()):
                part = self._declared.get(family.name + suffix)
                if part is not None and part is not family and part.type == "unknown":
                    family.samples += part.samples
                    part.samples = []


def _named_as_text(families: list[Family]) -> list[Family]:
    """OpenMetrics' families, named as the text format names them."""
    named: dict[str, Family] = {}
    for family in families:
        for series, value in family.samples:
            name, type_, unit = family.name, family.type, family.unit
            if type_ in _OPENMETRICS_SUFFIXES and series.name == f"{family.name}_created":
                name, type_, unit = series.name, "gauge", None
            elif type_ in ("counter", "info"):
                name = series.name
            if name not in named:
                named[name] = Family(name, type_, family.help, unit)
            named[name].samples.append((series, value))
    return list(named.values())


def _unescaped(found: re.Match[str]) -> str:
    # What is no escape stays as it is.
    return _ESCAPES.get(found[1], found[0])


def _unescaped_help(found: re.Match[str]) -> str:
    return found[0] if found[1] == '"' else _unescaped(found)


def _shown(text: str) -> str:
    text = text.strip()
    return repr(text if len(text) <= 60 else text[:60] + "…")
