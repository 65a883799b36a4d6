"""Constraint masks for vLLM's whole batch at once. Importing this package starts nothing and imports no vLLM: the class
is loaded when it is asked for, as vLLM does with `logits_processors:ConstraintProcessor`."""

from typing import Any


def __getattr__(name: str) -> Any:
    if name == "ConstraintProcessor":
        from logits_processors.processor import ConstraintProcessor

        return ConstraintProcessor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
