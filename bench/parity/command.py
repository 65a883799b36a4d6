"""`python -m bench parity`: its options, and what it prints.

Exit code 1 if an answer differs without an explanation, 2 if a server cannot be asked or a setting is wrong.
"""

import argparse
import json
import os
import sys

from bench.flags import written_file
from bench.parity import report
from bench.parity.client import Server
from bench.parity.run import Outcome, plan, run
from bench.parity.shape import Group
from bench.served import KEY, Unreachable, base_url, chosen
from bench.status_line import StatusLine

KEY_AGAINST = f"{KEY}_AGAINST"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Sends requests of every shape to two servers of OpenAI's API, one in flight, and compares text, "
        "finish reason, usage, log probabilities, errors and the format of streams. Both must serve the same model "
        "with the same engine arguments, prefix caching off; see docs/parity.md. Exit code 1 if an answer "
        "differs without an explanation, 2 if a server cannot be asked."
    )
    parser.add_argument("--url", required=True, metavar="A", help="the server in question")
    parser.add_argument("--against", required=True, metavar="B", help="the one that it is compared with")
    parser.add_argument("--model", metavar="NAME", help="the model's name (default: the only one that is served)")
    parser.add_argument("--model-against", metavar="NAME", help="its name at B, where that is another")
    parser.add_argument("--api-key", metavar="KEY", help=f"the key that A takes (default: ${KEY})")
    parser.add_argument(
        "--api-key-against", metavar="KEY", help=f"the key that B takes (default: ${KEY_AGAINST}, or that of A)"
    )
    parser.add_argument(
        "--only",
        action="append",
        type=_group,
        metavar="GROUP",
        help="only the requests of this group, may be given several times: " + ", ".join(Group),
    )
    parser.add_argument("--json", type=written_file, metavar="FILE", help="where to write what was found, for programs")


def main(given: argparse.Namespace) -> int:
    key = given.api_key or os.environ.get(KEY)
    key_against = given.api_key_against or os.environ.get(KEY_AGAINST) or key
    outcomes: list[Outcome] = []
    try:
        a = _server(given.url, given.model, key)
        b = _server(given.against, given.model_against or given.model, key_against)
        work = plan(a, b, given.only or tuple(Group))
        print(f"A: {a.model} at {a.url}\nB: {b.model} at {b.url}\n", flush=True)
        progress, count = StatusLine(), len(work.shapes)
        for outcome in run(work, lambda number, shape: progress.say(f"{number + 1}/{count} {shape.name} …")):
            outcomes.append(outcome)
            progress.clear()
            print("\n".join(report.row(outcome)), flush=True)
        print("\n".join(["", *report.summary(outcomes, work)]))
        if given.json is not None:
            found = json.dumps(report.as_json(outcomes, work), ensure_ascii=False, indent=1)
            given.json.write_text(found + "\n", encoding="utf-8")
    except Unreachable as problem:
        print(f"bench parity: {problem}", file=sys.stderr)
        return 2
    except OSError as problem:
        print(f"bench parity: cannot write {given.json}: {os.strerror(problem.errno or 0)}", file=sys.stderr)
        return 2
    return 1 if any(outcome.unexplained for outcome in outcomes) else 0


def _group(text: str) -> Group:
    try:
        return Group(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is none of the groups: {', '.join(Group)}") from None


def _server(url: str, model: str | None, key: str | None) -> Server:
    base = base_url(url)
    return Server(base, chosen(base, model, key), key)
