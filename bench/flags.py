"""Values of the commands' flags: what is wrong with one is said in its own words, with exit code 2."""

import argparse


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


def _whole(text: str, least: int) -> int:
    if not text.isascii() or not text.isdecimal() or (number := int(text)) < least:
        raise argparse.ArgumentTypeError(f"must be {least} at least, a whole number, not {text!r}")
    return number
