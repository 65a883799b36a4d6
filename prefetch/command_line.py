"""The command line: which command, with which arguments. Exit code 2 for a wrong one or a wrong setting."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from prefetch import commands
from prefetch.errors import JobError
from prefetch.settings import SECRETS, Settings, load
from service_base.errors import SettingsError
from service_base.flags import Parser, add_flags

_PLACE = ("target", "state")
_COPYING = (
    "s3_endpoint",
    "s3_region",
    "concurrency",
    "bytes_per_second",
    "part_bytes",
    "attempts",
    "reserve_bytes",
    "high_watermark",
    "low_watermark",
)
_TRITON = ("triton", "triton_repository", "triton_template", "triton_load_timeout")


def parser() -> argparse.ArgumentParser:
    epilog = (
        "A command has the flags of the settings that it concerns. "
        + Settings.epilog("a comma-separated list where it may be repeated")
        + f" Secrets ({', '.join(SECRETS)}) have no flags, since everybody on the machine can read those. S3 "
        "credentials come from where AWS's SDKs find them."
    )
    top = Parser(
        prog="python -m prefetch",
        description="Copies the weights of announced models from S3 to a shared file system, verified and published "
        "whole, before anyone deploys them.",
        epilog=epilog,
        allow_abbrev=False,
    )
    known = top.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=Parser)

    def command(name: str, help_text: str, settings: Sequence[str]) -> argparse.ArgumentParser:
        made = known.add_parser(name, help=help_text, description=f"{help_text}.", epilog=epilog, allow_abbrev=False)
        add_flags(made, Settings, settings)
        return made

    command(
        "serve",
        "Run the service: the webhook, the queue, the page",
        [n for n in Settings.model_fields if n not in SECRETS],
    )
    pull = command("pull", "Copy a model from S3 now, with a progress bar", (*_PLACE, *_COPYING, *_TRITON))
    pull.add_argument("--to", dest="target", metavar="DIR", help="the same as --target")
    pull.add_argument("--quiet", action="store_true", help="no progress bar")
    announce = command("announce", "Announce a model to a running service", ("tokens_file",))
    announce.add_argument("--url", default="http://127.0.0.1:9500", help="the service (default: %(default)s)")
    announce.add_argument("--priority", type=int, default=0, help="the higher is copied first (default: 0)")
    for one in (pull, announce):
        one.add_argument("source", metavar="s3://BUCKET/PREFIX/", help="the folder of the model's files")
        one.add_argument("--model", help="the model's name (default: the last but one folder of the source)")
        one.add_argument("--version", help="the version's name (default: the last folder of the source)")
        one.add_argument("--manifest", type=Path, metavar="FILE", help='JSON: {"files": {PATH: {"size", "sha256"}}}')
        one.add_argument("--pin", action="store_true", help="never remove it to make room")
    command("ls", "List what is published, and why it is kept", (*_PLACE, *_TRITON))
    for name, help_text in (
        ("pin", "Never remove a version to make room"),
        ("unpin", "Let a version be removed again to make room"),
        ("verify", "Read published files again and compare them with READY.json"),
    ):
        one = command(name, help_text, ("target",))
        one.add_argument("model", metavar="MODEL", nargs="?" if name == "verify" else None, help="a published model")
        one.add_argument("version", metavar="VERSION", nargs="?", help="its version (default: what 'current' names)")
    watermarks = ("high_watermark", "low_watermark", "staging_seconds")
    gc = command(
        "gc", "Remove what the watermarks ask for, least recently used first", (*_PLACE, *watermarks, *_TRITON)
    )
    gc.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    return top


def main(given: Sequence[str] | None = None) -> int:
    try:
        arguments = parser().parse_args(given)
        names = {"config", *Settings.model_fields}
        settings = load({name: value for name, value in vars(arguments).items() if name in names})
        if arguments.command == "serve":
            from prefetch import service

            return service.run(settings)
        run = getattr(commands, arguments.command)
        code: int = run(arguments, settings)
        return code
    except SettingsError as error:
        print(f"prefetch: {error}", file=sys.stderr)
        return 2
    except JobError as error:
        print(f"prefetch: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"prefetch: {error.filename or ''}: {error.strerror or error}".replace(": : ", ": "), file=sys.stderr)
        return 1
