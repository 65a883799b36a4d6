"""The structural tag that keeps calls valid where the model may also just answer. Pure.

Free text, until a mark of the family begins a call; from there on only a function of the request can follow, with
arguments by its schema. xgrammar alone enforces it (`gateway.translate.schema_check`).
"""

from typing import Any

from gateway.openai.json_text import dumps
from gateway.output.tools.frame import CallFrame
from gateway.translate.structured import Constraint
from gateway.translate.tool_choice import NO_PARAMETERS, ToolUse


def call_tag(use: ToolUse, frame: CallFrame) -> Constraint:
    """For the family that writes calls in this frame; where `use` binds the answer, a call has to come first."""
    calls = [
        _tag(
            frame.before.replace("{name}", name),
            {"type": "json_schema", "json_schema": schema or NO_PARAMETERS},
            frame.after,
        )
        for name, schema in use.schemas.items()
        if use.named in (None, name)
    ]
    if frame.section:
        opening, closing = frame.section
        several = {
            "type": "tags_with_separator",
            "tags": calls,
            "separator": frame.separator,
            "at_least_one": True,
            "stop_after_first": use.single,
        }
        calls = [_tag(opening, several, closing)]
    free_text = {
        "type": "triggered_tags",
        "triggers": [frame.trigger],
        "tags": calls,
        "at_least_one": use.is_bound,
        "stop_after_first": use.single,
    }
    return Constraint("structural_tag", dumps({"type": "structural_tag", "format": free_text}).decode(), "tools")


def _tag(begin: str, content: dict[str, Any], end: str) -> dict[str, Any]:
    return {"type": "tag", "begin": begin, "content": content, "end": end}
