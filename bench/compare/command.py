"""`python -m bench compare`: flags, and what the rounds showed."""

import argparse
import json
import resource
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.compare.measures import Burst, TooSlow, WrongAnswer
from bench.compare.plot import draw
from bench.compare.rounds import PARTS, USUAL_PARTS, Sizes, measure, start
from bench.compare.verdict import Judged, Results, Spread, judge
from devtools import models
from devtools.errors import DevError
from devtools.progress import step

_WIDTH = 160
"""Of what is no terminal."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Runs nginx, the gateway and a bare FastAPI route before the same byte source, gives each the same load in "
        "turns and shows what that took of its processes' CPU time. The ratios come last. Exit code 1 if one is missed."
    )
    parser.add_argument(
        "--rounds", type=_positive, default=5, metavar="COUNT", help="of every measurement (%(default)s)"
    )
    parser.add_argument(
        "--only", action="append", choices=PARTS, help="one part; may be repeated (all but growth, which takes minutes)"
    )
    parser.add_argument(
        "--streams",
        type=_positive,
        default=256,
        metavar="COUNT",
        help="open streams, for the cost per token (%(default)s)",
    )
    parser.add_argument(
        "--tokens-per-second",
        type=float,
        default=20.0,
        metavar="RATE",
        help="of each stream; each token is a write of its own (%(default)g)",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=3.0,
        metavar="SECONDS",
        help="how long tokens are measured in a round (%(default)g)",
    )
    parser.add_argument(
        "--requests",
        type=_positive,
        default=1500,
        metavar="COUNT",
        help="in a round, for the cost per request (%(default)s)",
    )
    parser.add_argument(
        "--burst", type=_positive, default=1024, metavar="COUNT", help="streams that begin at once (%(default)s)"
    )
    parser.add_argument(
        "--slow-readers", type=_positive, default=8, metavar="COUNT", help="among the streams (%(default)s)"
    )
    parser.add_argument(
        "--growth-requests", type=_positive, default=100_000, metavar="COUNT", help="for the part growth (%(default)s)"
    )
    parser.add_argument(
        "--tokenizer",
        type=Path,
        metavar="FOLDER",
        help="a model's folder with tokenizer and chat template (the tiny random model)",
    )
    parser.add_argument("--upstream-port", type=int, default=0, metavar="PORT", help="of the byte source (a free one)")
    parser.add_argument(
        "--other",
        action="append",
        default=[],
        type=_other,
        metavar="NAME=URL=COMMAND",
        help="another gateway, started by the command, in which {upstream} is the byte source's URL; it must serve the "
        "model bench; may be repeated",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all measures there")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the costs there, as SVG")


def main(arguments: argparse.Namespace) -> int:
    _raise_file_limit()
    sizes = Sizes(
        rounds=arguments.rounds,
        parts=tuple(arguments.only or USUAL_PARTS),
        streams=arguments.streams,
        tokens_per_second=arguments.tokens_per_second,
        seconds=arguments.seconds,
        requests=arguments.requests,
        burst=arguments.burst,
        slow_readers=arguments.slow_readers,
        growth_requests=arguments.growth_requests,
    )
    tokenizer = arguments.tokenizer or models.tiny(Path(sys.executable))
    with tempfile.TemporaryDirectory(prefix="bench-compare-") as folder, ExitStack() as stack:
        with step("Starting the servers"):
            stage = start(stack, sizes, Path(folder), tokenizer, arguments.upstream_port, arguments.other)
        with step("Comparing") as say:
            try:
                results = measure(stage, sizes, say)
            except (WrongAnswer, TooSlow) as problem:
                raise DevError(f"{problem}.") from None
        stats = stage.upstream.stats()
    judged = judge(results)
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH)
    _print_measures(console, results)
    cost = f"{stats.cpu_microseconds_per_token:.1f} µs of CPU per token, {stats.late_tokens} of {stats.tokens} late"
    console.print(f"The byte source itself: {cost}.", highlight=False)
    console.print(_ratios(judged))
    if arguments.json:
        whole = {"measures": asdict(results), "ratios": [asdict(one) for one in judged], "byte_source": asdict(stats)}
        arguments.json.write_text(json.dumps(whole, indent=1), encoding="utf-8")
    if arguments.plot:
        arguments.plot.write_text(draw(results), encoding="utf-8")
    return 1 if any(one.is_met is False for one in judged) else 0


def _raise_file_limit() -> None:
    """For this process and all that it starts."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _print_measures(console: Console, results: Results) -> None:
    table = Table(title="CPU of the server's processes, median (lowest to highest round)", title_justify="left")
    for name in (
        "server",
        "per streamed token",
        "joined",
        "per request of 4 KB",
        "requests/s",
        "burst: first token p50, p99",
    ):
        table.add_column(name, justify="left" if name == "server" else "right")
    for name in dict.fromkeys([*results.tokens, *results.requests, *results.bursts]):
        tokens, requests, bursts = results.tokens.get(name), results.requests.get(name), results.bursts.get(name)
        table.add_row(
            name,
            _microseconds([one.microseconds for one in tokens]) if tokens else "",
            f"{100 * Spread.of([one.joined for one in tokens]).median:.1f} %" if tokens else "",
            _microseconds([one.microseconds for one in requests]) if requests else "",
            f"{Spread.of([one.per_second for one in requests]).median:.0f}" if requests else "",
            _burst(bursts) if bursts else "",
        )
    console.print(table)


def _burst(bursts: Sequence[Burst]) -> str:
    p50, p99 = (Spread.of([getattr(one, name) for one in bursts]) for name in ("ttft_p50", "ttft_p99"))
    return f"{1000 * p50.median:.0f}, {1000 * p99.median:.0f} ms"


def _microseconds(values: Sequence[float]) -> str:
    spread = Spread.of(values)
    return f"{spread.median:.1f} µs ({spread.low:.1f} to {spread.high:.1f})"


def _ratios(judged: Sequence[Judged]) -> Table:
    table = Table(title="Ratios", title_justify="left")
    for name in ("", "median", "lowest to highest", "target", "", ""):
        table.add_column(name, justify="left" if not name else "right")
    for one in judged:
        unit = f" {one.unit}" if one.unit else ""
        median, spread = ("", "") if one.value is None else (f"{one.value.median:.2f}{unit}", _range(one.value))
        target = "" if one.target is None else f"≤ {one.target:g}{unit}"
        table.add_row(
            one.name, median, spread, target, {None: "", True: "met", False: "NOT MET"}[one.is_met], one.remark
        )
    return table


def _range(spread: Spread) -> str:
    low, high = f"{spread.low:.2f}", f"{spread.high:.2f}"
    return "" if low == high else f"{low} to {high}"


def _other(text: str) -> str:
    if text.count("=") < 2:
        raise argparse.ArgumentTypeError("must be NAME=URL=COMMAND")
    return text


def _positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError("must be 1 at least")
    return number
