"""The command line of ./dev: what each command takes, and how its failures are shown."""

import argparse
import errno
import re
import signal
import sys
from pathlib import Path
from types import FrameType
from urllib.parse import urlsplit

from devtools import docs, lock, testing, up
from devtools.errors import DevError
from devtools.paths import home
from devtools.stack import Ports

_UP_EXAMPLE = """\
A Triton that already runs:
  ./dev up --engine http://127.0.0.1:8000 --config gateway.yaml
with, in gateway.yaml (every setting: docs/gateway.md):
  models:
    - triton_model: llama
      tokenizer: /models/llama-3.1-8b-instruct
"""
_TEST_EXAMPLE = """\
For example the unit tests whose name has "stream":
  ./dev test tests/unit -k stream
"""


def _parsers() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """The parser of the whole command line, and that of each command."""
    parser = argparse.ArgumentParser(
        prog="./dev",
        description="Starts the stack, its tests and its linters. Everything that they need is made on first use, "
        f"under {home()} (TVS_HOME moves it), from what pip can download.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    start = commands.add_parser(
        "up",
        help="start the stack in the foreground; Ctrl-C stops it",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=_UP_EXAMPLE,
    )
    start.add_argument(
        "--engine",
        default="triton",
        metavar="mock|URL",
        help="mock: a stand-in without torch and vLLM, ready in seconds; URL: a Triton that already runs, whose "
        "models --config names (default: a real tritonserver with vLLM on the CPU)",
    )
    start.add_argument("--config", type=Path, metavar="FILE", help="YAML file with settings of the gateway")
    for flag, default, what in (
        ("--port", Ports.gateway, "the gateway"),
        ("--triton-http-port", Ports.triton_http, "Triton's HTTP, or the mock engine"),
        ("--triton-grpc-port", Ports.triton_grpc, "Triton's gRPC"),
        ("--triton-metrics-port", Ports.triton_metrics, "Triton's metrics"),
        ("--metrics-port", Ports.metrics_proxy, "the metrics proxy"),
    ):
        start.add_argument(flag, type=_port, default=default, metavar="N", help=f"port of {what} (default: {default})")

    test = commands.add_parser(
        "test",
        help="set up and run the tests; other arguments go to pytest",
        usage="./dev test [-h] [--containers | --long | --soak] [PYTEST ARGUMENT ...]",
        description="Sets up and runs the tests. Every other argument goes to pytest.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=_TEST_EXAMPLE,
        # pytest's --co is no short form of --containers.
        allow_abbrev=False,
    )
    tier = test.add_mutually_exclusive_group()
    for name, what in testing.TIERS.items():
        tier.add_argument(
            f"--{name}", dest="tier", action="store_const", const=name, help=f"instead, the tests that {what}"
        )
    commands.add_parser("python", help="the Python of the tests, for python -m bench, gateway, …; takes its arguments")
    commands.add_parser("lint", help="run ruff and mypy")
    commands.add_parser("setup", help="make everything that up and test need, and start nothing")
    commands.add_parser("docs", help="write docs/fields.md from the gateway's table of fields")
    commands.add_parser("lock", help="renew locks/ within the bounds of pyproject.toml")
    return parser, commands.choices


def _port(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"must be a port from 1 to 65535, not {text!r}")
    return int(text)


def _run(arguments: argparse.Namespace, rest: list[str]) -> int:
    match arguments.command:
        case "up":
            ports = Ports(
                arguments.port,
                arguments.triton_http_port,
                arguments.triton_grpc_port,
                arguments.triton_metrics_port,
                arguments.metrics_port,
            )
            return up.up(_engine(arguments.engine), ports, arguments.config)
        case "test":
            return testing.run_tests(arguments.tier, rest)
        case "python":
            testing.run_python(rest)
        case "lint":
            return testing.lint()
        case "setup":
            testing.set_up()
        case "docs":
            return docs.write()
        case "lock":
            lock.renew()
    return 0


def _engine(value: str) -> str:
    if value in ("triton", "mock") or is_base_url(value):
        return value
    raise DevError(f"--engine takes mock or the base URL of a Triton, such as http://127.0.0.1:8000, not {value!r}.")


def is_base_url(value: str) -> bool:
    """Whether this is what the gateway takes for a Triton: scheme, host, port and perhaps a path."""
    try:
        url = urlsplit(value)
        host = (url.hostname or "").encode("idna")
        url.port  # noqa: B018 - raises for one that is none
    except ValueError:
        return False
    return url.scheme in ("http", "https") and bool(host) and not re.search(r"[^!-~]|[@?#]", value)


def main() -> int:
    def terminated(number: int, frame: FrameType | None) -> None:
        # As an exception, so that whatever runs is ended on the way out.
        raise SystemExit(128 + number)

    parser, commands = _parsers()
    words = sys.argv[1:]
    if not words:
        parser.print_help(sys.stderr)
        return 2
    if words[:1] == ["python"]:
        # All else is for it, -h too.
        arguments, rest = parser.parse_args(words[:1]), words[1:]
    else:
        arguments, rest = parser.parse_known_args(words)
    if rest and arguments.command not in ("python", "test"):
        commands[arguments.command].error(f"unrecognized arguments: {' '.join(rest)}")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, terminated)
    try:
        return _run(arguments, rest)
    except DevError as error:
        print(f"./dev: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        print(f"./dev: The disk is full; make room in {home()}, or set TVS_HOME to another folder.", file=sys.stderr)
    return 1
