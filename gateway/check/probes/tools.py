"""Probes of the fields of tool calls and of thinking."""

from typing import Any

import orjson

from gateway.check.probes.ask import WORDS, Ask
from gateway.check.verdicts import Verdict, accepted, failed, seen

_NAME = "choose"
_PARAMETERS = {
    "type": "object",
    "properties": {"word": {"enum": list(WORDS)}},
    "required": ["word"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": _NAME, "parameters": _PARAMETERS}}]
# A call is some twenty tokens.
_CALL: dict[str, Any] = {"tools": TOOLS, "max_tokens": 64}


async def tool_choice(ask: Ask) -> Verdict:
    answer = await ask(**_CALL, tool_choice={"type": "function", "function": {"name": _NAME}})
    called = [call["function"] for call in answer.calls]
    if [call["name"] for call in called] != [_NAME]:
        return failed("the answer is no call of the function that it names")
    arguments = called[0]["arguments"].strip()
    if not arguments.startswith("{"):
        return failed(f"the arguments are no object: {arguments!r}")
    if answer.finish_reason == "length":
        return accepted("the call is cut off after 64 tokens")
    if orjson.loads(arguments).get("word") not in WORDS:
        return failed(f"the arguments do not obey: {arguments!r}")
    return seen("the answer is a call of the function that it names")


async def parallel_tool_calls(ask: Ask) -> Verdict:
    answer = await ask(**_CALL, tool_choice="required", parallel_tool_calls=False)
    if len(answer.calls) > 1:
        return failed(f"false: {len(answer.calls)} calls")
    return accepted("false: not more than one call")


async def include_reasoning(ask: Ask) -> Verdict:
    if (await ask(include_reasoning=False)).reasoning:
        return failed("false: the answer shows its thinking")
    if ask.plain.reasoning:
        return seen("false: the thinking is left out")
    return accepted("the plain answer shows no thinking")
