"""The command `python -m logits_processors`: builds catalogues, and shows what a file holds."""

import argparse
import sys
import time
from pathlib import Path

from logits_processors._native import Catalog, CatalogError
from logits_processors.catalogs import SUFFIX, BuildError, build, load_tokenizer

_PROGRESS_INTERVAL = 0.2
"""Seconds between two looks of the line that shows how far a build is."""


class Progress:
    """One line on a terminal that is written over; nothing elsewhere."""

    def __init__(self) -> None:
        self._is_shown = sys.stderr.isatty()
        self._last = 0.0

    def show(self, entries: int, part: float) -> None:
        if self._is_shown and time.monotonic() - self._last > _PROGRESS_INTERVAL:
            self._last = time.monotonic()
            print(f"\r{part:4.0%}, {entries:,} entries", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._is_shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def main() -> int:
    arguments = _parser().parse_args()
    try:
        if arguments.command == "build":
            _build(arguments.entries, arguments.tokenizer, arguments.output)
        else:
            _show(arguments.file)
    except BuildError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Interrupted; nothing was written.", file=sys.stderr)
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m logits_processors", description="Catalogues for constrained outputs."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    build_command = commands.add_parser("build", help="make a catalogue from a text file")
    build_command.add_argument("entries", type=Path, help="text file, UTF-8, one entry a line")
    build_command.add_argument(
        "--tokenizer", type=Path, required=True, metavar="FOLDER", help="the model's folder, with its tokenizer"
    )
    build_command.add_argument(
        "--output", type=Path, required=True, metavar=f"NAME{SUFFIX}", help="the catalogue; requests name it NAME"
    )
    show_command = commands.add_parser("show", help="say what is in a catalogue's file")
    show_command.add_argument("file", type=Path)
    return parser


def _build(entries: Path, tokenizer: Path, output: Path) -> None:
    begin = time.monotonic()
    backend = load_tokenizer(tokenizer)
    progress = Progress()
    try:
        built = build(entries, backend, output, progress.show)
    finally:
        progress.end()
    if built.altered is not None:
        entry, text = built.altered
        print(
            f"Note: the tokenizer makes another text of the tokens of an entry: of {entry!r} it makes {text!r}. "
            "Outputs will have the latter.",
            file=sys.stderr,
        )
    left_out = [f"{built.duplicates:,} duplicates"] if built.duplicates else []
    left_out += [f"{built.empty_lines:,} empty lines"] if built.empty_lines else []
    print(
        f"{output}: {built.entries:,} entries, {built.size:,} bytes, {time.monotonic() - begin:.1f} s"
        + (f"; left out: {' and '.join(left_out)}" if left_out else "")
    )


def _show(file: Path) -> None:
    try:
        catalog = Catalog(str(file))
    except CatalogError as error:
        raise BuildError(f"{file} {error}.") from error
    print(
        f"{file}: {catalog.entries:,} entries, {catalog.size:,} bytes, a vocabulary of {catalog.vocabulary:,} tokens, "
        f"tokenizer {catalog.fingerprint.hex()[:16]}"
    )


if __name__ == "__main__":
    sys.exit(main())
