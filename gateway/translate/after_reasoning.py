"""One grammar for thinking and answer: free text up to the closing mark, then what the request's constraint allows.

For engines whose grammar begins with the first token, whatever the model does first (Triton's stock backend). Where the
prompt has not opened the thinking, the model may think or not. Pure.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from gateway.openai.json_text import dumps
from gateway.output.reasoning import ReasoningMarks
from gateway.translate.structured import Constraint

_ANY_OBJECT = {"type": "object"}
_SPACE: Final = r"[ \t\r\n]{0,8}"
"""Beside the marks. Without a bound a model may go on with white space to the end of its tokens."""
_JSON_SPACING: Final = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
"""To guidance: JSON on one line, for the same reason. The engine's own `disable_any_whitespace` does not reach a schema
inside a grammar."""
_SLASH_OR_ESCAPE: Final = re.compile(r"\\.|/", re.DOTALL)


def after_reasoning(
    constraint: Constraint, marks: ReasoningMarks, opened: bool, backend: str, added_tokens: Mapping[str, int] | None
) -> Constraint | None:
    """`constraint` as `schema_check.check` returned it for the grammar backend; `opened`: the prompt ends inside the
    thinking; `added_tokens`: the ids of the tokens that the vocabulary has been given beside its own, by their text,
    None where unknown.

    `None` where that backend cannot express it. To guidance a mark that is such a token is no text, and a text cannot
    be written with it; so it has to be known which the marks are.
    """
    value = _ANY_OBJECT if constraint.kind == "json_object" else constraint.engine_value()[constraint.kind]
    if backend == "guidance" and added_tokens is not None:
        answer = _lark(constraint.kind, value)
        if answer is None:
            return None
        return Constraint("grammar", _lark_after(answer, marks, opened, added_tokens), constraint.place)
    if backend == "xgrammar" and constraint.kind in ("json", "json_object"):
        return Constraint("structural_tag", _tag_after(value, marks, opened), constraint.place)
    return None


def _lark(kind: str, value: Any) -> str | None:
    if kind in ("json", "json_object"):
        return f"%json {dumps({**value, 'x-guidance': _JSON_SPACING}).decode()}"
    if kind == "choice":
        return " | ".join(dumps(text).decode() for text in value)
    if kind == "regex":
        # Two slashes would begin a comment.
        return f"/{_SLASH_OR_ESCAPE.sub(_escape_slash, value)}/" if value else '""'
    return None


def _lark_after(answer: str, marks: ReasoningMarks, opened: bool, added_tokens: Mapping[str, int]) -> str:
    opening, closing = added_tokens.get(marks.opening), added_tokens.get(marks.closing)
    to_closing = rf"(?s:.*){_literal(marks.closing)}"
    if closing is None:
        thinking = f"thinking[lazy]: /{to_closing}/\n"
    else:
        # Spelled out, the mark would end the thinking for who reads the answer, and not for the grammar.
        thinking = f"thinking: UNMARKED <[{closing}]>\nUNMARKED: /(?s:.*)/ & ~/{to_closing}(?s:.*)/\n"
    start = f"thinking /{_SPACE}/ answer"
    if not opened:
        opens = f"/{_SPACE}{_literal(marks.opening)}/" if opening is None else f"/{_SPACE}/ <[{opening}]>"
        start = f"({opens} thinking /{_SPACE}/)? answer"
    return f"start: {start}\n{thinking}answer: {answer}\n"


def _escape_slash(found: re.Match[str]) -> str:
    return r"\/" if found[0] == "/" else found[0]


def _literal(text: str) -> str:
    """The text inside a Lark regular expression."""
    return re.escape(text).replace("/", r"\/")


def _tag_after(schema: Any, marks: ReasoningMarks, opened: bool) -> str:
    answer = {"type": "json_schema", "json_schema": schema}
    # White space as the templates write it. Beside the tag: as a part of its end, a mark without it were no end.
    space = {"type": "or", "elements": [{"type": "const_string", "value": text} for text in ("", "\n", "\n\n")]}

    def thought_and_answer(opening: str) -> dict[str, Any]:
        tag = {"type": "tag", "begin": opening, "content": {"type": "any_text"}, "end": marks.closing}
        return {"type": "sequence", "elements": [tag, space, answer]}

    if opened:
        form = thought_and_answer("")
    else:
        forms = [answer, thought_and_answer(marks.opening), thought_and_answer("\n" + marks.opening)]
        form = {"type": "or", "elements": forms}
    return dumps({"type": "structural_tag", "format": form}).decode()
