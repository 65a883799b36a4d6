"""The measures and the ratios as tables, for the terminal and for a page. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from bench.compare.measures import Burst
from bench.compare.verdict import Judged, Results, Spread, apart


def marks(name: str) -> tuple[str, str]:
    """Between these lines of a page stands what was measured."""
    return f"<!-- {name}: begin -->", f"<!-- {name}: end -->"


@dataclass(frozen=True, slots=True)
class Table:
    """`rows` have as many cells as `header`; the first column is text, the others are numbers."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


def costs(results: Results) -> Table:
    """What each server took, medians of the rounds."""
    rows = []
    for name in dict.fromkeys([*results.tokens, *results.requests, *results.bursts]):
        tokens, requests, bursts = results.tokens.get(name), results.requests.get(name), results.bursts.get(name)
        rows.append(
            [
                name,
                microseconds([one.microseconds for one in apart(tokens)]) if tokens else "",
                f"{100 * Spread.of([one.joined for one in tokens]).median:.1f} %" if tokens else "",
                microseconds([one.microseconds for one in requests]) if requests else "",
                f"{Spread.of([one.per_second for one in requests]).median:.0f}" if requests else "",
                _burst(bursts) if bursts else "",
            ]
        )
    title = "CPU of the server's processes: median (lowest to highest round)"
    header = ["", "per streamed token", "joined", "per request of 4 KB", "requests/s", "burst: first token p50, p99"]
    return Table(title, header, rows)


def ratios(judged: Sequence[Judged]) -> Table:
    rows = []
    for one in judged:
        unit = f" {one.unit}" if one.unit else ""
        median, spread = ("", "") if one.value is None else (f"{_number(one.value.median)}{unit}", _range(one.value))
        target = "" if one.target is None else f"{'≥' if one.at_least else '≤'} {one.target:g}{unit}"
        met = {None: "", True: "met", False: "NOT MET"}[one.is_met]
        rows.append([one.name, median, spread, target, met, one.remark])
    if not any(row[-1] for row in rows):
        rows = [row[:-1] for row in rows]
    header = ["", "median", "lowest to highest", "target", "", ""]
    return Table("Ratios", header[: len(rows[0]) if rows else len(header)], rows)


def markdown(table: Table) -> str:
    aligned = ["---", *["---:"] * (len(table.header) - 1)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in [table.header, aligned, *table.rows])


def put_into(page: str, measured: str, name: str = "measured") -> str:
    """The page with this between its two marks of that name. Raises ValueError where it has none."""
    first, last = marks(name)
    before, begin, rest = page.partition(f"{first}\n")
    _, end, after = rest.partition(f"{last}\n")
    if not begin or not end:
        raise ValueError(f"has no lines {first} and {last}, between which the tables go")
    return before + begin + measured + end + after


def microseconds(values: Sequence[float]) -> str:
    """Their median, lowest and highest."""
    spread = Spread.of(values)
    return f"{spread.median:.1f} µs ({spread.low:.1f} to {spread.high:.1f})"


def _burst(bursts: Sequence[Burst]) -> str:
    p50, p99 = Spread.of([one.ttft_p50 for one in bursts]), Spread.of([one.ttft_p99 for one in bursts])
    return f"{1000 * p50.median:.0f}, {1000 * p99.median:.0f} ms"


def _number(value: float) -> str:
    return f"{value:.2f}" if value >= 0.1 or not value else f"{value:.4f}"


def _range(spread: Spread) -> str:
    low, high = _number(spread.low), _number(spread.high)
    return "" if low == high else f"{low} to {high}"
