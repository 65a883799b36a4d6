"""The engine's reasoning parser: a constraint begins behind the reasoning. Pure."""

from typing import Literal

ReasoningParser = Literal["deepseek_r1"]
"""By vLLM's name: it goes by `<think>` and `</think>`, as the parsers of most models do."""

OPENING, CLOSING = "<think>", "</think>"


def has_ended(prompt: str) -> bool:
    """What vLLM finds in a prompt where the request does not say it. Without a mark the reasoning is still to come."""
    return prompt.rfind(CLOSING) > prompt.rfind(OPENING)
