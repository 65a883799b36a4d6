"""`python -m bench compare`: flags, and what the rounds showed."""

import argparse
import json
import os
import platform
import resource
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table as RichTable

from bench.compare import tables
from bench.compare.plot import draw
from bench.compare.rounds import PARTS, USUAL_PARTS, Sizes, measure, start
from bench.compare.verdict import judge
from bench.flags import above_zero, positive
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
        "--rounds", type=positive, default=5, metavar="COUNT", help="of every measurement (%(default)s)"
    )
    parser.add_argument(
        "--only", action="append", choices=PARTS, help="one part; may be repeated (all but growth, which takes minutes)"
    )
    parser.add_argument(
        "--streams",
        type=positive,
        default=256,
        metavar="COUNT",
        help="open streams, for the cost per token (%(default)s)",
    )
    parser.add_argument(
        "--tokens-per-second",
        type=above_zero,
        default=20.0,
        metavar="RATE",
        help="of each stream; each token is a write of its own (%(default)g)",
    )
    parser.add_argument(
        "--seconds",
        type=above_zero,
        default=3.0,
        metavar="SECONDS",
        help="how long tokens are measured in a round (%(default)g)",
    )
    parser.add_argument(
        "--requests",
        type=positive,
        default=1500,
        metavar="COUNT",
        help="in a round, for the cost per request (%(default)s)",
    )
    parser.add_argument(
        "--burst", type=positive, default=1024, metavar="COUNT", help="streams that begin at once (%(default)s)"
    )
    parser.add_argument(
        "--slow-readers", type=positive, default=8, metavar="COUNT", help="among the streams (%(default)s)"
    )
    parser.add_argument(
        "--growth-requests", type=positive, default=100_000, metavar="COUNT", help="for the part growth (%(default)s)"
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
    parser.add_argument(
        "--into",
        type=Path,
        metavar="FILE",
        help="write the tables into this page, between its marks, as in docs/performance.md",
    )


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
            results = measure(stage, sizes, say)
        stats = stage.upstream.stats()
    judged = judge(results)
    shown = [table for table in (tables.costs(results), tables.ratios(judged)) if table.rows]
    late = 100 * stats.late_tokens / max(stats.tokens, 1)
    about = (
        f"{_machine()}; {sizes.rounds} rounds. The byte source itself takes {stats.cpu_microseconds_per_token:.1f} µs "
        f"of CPU per token; {late:.1f} % of them were late."
    )
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH)
    console.print(about, *map(_shown, shown), highlight=False)
    if arguments.json:
        whole = {"measures": asdict(results), "ratios": [asdict(one) for one in judged], "byte_source": asdict(stats)}
        arguments.json.write_text(json.dumps(whole, indent=1), encoding="utf-8")
    if arguments.plot:
        arguments.plot.write_text(draw(results), encoding="utf-8")
    if arguments.into:
        _write_into(arguments.into, "\n".join([f"{about}\n", *map(tables.markdown, shown)]))
    for part, problem in results.problems.items():
        print(f"bench compare: {part} was not measured to its end: {problem}", file=sys.stderr)
    return 1 if results.problems or any(one.is_met is False for one in judged) else 0


def _write_into(page: Path, measured: str) -> None:
    try:
        page.write_text(tables.put_into(page.read_text(encoding="utf-8"), measured), encoding="utf-8")
    except ValueError as error:
        raise DevError(f"{page} {error}.") from None


def _raise_file_limit() -> None:
    """For this process and all that it starts."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _shown(table: tables.Table) -> RichTable:
    made = RichTable(title=table.title, title_justify="left")
    for number, name in enumerate(table.header):
        made.add_column(name, justify="right" if number else "left")
    for row in table.rows:
        made.add_row(*row)
    return made


def _machine() -> str:
    """What it was measured on, in a line."""
    kinds = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if "model name" in line
    ]
    cores = f"{os.cpu_count()} cores ({kinds[0] if kinds else platform.machine()})"
    return f"{cores}, Linux {platform.release().partition('-')[0]}, CPython {platform.python_version()}"


def _other(text: str) -> str:
    if text.count("=") < 2:
        raise argparse.ArgumentTypeError("must be NAME=URL=COMMAND")
    return text
