"""One grammar for thinking and answer: free text up to the closing mark, then what the request's constraint allows.

For engines whose grammar begins with the first token, whatever the model does first: Triton's stock backend, which
cannot be told when the thinking ends, and any where the prompt has not opened the thinking. There the model may think
or not, and an engine that waits for the end of the thinking may wait for ever. So it is for harmony (gpt-oss), where
what is no thinking has a mark, too: vLLM's own parser for it takes the first token for the end. Pure.
"""

import re
from collections.abc import Iterable, Mapping
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
_START, _END, _MESSAGE, _CONSTRAIN = "<|start|>", "<|end|>", "<|message|>", "<|constrain|>"
_ASSISTANT: Final = "assistant"
_ANALYSIS: Final = f"<|channel|>analysis{_MESSAGE}"
_FINAL: Final = "<|channel|>final"
_HARMONY_MARKS: Final = re.compile(r"(<\|[a-z]+\|>)")
"""Of gpt-oss; `gateway.output.tools.gpt_oss` reads them."""
_TAKES_TAGS: Final = ("xgrammar", "auto")
"""vLLM's `auto` gives a structural tag to xgrammar, whatever the schema inside; `schema_check` lets through for it what
both of its backends enforce."""
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
    if backend == "guidance" and added_tokens is not None and (answer := _lark(constraint)) is not None:
        return Constraint("grammar", _lark_after(answer, marks, opened, added_tokens), constraint.place)
    if backend in _TAKES_TAGS and (form := _format(constraint)) is not None:
        return Constraint("structural_tag", _tag_after(form, marks, opened), constraint.place)
    return None


def after_analysis(
    constraint: Constraint, prompt: str, backend: str, added_tokens: Mapping[str, int] | None
) -> Constraint | None:
    """The same for harmony: the constraint binds the final channel, and there may be analysis ahead of it.

    `prompt` ends where an answer's first head goes on, or within the final message, which the constraint then binds
    from the first token. `None` also for any other prompt.
    """
    head = prompt.rpartition(_START)[2]
    if head.startswith(_ASSISTANT + _FINAL):
        return constraint
    if not prompt.endswith(_START + _ASSISTANT):
        return None
    if backend == "guidance" and added_tokens is not None and (answer := _lark(constraint)) is not None:
        return Constraint("grammar", _lark_after_analysis(answer, added_tokens), constraint.place)
    if backend in _TAKES_TAGS and (form := _format(constraint)) is not None:
        return Constraint("structural_tag", _tag_after_analysis(form), constraint.place)
    return None


def _value(constraint: Constraint) -> Any:
    return _ANY_OBJECT if constraint.kind == "json_object" else constraint.engine_value()[constraint.kind]


def _lark(constraint: Constraint) -> str | None:
    """What the constraint allows, for guidance's grammar."""
    kind, value = constraint.kind, _value(constraint)
    if kind in ("json", "json_object"):
        return f"%json {dumps({**value, 'x-guidance': _JSON_SPACING}).decode()}"
    if kind == "choice":
        return " | ".join(dumps(text).decode() for text in value)
    if kind == "regex":
        # Two slashes would begin a comment.
        return f"/{_SLASH_OR_ESCAPE.sub(_escape_slash, value)}/" if value else '""'
    return None


def _format(constraint: Constraint) -> dict[str, Any] | None:
    """What the constraint allows, as a format of xgrammar's structural tags."""
    value = _value(constraint)
    if constraint.kind in ("json", "json_object"):
        return {"type": "json_schema", "json_schema": value}
    if constraint.kind == "choice":
        return _one_of(value)
    return None


def _one_of(texts: Iterable[str]) -> dict[str, Any]:
    return {"type": "or", "elements": [{"type": "const_string", "value": text} for text in texts]}


def _lark_after(answer: str, marks: ReasoningMarks, opened: bool, added_tokens: Mapping[str, int]) -> str:
    opening = added_tokens.get(marks.opening)
    thinking = _lark_thinking(marks.closing, added_tokens.get(marks.closing))
    start = f"thinking /{_SPACE}/ answer"
    if not opened:
        opens = f"/{_SPACE}{_literal(marks.opening)}/" if opening is None else f"/{_SPACE}/ <[{opening}]>"
        start = f"({opens} thinking /{_SPACE}/)? answer"
    return f"start: {start}\n{thinking}answer: {answer}\n"


def _lark_thinking(closing: str, token: int | None) -> str:
    """Free text up to the mark, which may be a token."""
    to_closing = rf"(?s:.*){_literal(closing)}"
    if token is None:
        return f"thinking[lazy]: /{to_closing}/\n"
    # Spelled out, the mark would end the thinking for who reads the answer, and not for the grammar.
    return f"thinking: UNMARKED <[{token}]>\nUNMARKED: /(?s:.*)/ & ~/{to_closing}(?s:.*)/\n"


def _lark_after_analysis(answer: str, added_tokens: Mapping[str, int]) -> str:
    def written(head: str) -> str:
        parts = [part for part in _HARMONY_MARKS.split(head) if part]
        return " ".join(f"<[{added_tokens[part]}]>" if part in added_tokens else dumps(part).decode() for part in parts)

    return (
        "start: analysis* final answer\n"
        f"analysis: {written(_ANALYSIS)} thinking {written(_START + _ASSISTANT)}\n"
        f"final: {written(_FINAL)} ({written(f' {_CONSTRAIN}json')})? {written(_MESSAGE)}\n"
        f"{_lark_thinking(_END, added_tokens.get(_END))}answer: {answer}\n"
    )


def _tag_after_analysis(answer: dict[str, Any]) -> str:
    final = {
        "type": "sequence",
        "elements": [_one_of(_FINAL + constrain + _MESSAGE for constrain in ("", f" {_CONSTRAIN}json")), answer],
    }
    analysis = {"type": "tag", "begin": _ANALYSIS, "content": {"type": "any_text"}, "end": _END}
    next_head = {"type": "const_string", "value": _START + _ASSISTANT}
    # Any number of messages cannot be said; the model writes one.
    thought = {"type": "sequence", "elements": [analysis, next_head, final]}
    form = {"type": "or", "elements": [final, thought]}
    return dumps({"type": "structural_tag", "format": form}).decode()


def _escape_slash(found: re.Match[str]) -> str:
    return r"\/" if found[0] == "/" else found[0]


def _literal(text: str) -> str:
    """The text inside a Lark regular expression."""
    return re.escape(text).replace("/", r"\/")


def _tag_after(answer: dict[str, Any], marks: ReasoningMarks, opened: bool) -> str:
    # White space as the templates write it. Beside the tag: as a part of its end, a mark without it were no end.
    space = _one_of(("", "\n", "\n\n"))

    def thought_and_answer(opening: str) -> dict[str, Any]:
        tag = {"type": "tag", "begin": opening, "content": {"type": "any_text"}, "end": marks.closing}
        return {"type": "sequence", "elements": [tag, space, answer]}

    if opened:
        form = thought_and_answer("")
    else:
        forms = [answer, thought_and_answer(marks.opening), thought_and_answer("\n" + marks.opening)]
        form = {"type": "or", "elements": forms}
    return dumps({"type": "structural_tag", "format": form}).decode()
