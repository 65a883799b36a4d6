"""Values of the commands' flags: what is wrong with one is said in its own words, with exit code 2."""

import argparse
import os
from pathlib import Path

from service_base.files import unwritable


def positive(text: str) -> int:
    return _whole(text, 1)


def not_negative(text: str) -> int:
    return _whole(text, 0)


def above_zero(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"must be above 0, a number, not {text!r}")
    return number


def written_file(text: str) -> Path:
    """One that is written in the end: that it cannot be is told before anything is measured."""
    file = Path(text)
    if file.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a folder; give a file")
    if file.exists():
        if not os.access(file, os.W_OK, effective_ids=True):
            raise argparse.ArgumentTypeError(f"{text} cannot be written; give another file")
    elif why := unwritable(file.parent):
        raise argparse.ArgumentTypeError(f"{why}, or give another file")
    return file


def _whole(text: str, least: int) -> int:
    if not text.isascii() or not text.isdecimal() or (number := int(text)) < least:
        raise argparse.ArgumentTypeError(f"must be {least} at least, a whole number, not {text!r}")
    return number
