"""`python -m bench load`: flags, progress on the terminal, the report as a table or as JSON."""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench.flags import above_zero, not_negative, positive, written_file
from bench.load import run as running
from bench.load.client import check_url
from bench.load.report import Distribution, Objectives, Part, Report, report
from bench.load.run import Arrivals, ClosedLoop, Limit, OpenLoop, Target, run_in_processes
from bench.load.workloads import DECODE, NAMES, PREPROCESS, STRUCTURED, Shape, Workload, workload

_SHOWN_ERRORS = 5
_STDOUT = "-"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Sends chat requests to an OpenAI-compatible server, reads every stream to its last byte, and shows the times "
        "as distributions. Exit code 1 if an answer is wrong, 2 if nobody listens."
    )
    parser.add_argument(
        "--url", required=True, type=url_flag, metavar="URL", help="the server, such as http://127.0.0.1:9000"
    )
    parser.add_argument(
        "--unix-socket",
        metavar="PATH",
        help="ask over this Unix-domain socket; of the URL only scheme, Host header and path then count",
    )
    parser.add_argument("--model", required=True, metavar="NAME", help="the model to ask for")
    parser.add_argument(
        "--workload",
        choices=NAMES,
        default="mixed",
        help="preprocess: long prompts, one token; decode: short prompts, long answers; mixed: both in turn; "
        "structured: answers that obey a JSON schema (%(default)s)",
    )
    pace = parser.add_mutually_exclusive_group()
    pace.add_argument(
        "--concurrency", type=positive, metavar="COUNT", help="closed loop: requests in flight (16, unless --rate)"
    )
    pace.add_argument(
        "--rate", type=above_zero, metavar="RATE", help="open loop: requests per second, at random times"
    )
    parser.add_argument("--requests", type=positive, metavar="COUNT", help="requests in all (without end)")
    parser.add_argument(
        "--seconds", type=above_zero, metavar="SECONDS", help="how long requests begin (30, unless --requests)"
    )
    parser.add_argument(
        "--warmup",
        type=not_negative,
        default=4,
        metavar="COUNT",
        help="first requests that do not count (%(default)s)",
    )
    parser.add_argument(
        "--prompts", type=positive, default=64, metavar="COUNT", help="different prompts, asked in turn (%(default)s)"
    )
    parser.add_argument(
        "--prompt-bytes",
        type=positive,
        metavar="BYTES",
        help=f"text of a prompt, about four bytes a token ({PREPROCESS.prompt_bytes} of preprocess, "
        f"{DECODE.prompt_bytes} of decode, {STRUCTURED.prompt_bytes} of structured)",
    )
    parser.add_argument(
        "--answer-tokens",
        type=positive,
        metavar="COUNT",
        help=f"max_tokens ({PREPROCESS.answer_tokens} of preprocess, {DECODE.answer_tokens} of the others)",
    )
    parser.add_argument(
        "--ignore-eos", action="store_true", help="answers of exactly --answer-tokens, by vLLM's field ignore_eos"
    )
    parser.add_argument(
        "--slo-ttft", type=above_zero, metavar="SECONDS", help="the time to the first token that counts as good"
    )
    parser.add_argument(
        "--slo-itl",
        type=above_zero,
        metavar="SECONDS",
        help="the mean time between an answer's tokens that counts as good",
    )
    parser.add_argument("--api-key", metavar="KEY", help="sent as a bearer token (the environment's OPENAI_API_KEY)")
    parser.add_argument(
        "--timeout", type=above_zero, default=600.0, metavar="SECONDS", help="for a whole answer (%(default)g)"
    )
    parser.add_argument(
        "--processes", type=positive, default=1, metavar="COUNT", help="that send the load (%(default)s)"
    )
    parser.add_argument(
        "--json", type=_report, metavar="FILE", help="write the report there as JSON; - is the standard output"
    )


