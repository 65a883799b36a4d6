"""`python -m bench compare`: flags, and what the rounds showed."""

import argparse
import json
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from bench.compare import screen, tables
from bench.compare.plot import draw
from bench.compare.rounds import PARTS, USUAL_PARTS, Sizes, measure, start
from bench.compare.verdict import judge
from bench.flags import above_zero, positive, written_file
from devtools import models
from devtools.progress import step


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
    parser.add_argument("--json", type=written_file, metavar="FILE", help="write all measures there")
    parser.add_argument("--plot", type=written_file, metavar="FILE", help="draw the costs there, as SVG")
    screen.add_into(parser)


def main(arguments: argparse.Namespace) -> int:
    screen.raise_file_limit()
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
        f"{screen.machine()}; {sizes.rounds} rounds. The byte source itself takes "
        f"{stats.cpu_microseconds_per_token:.1f} µs of CPU per token; {late:.1f} % of them were late."
    )
    screen.show(about, shown)
    if arguments.json:
        whole = {"measures": asdict(results), "ratios": [asdict(one) for one in judged], "byte_source": asdict(stats)}
        arguments.json.write_text(json.dumps(whole, indent=1), encoding="utf-8")
    if arguments.plot:
        arguments.plot.write_text(draw(results), encoding="utf-8")
    if arguments.into:
        screen.write_into(arguments.into, about, shown)
    for part, problem in results.problems.items():
        print(f"bench compare: {part} was not measured to its end: {problem}", file=sys.stderr)
    return 1 if results.problems or any(one.is_met is False for one in judged) else 0


def _other(text: str) -> str:
    if text.count("=") < 2:
        raise argparse.ArgumentTypeError("must be NAME=URL=COMMAND")
    return text
