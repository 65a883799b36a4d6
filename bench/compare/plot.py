"""The costs as an SVG: a bar for each server, with the lowest and the highest round. Pure."""

from collections.abc import Mapping, Sequence

from bench.compare.servers import GATEWAY
from bench.compare.verdict import Results, Spread, apart

_LEFT, _WIDTH, _BAR, _STEP = 130, 420, 18, 28


def draw(results: Results) -> str:
    panels = {
        "CPU µs per streamed token": {
            name: Spread.of([one.microseconds for one in apart(rounds)]) for name, rounds in results.tokens.items()
        },
        "CPU µs per request of 4 KB, one token": {
            name: Spread.of([one.microseconds for one in rounds]) for name, rounds in results.requests.items()
        },
    }
    lines: list[str] = []
    top = 10
    for title, bars in panels.items():
        if bars:
            lines += _panel(title, bars, top)
            top += 40 + _STEP * len(bars)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDTH + 150} {top}" '
        'font-family="sans-serif" font-size="13">'
    )
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *lines, "</svg>\n"])


def _panel(title: str, bars: Mapping[str, Spread], top: int) -> Sequence[str]:
    longest = max(spread.high for spread in bars.values())
    lines = [f'<text x="10" y="{top + 14}" font-weight="bold">{_text(title)}</text>']
    for number, (name, spread) in enumerate(bars.items()):
        y = top + 26 + number * _STEP
        middle = y + _BAR / 2
        low, median, high = (_LEFT + _WIDTH * value / longest for value in (spread.low, spread.median, spread.high))
        colour = "#0072b2" if name == GATEWAY else "#999999"
        lines += [
            f'<text x="{_LEFT - 8}" y="{middle + 5:.0f}" text-anchor="end">{_text(name)}</text>',
            f'<rect x="{_LEFT}" y="{y}" width="{median - _LEFT:.1f}" height="{_BAR}" fill="{colour}"/>',
            f'<line x1="{low:.1f}" y1="{middle}" x2="{high:.1f}" y2="{middle}" stroke="black"/>',
            f'<text x="{high + 8:.1f}" y="{middle + 5:.0f}">{spread.median:.1f}</text>',
        ]
    return lines


def _text(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")
