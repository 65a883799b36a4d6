"""A gateway's streamed tokens, from Triton's socket to the client's, by a thread that needs no interpreter.

Optional: the gateway does the same without it. What each thing does is said in `_native.pyi`.
"""

from gateway_relay._native import (
    Outcome,
    ProtocolError,
    Question,
    Relay,
    ResponseParser,
    Stream,
    Telling,
    Upstreams,
    read_chat,
    read_head,
)

INTERFACE = 2
"""A number for each way in which the gateway has ever used a `Relay`: a gateway that knows another one goes without."""

__all__ = [
    "INTERFACE",
    "Outcome",
    "ProtocolError",
    "Question",
    "Relay",
    "ResponseParser",
    "Stream",
    "Telling",
    "Upstreams",
    "read_chat",
    "read_head",
]
