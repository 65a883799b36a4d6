"""`python -m bench COMMAND`: the commands, one line each.

A command of several files is a package `bench.NAME` with a module `command.py`, which has
    add_arguments(parser: argparse.ArgumentParser) -> None    its flags; may set the parser's description and epilog
    main(arguments: argparse.Namespace) -> int                the exit code
and is imported only when it is the one that is asked for. A `DevError` that it raises is printed as its one sentence,
with exit code 1. A command of one file parses its own flags.
"""

import argparse
import importlib
import os
import runpy
import sys
from collections.abc import Sequence

from devtools.errors import DevError

_PACKAGES = {
    "load": "send a load to an OpenAI-compatible server: time to the first token, between tokens, goodput, errors",
    "diagnose": "is the frontend the bottleneck? of any OpenAI-compatible server",
    "parity": "ask two servers the same and show what differs",
    "compare": "what the gateway costs beside nginx and others, in one interleaved run",
    "egress": "what a token costs on tritonserver with and without batched egress",
}
_MODULES = {
    "large": "how long large requests keep the gateway's event loop from its other work",
    "logits": "what constraint masks cost per engine step",
    "metrics": "what a scrape of the metrics proxy costs",
    "prefetch": "how fast weights come from S3",
}


def main(arguments: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    name = _parser().parse_args(words[:1]).command
    if name in _MODULES:
        sys.argv = [f"python -m bench {name}", *words[1:]]
        runpy.run_module(f"bench.{name}", run_name="__main__")
        return 0
    command = importlib.import_module(f"bench.{name}.command")
    parser = argparse.ArgumentParser(prog=f"python -m bench {name}", description=f"{_PACKAGES[name].capitalize()}.")
    command.add_arguments(parser)
    try:
        return int(command.main(parser.parse_args(words[1:])))
    except DevError as error:
        print(f"bench {name}: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        if error.filename is None:
            raise
        # Such as a file to write to, in a folder that is not there.
        print(f"bench {name}: {error.filename}: {os.strerror(error.errno or 0)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Measures and checks; see docs/performance.md.", allow_abbrev=False
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, about in (_PACKAGES | _MODULES).items():
        commands.add_parser(name, help=about, add_help=False)
    return parser


if __name__ == "__main__":
    sys.exit(main())
