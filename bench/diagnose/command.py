"""`python -m bench diagnose`: its options, its progress, and where the report goes.

Exit code 1 if the verdict is undecided, 2 if the server cannot be asked or a setting is wrong, 130 after
Ctrl-C.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence

from bench.diagnose import engine_metrics, text
from bench.diagnose.diagnosis import Diagnosis, diagnose
from bench.diagnose.frontend import Frontend, find
from bench.diagnose.measured import Process, Step
from bench.diagnose.report import html
from bench.diagnose.run import Settings, Warm, default_processes, measure
from bench.diagnose.verdict import Kind
from bench.flags import positive, written_file
from bench.load.run import Target
from bench.load.workloads import PREPROCESS
from bench.served import KEY, base_url, chosen
from bench.status_line import StatusLine
from devtools.errors import DevError

_TIMEOUT = 600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Says whether the frontend of a serving stack, its engine or the load tool is the bottleneck: climbs the "
        "number of streams with long prompts and then with long answers, and watches the frontend's processes, "
        "threads and memory, the cores, the GPU and the engine's metrics. Run it on the frontend's machine, which "
        "must be free of other load. Exit code 1 if it cannot be decided, 2 if the server cannot be asked."
    )
    parser.add_argument("--url", required=True, metavar="URL", help="the frontend, such as http://127.0.0.1:9000")
    parser.add_argument("--model", metavar="NAME", help="the model to ask for (default: the only one that is served)")
    parser.add_argument("--api-key", metavar="KEY", help=f"the key that it takes (default: ${KEY})")
    parser.add_argument(
        "--metrics", metavar="URL", help="a page with vLLM's metrics, such as http://127.0.0.1:9401/metrics"
    )
    parser.add_argument(
        "--pid",
        type=positive,
        action="append",
        default=[],
        metavar="PID",
        help="a process of the frontend, with all below it, may be given several times (default: who listens on the "
        "URL's port)",
    )
    parser.add_argument(
        "--concurrency",
        type=_steps,
        default=[1, 8, 32, 128],
        metavar="N,N,…",
        help="numbers of streams, ascending (default: 1,8,32,128)",
    )
    parser.add_argument(
        "--seconds", type=_seconds, default=10.0, metavar="S", help="how long each step begins requests (%(default)g)"
    )
    parser.add_argument(
        "--prompt-bytes",
        type=positive,
        default=PREPROCESS.prompt_bytes,
        metavar="N",
        help="length of a long prompt (%(default)s; halved until the model takes it)",
    )
    parser.add_argument(
        "--answer-tokens", type=positive, default=128, metavar="N", help="length of a long answer (%(default)s)"
    )
    parser.add_argument(
        "--processes",
        type=positive,
        default=default_processes(),
        metavar="N",
        help="processes that send the load (%(default)s)",
    )
    parser.add_argument(
        "--report", type=written_file, default="diagnosis.html", metavar="FILE", help="the report (%(default)s)"
    )
    parser.add_argument("--json", type=written_file, metavar="FILE", help="the same for programs")


def main(given: argparse.Namespace) -> int:
    try:
        found = _diagnosis(given)
    except DevError as problem:
        print(f"bench diagnose: {problem}", file=sys.stderr)
        return 2
    print("\n".join(["", *text.conclusion(found)]), flush=True)
    try:
        given.report.write_text(html(found, time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())), encoding="utf-8")
        if given.json is not None:
            given.json.write_text(json.dumps(found.as_json(), indent=1) + "\n", encoding="utf-8")
    except OSError as problem:
        print(f"bench diagnose: cannot write {problem.filename}: {os.strerror(problem.errno or 0)}", file=sys.stderr)
        return 2
    print(f"\nWith the curves: {given.report}")
    return 1 if found.verdict.kind is Kind.UNDECIDED else 0


def _diagnosis(given: argparse.Namespace) -> Diagnosis:
    url = base_url(given.url)
    key = given.api_key or os.environ.get(KEY)
    model = chosen(url, given.model, key)
    if given.metrics is not None and "vllm:" not in engine_metrics.fetch(given.metrics):
        print(f"{given.metrics} has nothing of vLLM's yet; it may after the first request.", file=sys.stderr)
    frontend = find(url, given.pid)
    print(f"{model} at {url}\n{_watched(frontend)}", flush=True)
    settings = Settings(
        target=Target(url, {"Authorization": f"Bearer {key}"} if key else {}, _TIMEOUT),
        model=model,
        concurrency=given.concurrency,
        seconds=given.seconds,
        prompt_bytes=given.prompt_bytes,
        answer_tokens=given.answer_tokens,
        processes=given.processes,
        metrics_url=given.metrics,
    )
    warm: list[Warm] = []
    steps: list[Step] = []
    idle: Sequence[Process] = []
    progress = StatusLine()
    try:
        for news in measure(settings, frontend, progress):
            progress.clear()
            if isinstance(news, Warm):
                warm.append(news)
                print(text.warmed(news), flush=True)
            elif isinstance(news, Step):
                if news.regime not in {step.regime for step in steps}:
                    print(f"\n{news.regime}\n{text.HEADER}")
                steps.append(news)
                print(text.row(news), flush=True)
            else:
                idle = news
    finally:
        progress.clear()
    return diagnose(url, model, frontend.unseen, warm, steps, idle, os.cpu_count() or 1)


def _watched(frontend: Frontend) -> str:
    if not frontend.roots:
        return (
            f"The frontend's CPU is not seen: {frontend.unseen}. The verdict will be from latencies and metrics alone."
        )
    return f"The frontend's processes: {', '.join(map(str, sorted(frontend.pids())))}"


def _steps(words: str) -> list[int]:
    numbers = [positive(word) for word in words.split(",")]
    if numbers != sorted(set(numbers)):
        raise argparse.ArgumentTypeError(f"must ascend, such as 1,8,32, not {words!r}")
    return numbers


def _seconds(words: str) -> float:
    try:
        number = float(words)
    except ValueError:
        number = 0.0
    # Two samples of everything that is watched must fit in.
    if not 2 <= number < 1e6:
        raise argparse.ArgumentTypeError(f"must be a number of 2 at least, not {words!r}")
    return number
