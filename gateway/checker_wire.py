"""What goes over the pipes of the checker: messages of four bytes of length (big-endian) and that many bytes.

Requests and answers are JSON; `OVERRUN` and `DIED` stand in for an answer that there is none of.
"""

from typing import BinaryIO, Final

HEAD: Final = 4
OVERRUN: Final = b"overrun"
"""The worker used up its CPU time on the request."""
DIED: Final = b"died"
"""The worker ended over the request in any other way."""


def message(body: bytes) -> bytes:
    return len(body).to_bytes(HEAD, "big") + body


def read(source: BinaryIO) -> bytes | None:
    """The next message; None when the other end is gone, be it in the middle of one."""
    head = source.read(HEAD)
    if len(head) < HEAD:
        return None
    size = int.from_bytes(head, "big")
    body = source.read(size)
    return body if len(body) == size else None
