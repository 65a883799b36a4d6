"""Arguments as real APIs take them come through every family as they were written."""

import json

import pytest

from gateway.output.parsers import OutputFormat
from tests.data.tools import FUNCTIONS
from tests.support.families import FAMILIES, Family, written
from tests.support.output import cut, read

TOOLS = {name: function.parameters or {} for name, function in FUNCTIONS.items()}


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_arguments_keep_their_values_and_types(family: Family) -> None:
    calls = [(name, function.arguments) for name, function in FUNCTIONS.items()]
    raw = written(family, "All of them.", calls)
    for pieces in ([raw], list(raw), cut(raw, range(0, len(raw), 3)), cut(raw, range(1, len(raw), 7))):
        parser = OutputFormat(family.parser, None).parser("", TOOLS)
        assert parser is not None
        message = read(parser, pieces)
        assert message.content == "All of them."
        got = [(call.name, json.dumps(json.loads(call.arguments))) for call in message.calls]
        assert got == [(name, json.dumps(arguments)) for name, arguments in calls]


def test_bound_answers_do_too() -> None:
    calls = [{"name": name, "parameters": function.arguments} for name, function in FUNCTIONS.items()]
    raw = json.dumps(calls, indent=1, ensure_ascii=False)
    for pieces in ([raw], list(raw)):
        parser = OutputFormat(None, None).parser("", TOOLS, required=True)
        assert parser is not None
        message = read(parser, pieces)
        assert message.content == ""
        assert [{"name": call.name, "parameters": json.loads(call.arguments)} for call in message.calls] == calls
