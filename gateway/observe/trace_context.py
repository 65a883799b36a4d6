"""W3C Trace Context: the headers `traceparent` and `tracestate`, read and passed on. Pure.

https://www.w3.org/TR/trace-context/, sections 3.2 and 3.3.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

# A later version may say more behind a dash; ff is none.
_TRACEPARENT = re.compile(rb"(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
# What a header of ours may hold; more than the 512 characters that must be passed on is not.
_TRACESTATE = re.compile(rb"[\x20-\x7e]{1,512}")


@dataclass(frozen=True, slots=True)
class TraceContext:
    """Where in whose trace a request stands. The ids are hexadecimal; `state` is the vendors' own."""

    trace_id: str
    span_id: str
    flags: int
    state: str = ""

    def headers(self) -> bytes:
        """The lines of a request's head, each with its end."""
        lines = f"traceparent: 00-{self.trace_id}-{self.span_id}-{self.flags:02x}\r\n"
        if self.state:
            lines += f"tracestate: {self.state}\r\n"
        return lines.encode()


def trace_context(headers: Iterable[tuple[bytes, bytes]]) -> TraceContext | None:
    """What a client sent; None where it is absent or invalid, which the specification says to take for absent."""
    parents: list[bytes] = []
    states: list[bytes] = []
    for name, value in headers:
        if name == b"traceparent":
            parents.append(value.strip(b" \t"))
        elif name == b"tracestate":
            states.append(value.strip(b" \t"))
    if len(parents) != 1 or not (match := _TRACEPARENT.fullmatch(parents[0])):
        return None
    version, trace_id, span_id, flags, rest = match.groups()
    if (version == b"00" and rest) or not trace_id.strip(b"0") or not span_id.strip(b"0"):
        return None
    state = b",".join(states)
    # Of the flags only the first is known, and an unknown one must not be passed on.
    is_sampled = int(flags, 16) & 1
    return TraceContext(
        trace_id.decode(), span_id.decode(), is_sampled, state.decode() if _TRACESTATE.fullmatch(state) else ""
    )
