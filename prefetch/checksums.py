"""S3's full-object checksums: computed part by part, combined without a second read. Pure, in C from awscrt.

Amazon S3 user guide, "Checking object integrity": CRC64NVME, CRC32 and CRC32C can be those of the full object; a
composite checksum (`…-N`) is one of the parts' checksums and says nothing without their bounds.
"""

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from awscrt import checksums


@dataclass(frozen=True)
class Algorithm:
    name: str
    width: int  # bytes
    update: Callable[[Any, int], int]
    combine: Callable[[int, int, int], int]

    def text(self, crc: int) -> str:
        """As S3 writes it: base64 of the big-endian bytes."""
        return base64.b64encode(crc.to_bytes(self.width, "big")).decode()

    def joined(self, parts: list[tuple[int, int]]) -> int:
        """The checksum of the parts, each (CRC, length), one behind the other."""
        whole = 0
        for crc, length in parts:
            whole = self.combine(whole, crc, length)
        return whole


# In the order of preference.
ALGORITHMS = {
    "CRC64NVME": Algorithm("CRC64NVME", 8, checksums.crc64nvme, checksums.combine_crc64nvme),
    "CRC32": Algorithm("CRC32", 4, checksums.crc32, checksums.combine_crc32),
    "CRC32C": Algorithm("CRC32C", 4, checksums.crc32c, checksums.combine_crc32c),
}
# Where S3 gives none, parts are journalled with this one.
DEFAULT = ALGORITHMS["CRC64NVME"]


@dataclass(frozen=True)
class Expected:
    """What S3 says of the full object."""

    algorithm: Algorithm
    value: str  # base64


def expected(response: Mapping[str, Any]) -> Expected | None:
    """From the answer to HEAD or GET with `ChecksumMode=ENABLED`."""
    if response.get("ChecksumType") == "COMPOSITE":
        return None
    for name, algorithm in ALGORITHMS.items():
        value = response.get(f"Checksum{name}")
        if value and "-" not in value:
            return Expected(algorithm, value)
    return None
