"""The file that holds what dead processes have counted, once their own files are gone. No I/O.

JSON: the sums, as few numbers each as are exact; the names of the files that are in them, which count no more whether
they are deleted yet or not; and the places of live processes.
"""

import json
from dataclasses import dataclass, field
from typing import Any, cast

from metrics_proxy.families import Type
from metrics_proxy.mmap_file import BadFile, Key
from metrics_proxy.multiprocess import Registry, Totals, bounds_of

NAME = "compacted.json"

_VERSION = 1


@dataclass
class Compacted:
    totals: Totals = field(default_factory=Totals)
    absorbed: frozenset[str] = frozenset()
    places: dict[str, int] = field(default_factory=dict)

    def encode(self) -> bytes:
        plain = [
            [place, series.type, series.key.metric, series.key.sample, series.key.labels, series.key.help, values]
            for (place, series), values in self.totals.plain.items()
        ]
        rows = [
            [place, child.metric, child.labels, child.help, bounds.texts, rows]
            for (place, child, bounds), rows in self.totals.rows.items()
        ]
        content = {"version": _VERSION, "absorbed": sorted(self.absorbed), "places": self.places}
        return json.dumps(content | {"plain": plain, "histograms": rows}).encode()


def decode(data: bytes, registry: Registry) -> Compacted:
    """Raises `BadFile`."""
    try:
        content = json.loads(data)
        if content["version"] != _VERSION:
            raise BadFile("foreign", f"it is of version {content['version']}, and this is for {_VERSION}")
        totals = Totals()
        for place, type_, metric, sample, labels, help_text, values in content["plain"]:
            key = Key(metric, sample, _labels(labels), help_text)
            totals.plain[int(place), registry.plain(cast(Type, type_), key)] = [float(value) for value in values]
        for place, metric, labels, help_text, bounds, rows in content["histograms"]:
            child = registry.child(metric, _labels(labels), help_text)
            layout = bounds_of(tuple(map(str, bounds)))
            totals.rows[int(place), child, layout] = [tuple(map(float, row)) for row in rows]
        places = {str(pid): int(place) for pid, place in content["places"].items()}
        return Compacted(totals, frozenset(content["absorbed"]), places)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise BadFile("corrupt", "it is not what a metrics_proxy wrote") from None


def _labels(pairs: list[Any]) -> tuple[tuple[str, str], ...]:
    return tuple((str(name), str(value)) for name, value in pairs)