def main(arguments: argparse.Namespace) -> int:
    asked = _workload(arguments)
    objectives = Objectives(arguments.slo_ttft, arguments.slo_itl)
    key = arguments.api_key or os.environ.get("OPENAI_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    target = Target(arguments.url, headers, arguments.timeout, arguments.unix_socket)
    try:
        asyncio.run(_connect(target))
    except OSError as error:
        flag = "--url" if target.unix_socket is None else "--unix-socket"
        print(f"bench load: {error}; start the server, or give another {flag}.", file=sys.stderr)
        return 2
    if arguments.warmup:
        run_in_processes(target, asked, ClosedLoop(min(arguments.warmup, 16)), Limit(arguments.warmup))
    seconds = arguments.seconds or (None if arguments.requests else 30.0)
    with _showing(arguments.requests) as show:
        found = run_in_processes(
            target, asked, _arrivals(arguments), Limit(arguments.requests, seconds), arguments.processes, show
        )
    made = report(found, objectives)
    if arguments.json == _STDOUT:
        json.dump(made.as_json(), sys.stdout, indent=1)
        print()
    else:
        print_report(made, objectives, Console())
        if arguments.json:
            arguments.json.write_text(json.dumps(made.as_json(), indent=1), encoding="utf-8")
    return 1 if made.all.wrong else 0


async def _connect(target: Target) -> None:
    """Raises OSError where nobody listens: then no request need be tried."""
    client = target.client()
    async with asyncio.timeout(target.timeout):
        await client.connect(1)
    client.close()


def _workload(arguments: argparse.Namespace) -> Workload:
    shapes = {
        kind: Shape(
            arguments.prompt_bytes or usual.prompt_bytes,
            arguments.answer_tokens or usual.answer_tokens,
            usual.messages,
            arguments.ignore_eos,
        )
        for kind, usual in (("preprocess", PREPROCESS), ("decode", DECODE), ("structured", STRUCTURED))
    }
    return workload(arguments.workload, arguments.model, shapes=shapes, prompts=arguments.prompts)


def _arrivals(arguments: argparse.Namespace) -> Arrivals:
    return OpenLoop(arguments.rate) if arguments.rate else ClosedLoop(arguments.concurrency or 16)


@contextmanager
def _showing(requests: int | None) -> Iterator[Callable[[running.Progress], None]]:
    """How far it is, on a terminal's last line."""
    columns = (SpinnerColumn(), BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("starting", total=requests)

        def show(progress: running.Progress) -> None:
            wrong = f", {progress.wrong} wrong" if progress.wrong else ""
            in_flight = progress.begun - progress.ended
            about = f"{progress.ended} answers{wrong}, {in_flight} in flight, {progress.tokens} tokens"
            bar.update(task, completed=progress.ended, description=about)

        yield show


def print_report(made: Report, objectives: Objectives, console: Console) -> None:
    parts = {"all": made.all} if len(made.kinds) < 2 else {**made.kinds, "all": made.all}
    for kind, part in parts.items():
        console.print(_table(kind, part, objectives))
        for error, count in list(part.errors.items())[:_SHOWN_ERRORS]:
            console.print(f"  {count} wrong: {error}", markup=False, highlight=False)
    about = (
        f"{made.seconds:.1f} s; the load itself: {made.processes} process(es), {100 * made.cpu_share:.0f} % of a core"
    )
    console.print(about, highlight=False)
    for note in made.notes:
        console.print(note, style="bold", highlight=False)


def _table(kind: str, part: Part, objectives: Objectives) -> Table:
    right = part.requests - part.wrong
    rates = f"{part.requests_per_second:.1f} requests/s, {part.tokens_per_second:.0f} tokens/s"
    title = f"{kind}: {right} of {part.requests} answers right, {rates}"
    if objectives != Objectives():
        title += f", goodput {part.goodput:.1f} requests/s"
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("ms")
    for name in ("mean", "p50", "p90", "p99", "max", "count"):
        table.add_column(name, justify="right")
    for name, values in (
        ("to first token", part.ttft),
        ("between tokens", part.itl),
        ("whole answer", part.latency),
    ):
        if values is not None:
            table.add_row(name, *_cells(values))
    return table


def _cells(values: Distribution) -> list[str]:
    times = (values.mean, values.p50, values.p90, values.p99, values.max)
    return [*(f"{1000 * time:.2f}" for time in times), str(values.count)]


def _report(text: str) -> str | Path:
    return text if text == _STDOUT else written_file(text)


def url_flag(text: str) -> str:
    """Of a command line."""
    try:
        return check_url(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
