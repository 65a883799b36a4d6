"""`python -m gateway check`: the command line, what is shown on the way, and the exit code.

0: all that the table of fields says must work there works. 1: something does not, or a model could not be asked.
2: a wrong setting. 130: interrupted.
"""

import asyncio
import os
import shutil
import sys
from collections.abc import Sequence

import orjson

from gateway.check.report import LEGEND, as_json, table
from gateway.check.run import ModelReport, check_triton
from gateway.settings import Settings, parser
from service_base import logs
from service_base.errors import SettingsError
from service_base.settings import read

_DESCRIPTION = (
    "Checks what works at each Triton of the settings: sends requests for a few tokens through the gateway's own code, "
    "without listening on a port, and prints for each model and request field what was seen. Exit code 0: all that "
    "should work there does; 1: something does not, or a model is not ready; 2: a wrong setting."
)
# Columns, where the output is no terminal.
_WIDTH_OF_FILES = 140


def main(arguments: Sequence[str]) -> int:
    flags = parser("python -m gateway check", _DESCRIPTION)
    flags.add_argument("--json", action="store_true", help="print JSON instead of tables")
    try:
        given = flags.parse_args(arguments)
        prints_json: bool = given.json
        del given.json
        settings = read(Settings, vars(given))
        logs.configure("error")
        reports = asyncio.run(_check(settings, prints_tables=not prints_json))
    except SettingsError as error:
        print(f"gateway check: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        _show_progress("")
        print("gateway check: interrupted.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read the tables has gone; nor may the interpreter's last flush complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    if prints_json:
        print(orjson.dumps(as_json(reports), option=orjson.OPT_INDENT_2).decode())
    return 0 if all(report.is_sound for report in reports) else 1


async def _check(settings: Settings, *, prints_tables: bool) -> list[ModelReport]:
    reports: list[ModelReport] = []

    def done(report: ModelReport) -> None:
        _show_progress("")
        reports.append(report)
        if prints_tables:
            print(table(report, shutil.get_terminal_size((_WIDTH_OF_FILES, 0)).columns), flush=True)

    for url in settings.triton:
        _show_progress(f"waiting for {url}")
        await check_triton(settings, url, _show_progress, done)
    if prints_tables and any(report.verdicts for report in reports):
        print(LEGEND)
    return reports


def _show_progress(text: str) -> None:
    """On one line, that the next text writes over; nothing where it is no terminal."""
    if sys.stderr.isatty():
        columns = shutil.get_terminal_size().columns
        print(f"\r\x1b[K{text[: columns - 1]}", end="", file=sys.stderr, flush=True)
