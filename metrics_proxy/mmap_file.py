"""One file of a Prometheus multiprocess directory: bytes to values. No I/O.

The format, as prometheus_client's `mmap_dict.py` writes it, in the machine's byte order:

    int32 used, 4 bytes of padding; then up to byte `used`, entry by entry:
    int32 length of the key · key · blanks up to a multiple of 8 bytes, at least one · float64 value · float64 timestamp

A key is the JSON `[metric, sample, {label: value}, help]`. The timestamp is 0 but for gauges of the mode mostrecent,
once they are set. A file is written while it is read: an entry is complete before `used` covers it, and a file that was
only just created is shorter than 8 bytes or has `used` 0.
"""

import json
import re
import struct
from dataclasses import dataclass

HEADER = 8
_INT = struct.Struct("i")
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")


class BadFile(Exception):
    """Why a file cannot be read: `reason` is one word, the text a sentence's end."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


@dataclass(frozen=True)
class Key:
    """`labels` in the order of the file."""

    metric: str
    sample: str
    labels: tuple[tuple[str, str], ...]
    help: str


class Layout:
    """Which keys stand where in a file. Files of one program have the same few layouts, and a layout is only ever
    extended; so it is found once, and then all values are read in one step."""

    def __init__(self, data: bytes, used: int) -> None:
        """Raises `BadFile` unless `data[:used]` holds complete entries."""
        self.used = used
        self.keys: list[Key] = []
        # Without alignment, and with the machine's byte order.
        form = [f"={HEADER}x"]
        at = HEADER
        while at < used:
            if at + 4 > used:
                raise BadFile("truncated", "it ends inside an entry")
            (length,) = _INT.unpack_from(data, at)
            padded = length + 8 - (length + 4) % 8
            if length <= 0 or at + 4 + padded + 16 > used:
                raise BadFile("corrupt", f"the entry at byte {at} is longer than the file")
            self.keys.append(_key(data[at + 4 : at + 4 + length], at))
            form.append(f"{4 + padded}sdd")
            at += 4 + padded + 16
        self._struct = struct.Struct("".join(form))
        self._raw_keys = self._struct.unpack_from(data)[::3]

    def values(self, data: bytes) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
        """Values and timestamps in the order of `keys`; None if these bytes have another layout."""
        entries = self._struct.unpack_from(data)
        if entries[::3] != self._raw_keys:
            return None
        return entries[1::3], entries[2::3]


def used_bytes(data: bytes) -> int:
    """How much of a file counts; 0 if nothing is in it yet. Raises `BadFile`."""
    if len(data) < HEADER:
        return 0
    (used,) = _INT.unpack_from(data)
    if used in (0, HEADER):
        return 0
    if used < HEADER or used % 8:
        raise BadFile("foreign", "it does not begin like a file of prometheus_client")
    if used > len(data):
        raise BadFile("truncated", f"it should have {used} bytes and has {len(data)}")
    return int(used)


def _key(raw: bytes, at: int) -> Key:
    try:
        metric, sample, labels, help_text = json.loads(raw)
        names = (metric, sample, *labels)
        # What could not stand on a page. Lone surrogates cannot be encoded.
        if not all(map(_NAME.fullmatch, names)) or any(":" in label for label in labels):
            raise ValueError
        "".join((help_text, *labels.values())).encode()
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise BadFile("corrupt", f"the key at byte {at} is none of prometheus_client's") from None
    return Key(metric, sample, tuple(labels.items()), help_text)
