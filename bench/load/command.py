"""`python -m bench load`: flags, progress on the terminal, the report as a table or as JSON.

Exit code 1 if an answer is wrong, 2 if the server cannot be asked or refuses everything, 130 after Ctrl-C.
"""

import argparse
import asyncio
import json
import os
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.flags import above_zero, not_negative, positive, written_file
from bench.load.client import check_url
from bench.load.refusal import refused
from bench.load.report import Distribution, Objectives, Part, Report, report
from bench.load.run import Arrivals, ClosedLoop, Limit, OpenLoop, Progress, Run, Target, run_in_processes
from bench.load.workloads import DECODE, NAMES, PREPROCESS, STRUCTURED, Shape, Workload, workload
from bench.served import KEY, Unreachable, base_url, chosen
from bench.status_line import StatusLine

_SHOWN_ERRORS = 5
# Answers of which one at least has to be no refusal.
_FIRST = 16
_STDOUT = "-"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Sends chat requests to an OpenAI-compatible server, reads every stream to its last byte, and shows the times "
        "as distributions. Ctrl-C ends it with what has been measured so far. Exit code 1 if an answer is wrong, 2 if "
        "nobody listens or everything is refused, 130 after Ctrl-C."
    )
    parser.add_argument(
        "--url", required=True, type=url_flag, metavar="URL", help="the server, such as http://127.0.0.1:9000"
    )
    parser.add_argument(
        "--unix-socket",
        metavar="PATH",
        help="ask over this Unix-domain socket; of the URL only scheme, Host header and path then count",
    )
    parser.add_argument("--model", metavar="NAME", help="the model to ask for (default: the only one that is served)")
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
    parser.add_argument("--api-key", metavar="KEY", help=f"sent as a bearer token (default: ${KEY})")
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
    key = arguments.api_key or os.environ.get(KEY)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    target = Target(arguments.url, headers, arguments.timeout, arguments.unix_socket)
    try:
        found = _measured(arguments, target, key)
    except OSError as error:
        flag = "--url" if target.unix_socket is None else "--unix-socket"
        print(f"bench load: {error}; start the server, or give another {flag}.", file=sys.stderr)
        return 2
    except Unreachable as problem:
        print(f"bench load: {problem}", file=sys.stderr)
        return 2
    if found.is_interrupted:
        about = "what was measured until then counts" if found.outcomes else "nothing was measured"
        print(f"bench load: interrupted; {about}.", file=sys.stderr)
        if not found.outcomes:
            return 130
    objectives = Objectives(arguments.slo_ttft, arguments.slo_itl)
    made = report(found, objectives)
    if arguments.json == _STDOUT:
        json.dump(made.as_json(), sys.stdout, indent=1)
        print()
    else:
        print_report(made, objectives, Console())
        if arguments.json:
            arguments.json.write_text(json.dumps(made.as_json(), indent=1), encoding="utf-8")
    if found.is_interrupted:
        return 130
    return 1 if made.all.wrong else 0


def _measured(arguments: argparse.Namespace, target: Target, key: str | None) -> Run:
    """Raises OSError where nobody listens, Unreachable where everything is refused."""
    asyncio.run(_connect(target))
    model = arguments.model
    if model is None:
        if target.unix_socket is not None:
            raise Unreachable("give --model: over a Unix-domain socket the served ones are not asked for.")
        model = chosen(target.url, None, key)
    asked = _workload(arguments, model)
    line = StatusLine()

    def load(about: str, arrivals: Arrivals, limit: Limit, processes: int) -> Run:
        began = time.monotonic()
        first = min(_FIRST, limit.requests or _FIRST)

        def watch(progress: Progress) -> None:
            if progress.refusal is not None and progress.refused == progress.ended >= first:
                raise refused(progress.refusal, target, model, key)
            line.say(f"{about}: {_so_far(progress, limit, time.monotonic() - began)}")

        line.say(f"{about}: starting")
        try:
            return run_in_processes(target, asked, arrivals, limit, processes, watch)
        finally:
            line.clear()

    if arguments.warmup:
        warm = load("warm-up", ClosedLoop(min(arguments.warmup, 16)), Limit(arguments.warmup), 1)
        if warm.is_interrupted:
            return Run(is_interrupted=True)
    seconds = arguments.seconds or (None if arguments.requests else 30.0)
    return load(arguments.workload, _arrivals(arguments), Limit(arguments.requests, seconds), arguments.processes)


async def _connect(target: Target) -> None:
    """Raises OSError where nobody listens: then no request need be tried."""
    client = target.client()
    async with asyncio.timeout(target.timeout):
        await client.connect(1)
    client.close()


def _workload(arguments: argparse.Namespace, model: str) -> Workload:
    shapes = {
        kind: Shape(
            arguments.prompt_bytes or usual.prompt_bytes,
            arguments.answer_tokens or usual.answer_tokens,
            usual.messages,
            arguments.ignore_eos,
        )
        for kind, usual in (("preprocess", PREPROCESS), ("decode", DECODE), ("structured", STRUCTURED))
    }
    return workload(arguments.workload, model, shapes=shapes, prompts=arguments.prompts)


def _arrivals(arguments: argparse.Namespace) -> Arrivals:
    return OpenLoop(arguments.rate) if arguments.rate else ClosedLoop(arguments.concurrency or 16)


def _so_far(progress: Progress, limit: Limit, elapsed: float) -> str:
    of = f" of {limit.requests}" if limit.requests else ""
    wrong = f", {progress.wrong} wrong" if progress.wrong else ""
    in_flight = progress.begun - progress.ended
    time_left = f", {max(limit.seconds - elapsed, 0):.0f} s left" if limit.seconds else f", {elapsed:.0f} s"
    return f"{progress.ended}{of} answers{wrong}, {in_flight} in flight, {progress.tokens} tokens{time_left}"


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
    """Of a command line: the base URL."""
    try:
        return base_url(check_url(text))
    except (ValueError, Unreachable) as error:
        raise argparse.ArgumentTypeError(str(error)) from None
