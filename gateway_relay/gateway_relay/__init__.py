"""A gateway's streamed tokens, from Triton's socket to the client's, by a thread that needs no interpreter.

Optional: the gateway does the same without it. What each thing does is said in `_native.pyi`.
"""

from gateway_relay._native import Outcome, Relay, Stream

__all__ = ["Outcome", "Relay", "Stream"]
