"""A dashboard of Grafana's as an SVG, from what Prometheus has seen: numbers and lines, as far as this project's own
dashboards use them. No Grafana is needed. Pure, but for the question that it is given."""

import math
import re
import textwrap
from collections.abc import Callable, Iterator
from html import escape
from typing import Any

Ask = Callable[[str], list[dict[str, Any]]]
"""An expression's series, as Prometheus answers a range query: each with `metric` and `values`."""

_COLUMN, _ROW, _GAP = 50, 30, 8
_COLOURS = ("#1d4ed8", "#c2410c", "#047857", "#7e22ce", "#be123c", "#0e7490", "#a16207", "#475569")
_LEVELS = {"green": "#15803d", "orange": "#b45309", "red": "#b91c1c"}


def draw(dashboard: dict[str, Any], ask: Ask, start: float, end: float) -> str:
    """All panels at their places, from `start` to `end` (seconds since 1970)."""
    panels = dashboard["panels"]
    height = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels) * _ROW
    width = 24 * _COLUMN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        'font-size="12" fill="#1e293b">',
        '<rect width="100%" height="100%" fill="#f1f5f9"/>',
    ]
    for panel in panels:
        place = panel["gridPos"]
        x, y = place["x"] * _COLUMN, place["y"] * _ROW
        if panel["type"] == "row":
            title = _text(panel["title"])
            lines.append(f'<text x="{x + _GAP}" y="{y + 20}" font-size="15" font-weight="bold">{title}</text>')
            continue
        w, h = place["w"] * _COLUMN - _GAP, place["h"] * _ROW - _GAP
        lines.append(f'<g transform="translate({x + _GAP // 2} {y + _GAP // 2})">')
        lines.append(f'<rect width="{w}" height="{h}" rx="3" fill="white" stroke="#cbd5e1"/>')
        for number, words in enumerate(textwrap.wrap(panel["title"], int((w - 8) / 6.4))):
            y = 17 + 13 * number
            lines.append(f'<text x="8" y="{y}" font-size="11" font-weight="bold">{_text(words)}</text>')
        series = [
            (_label(target.get("legendFormat", ""), one["metric"]), _points(one["values"]))
            for target in panel["targets"]
            for one in ask(target["expr"])
        ]
        series = [(label, points) for label, points in series if points]
        # Of what is nothing all the time there may be much, such as models that nobody loads.
        series = [one for one in series if any(value for _, value in one[1])] or series
        unit, steps = _defaults(panel)
        if not series:
            lines.append(f'<text x="{w / 2}" y="{h / 2}" text-anchor="middle">no data</text>')
        elif panel["type"] == "stat":
            value = series[0][1][-1][1]
            lines.append(
                f'<text x="{w / 2}" y="{h * 0.7}" text-anchor="middle" font-size="28" fill="{_level(value, steps)}">'
                f"{_value(value, unit)}</text>"
            )
        else:
            lines += _graph(series, unit, w, h, start, end)
        lines.append("</g>")
    return "\n".join([*lines, "</svg>\n"])


def _graph(
    series: list[tuple[str, list[tuple[float, float]]]], unit: str, w: float, h: float, start: float, end: float
) -> Iterator[str]:
    left, top = 58, 28
    legend = 14 * math.ceil(len(series) / 2)
    width, height = w - left - 12, h - top - legend - 24
    highest = _nice(max(value for _, points in series for _, value in points))
    for part in range(3):
        y = top + height * (2 - part) / 2
        yield f'<path d="M{left} {y:.1f}h{width}" stroke="#e2e8f0"/>'
        mark = _value(highest * part / 2, unit)
        yield f'<text x="{left - 5}" y="{y + 4:.1f}" text-anchor="end" font-size="10">{mark}</text>'
    minutes = (end - start) / 60
    for part in range(3):
        x = left + width * part / 2
        anchor = ("start", "middle", "end")[part]
        yield (
            f'<text x="{x:.1f}" y="{top + height + 13:.1f}" text-anchor="{anchor}" font-size="10">'
            f"{minutes * part / 2:.0f} min</text>"
        )
    for number, (label, points) in enumerate(series):
        colour = _COLOURS[number % len(_COLOURS)]
        for piece in _pieces(points, (end - start) / 40):
            path = " ".join(
                f"{left + width * (at - start) / (end - start):.1f},{top + height * (1 - value / highest):.1f}"
                for at, value in piece
            )
            yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
        x, y = 8 + (number % 2) * w / 2, h - legend + 14 * (number // 2) + 6
        yield f'<text x="{x:.1f}" y="{y:.1f}" font-size="10" fill="{colour}">{_text(label)}</text>'


def _pieces(points: list[tuple[float, float]], gap: float) -> Iterator[list[tuple[float, float]]]:
    """Where nothing was known for longer than `gap` seconds, there is no line."""
    piece = [points[0]]
    for point in points[1:]:
        if point[0] - piece[-1][0] > gap:
            yield piece
            piece = []
        piece.append(point)
    yield piece


def _points(values: list[list[Any]]) -> list[tuple[float, float]]:
    points = [(float(at), float(value)) for at, value in values]
    return [(at, value) for at, value in points if math.isfinite(value)]


def _label(form: str, labels: dict[str, str]) -> str:
    return re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda found: labels.get(found[1], ""), form)


def _defaults(panel: dict[str, Any]) -> tuple[str, list[dict[str, Any]]]:
    defaults = panel["fieldConfig"]["defaults"]
    return defaults.get("unit", "short"), defaults.get("thresholds", {}).get("steps", [])


def _level(value: float, steps: list[dict[str, Any]]) -> str:
    reached = [step["color"] for step in steps if step["value"] is None or value >= step["value"]]
    return _LEVELS[reached[-1]] if reached else "#1e293b"


def _nice(value: float) -> float:
    """The next of 1, 2 or 5 times a power of ten; 1 where all is zero."""
    if value <= 0:
        return 1
    power = 10 ** math.floor(math.log10(value))
    return float(next(factor * power for factor in (1, 2, 5, 10) if value <= factor * power * (1 + 1e-9)))


def _value(value: float, unit: str) -> str:
    if unit == "percentunit":
        return f"{value * 100:.3g} %"
    if unit == "s":
        return f"{value * 1000:.3g} ms" if 0 < value < 1 else f"{value:.3g} s"
    return f"{value:.3g}" + (" /s" if unit == "reqps" else "")


def _text(words: str) -> str:
    return escape(words, quote=False)
