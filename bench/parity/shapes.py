"""All requests, in the order of their groups. Pure."""

from bench.parity.chat_shapes import chat_shapes
from bench.parity.sample import Sample
from bench.parity.shape import Group, Shape
from bench.parity.text_shapes import text_shapes
from bench.parity.tool_shapes import tool_shapes


def shapes(sample: Sample) -> list[Shape]:
    """Without the model's name. Greedy and short unless the shape is about that."""
    every = [*chat_shapes(sample), *text_shapes(sample), *tool_shapes()]
    return sorted(every, key=lambda shape: list(Group).index(shape.group))
