"""Raw answers of real models' formats and what a client must get for them, over every cut in two."""

from typing import Any

import pytest

from gateway.output.events import Content, Event, OutputParser
from gateway.output.parsers import REASONING_PARSERS, TOOL_PARSERS, finish_reason
from tests.support.output import assert_same_for_all_cuts, read
from tests.support.tool_cases import CASES, FORMATS, check_case


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_a_client_gets_what_the_model_said(case: dict[str, Any]) -> None:
    tools = {tool["function"]["name"]: tool["function"]["parameters"] for tool in case["tools"]}
    raw, engine_reason = case["raw"], case["engine_finish_reason"]
    output_format = FORMATS[case["family"]]

    def make() -> OutputParser:
        return output_format.parser(case.get("prompt_ends_with", ""), tools) or _Unparsed()

    message = assert_same_for_all_cuts(make, raw, engine_reason)
    if "chunks" in case:
        assert "".join(case["chunks"]) == raw
        assert read(make(), case["chunks"], engine_reason).without_ids() == message.without_ids()
    reason = finish_reason(engine_reason, len(message.calls), named=False)
    check_case(case, message.content, message.reasoning, message.calls, reason)


class _Unparsed:
    """What the gateway does where a request needs no parser."""

    in_reasoning = False
    has_failed = False

    def feed(self, text: str) -> list[Event]:
        return [Content(text)] if text else []

    def finish(self, finish_reason: str) -> list[Event]:
        return []


def test_every_parser_has_a_case() -> None:
    assert {case["family"] for case in CASES} == set(FORMATS)
    assert {kind.tool_parser for kind in FORMATS.values()} == set(TOOL_PARSERS)
    assert {kind.reasoning_parser for kind in FORMATS.values()} - {None} == set(REASONING_PARSERS)
