"""`python -m bench egress`: flags, and what the rounds showed."""

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from bench.compare import screen, tables
from bench.egress import verdict
from bench.egress.rounds import PARTS, Sizes, measure
from bench.flags import above_zero, positive, written_file
from devtools.progress import step

SECTION = "egress"
"""The name of the marks between which the tables go."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    usual = Sizes()
    parser.description = (
        "Streams tokens from a real tritonserver with and without batched egress, in turns: with an engine that only "
        "counts, through the gateway, and with vLLM and the tiny random model. Then requests that are nearly all "
        "prompt, to this backend, to one that hosts vLLM in the usual way, and to vLLM's own server. The ratios come "
        "last. Exit code 1 if one is missed."
    )
    parser.add_argument(
        "--rounds", type=positive, default=usual.rounds, metavar="COUNT", help="of every measurement (%(default)s)"
    )
    parser.add_argument("--only", action="append", choices=PARTS, help="one part; may be repeated (all)")
    parser.add_argument(
        "--streams",
        action="append",
        type=positive,
        metavar="COUNT",
        help=f"open streams with the synthetic engine; may be repeated ({', '.join(map(str, usual.streams))})",
    )
    parser.add_argument(
        "--seconds",
        type=above_zero,
        default=usual.seconds,
        metavar="SECONDS",
        help="how long tokens at a pace are measured in a round (%(default)g)",
    )
    parser.add_argument(
        "--requests", type=positive, default=usual.requests, metavar="COUNT", help="of 4 KB in a round (%(default)s)"
    )
    parser.add_argument("--json", type=written_file, metavar="FILE", help="write all measures there")
    screen.add_into(parser, SECTION)


def main(arguments: argparse.Namespace) -> int:
    screen.raise_file_limit()
    sizes = Sizes(
        rounds=arguments.rounds,
        parts=tuple(arguments.only or PARTS),
        streams=tuple(arguments.streams or Sizes().streams),
        seconds=arguments.seconds,
        requests=arguments.requests,
    )
    with tempfile.TemporaryDirectory(prefix="bench-egress-") as folder, step("Measuring") as say:
        results = measure(sizes, Path(folder), say)
    judged = verdict.judge(results)
    made = verdict.streams(results), verdict.gateways(results), verdict.requests(results), tables.ratios(judged)
    shown = [table for table in made if table.rows]
    about = f"{screen.machine()}; {sizes.rounds} rounds."
    screen.show(about, shown)
    if arguments.json:
        whole = {"measures": asdict(results), "ratios": [asdict(one) for one in judged]}
        arguments.json.write_text(json.dumps(whole, indent=1), encoding="utf-8")
    if arguments.into:
        screen.write_into(arguments.into, about, shown, SECTION)
    for part, problem in results.problems.items():
        print(f"bench egress: {part} was not measured to its end: {problem}", file=sys.stderr)
    return 1 if results.problems or any(one.is_met is False for one in judged) else 0
