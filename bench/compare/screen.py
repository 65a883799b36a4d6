"""What a comparison shows: on the screen, and between the marks of a page."""

import argparse
import os
import platform
import resource
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table as RichTable

from bench.compare import tables
from bench.flags import written_file

_WIDTH = 160
"""Of what is no terminal."""


def raise_file_limit() -> None:
    """For this process and all that it starts."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def machine() -> str:
    """What it was measured on, in a line."""
    kinds = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if "model name" in line
    ]
    cores = f"{os.cpu_count()} cores ({kinds[0] if kinds else platform.machine()})"
    return f"{cores}, Linux {platform.release().partition('-')[0]}, CPython {platform.python_version()}"


def show(about: str, shown: Sequence[tables.Table]) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH)
    console.print(about, *map(_drawn, shown), highlight=False)


def add_into(parser: argparse.ArgumentParser, name: str = "measured") -> None:
    """The flag of the page that `write_into` writes to."""

    def page(text: str) -> Path:
        file = written_file(text)
        try:
            tables.put_into(file.read_text(encoding="utf-8"), "", name)
        except OSError as error:
            raise argparse.ArgumentTypeError(f"{text} cannot be read: {error.strerror}") from None
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text} {error}") from None
        return file

    parser.add_argument(
        "--into",
        type=page,
        metavar="FILE",
        help="write the tables into this page, between its marks, as in docs/performance.md",
    )


def write_into(page: Path, about: str, shown: Sequence[tables.Table], name: str = "measured") -> None:
    measured = "\n".join([f"{about}\n", *map(tables.markdown, shown)])
    page.write_text(tables.put_into(page.read_text(encoding="utf-8"), measured, name), encoding="utf-8")


def _drawn(table: tables.Table) -> RichTable:
    made = RichTable(title=table.title, title_justify="left")
    for number, name in enumerate(table.header):
        made.add_column(name, justify="right" if number else "left")
    for row in table.rows:
        made.add_row(*row)
    return made
