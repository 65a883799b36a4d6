"""Curves as SVG that stands inside a page: no scripts, colours from the page's own variables. Pure."""

import math
from collections.abc import Mapping, Sequence
from html import escape

_WIDTH, _HEIGHT = 340, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 12, 34
# Values further apart than this are drawn on a logarithmic scale.
_WIDE = 40


def curves(label: str, xs: Sequence[int], series: Mapping[str, Sequence[float]], *, most: float | None = None) -> str:
    """One line per series over the numbers of streams, on a logarithmic scale; `label` is what the values are, with
    their unit. `most` is the axis' end, where the data is not to say it."""
    values = [value for points in series.values() for value in points]
    largest = max([most or 0.0, *values]) or 1.0
    smallest = min((value for value in values if value > 0), default=largest)
    scale = _Scale(smallest, largest, is_log=most is None and largest / smallest > _WIDE)
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(label)}">',
        *_grid(scale),
        *(_stream_label(x, xs) for x in xs),
        f'<text class="axis" x="{_WIDTH / 2:.0f}" y="{_HEIGHT - 3}" text-anchor="middle">streams</text>',
    ]
    for number, points in enumerate(series.values()):
        places = [f"{_across(x, xs):.1f},{scale.down(y):.1f}" for x, y in zip(xs, points, strict=True)]
        parts.append(f'<polyline class="line c{number}" points="{" ".join(places)}"/>')
    for number, (name, points) in enumerate(series.items()):
        for x, y in zip(xs, points, strict=True):
            about = escape(f"{name}, {x} streams: {short(y)}")
            place = f'cx="{_across(x, xs):.1f}" cy="{scale.down(y):.1f}"'
            parts.append(f'<circle class="dot c{number}" {place} r="3"><title>{about}</title></circle>')
    keys = "".join(f'<span class="key c{number}">{escape(name)}</span>' for number, name in enumerate(series))
    return f"<figure><figcaption>{escape(label)}{keys}</figcaption>{''.join(parts)}</svg></figure>"


class _Scale:
    def __init__(self, smallest: float, largest: float, *, is_log: bool) -> None:
        self._is_log = is_log
        if is_log:
            self._low = math.floor(math.log10(smallest))
            self._high = max(math.ceil(math.log10(largest)), self._low + 1)
        else:
            self._step = _round_step(largest / 4)
            self._high_value = self._step * math.ceil(largest / self._step - 1e-9)

    def down(self, value: float) -> float:
        """From the top of the picture."""
        if self._is_log:
            low, high = 10.0**self._low, 10.0**self._high
            share = math.log10(min(max(value, low), high) / low) / (self._high - self._low)
        else:
            share = value / self._high_value
        return _TOP + (1 - share) * (_HEIGHT - _TOP - _BOTTOM)

    def ticks(self) -> list[float]:
        if self._is_log:
            return [10.0**power for power in range(self._low, self._high + 1)]
        return [self._step * number for number in range(round(self._high_value / self._step) + 1)]


def _round_step(value: float) -> float:
    """The next of 1, 2, 5, 10 and their likes."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= value * (1 - 1e-9))


def _grid(scale: _Scale) -> list[str]:
    parts = []
    for tick in scale.ticks():
        at = scale.down(tick)
        parts.append(f'<path class="grid" d="M{_LEFT} {at:.1f}H{_WIDTH - _RIGHT}"/>')
        parts.append(f'<text class="axis" x="{_LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{short(tick)}</text>')
    return parts


def _stream_label(x: int, xs: Sequence[int]) -> str:
    return f'<text class="axis" x="{_across(x, xs):.1f}" y="{_HEIGHT - 18}" text-anchor="middle">{x}</text>'


def _across(x: int, xs: Sequence[int]) -> float:
    low, high = math.log(min(xs)), math.log(max(xs))
    share = 0.5 if high == low else (math.log(x) - low) / (high - low)
    return _LEFT + 10 + share * (_WIDTH - _LEFT - _RIGHT - 20)


def short(value: float) -> str:
    """Three digits that tell."""
    if value == 0 or value >= 100:
        return f"{value:,.0f}"
    return f"{value:.{max(0, 2 - math.floor(math.log10(value)))}f}".rstrip("0").rstrip(".")
