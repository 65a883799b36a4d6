"""What models get wrong, and what a client gets then; every case over every cut in two."""

import re
from dataclasses import dataclass, field

import pytest

from gateway.output.events import OutputParser
from gateway.output.parsers import OutputFormat
from tests.support.output import assert_same_for_all_cuts, read

TOOLS = {
    "get_weather": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "where": {"type": "object"}},
    },
    "get_time": {},
}
PARIS = '{"city": "Paris"}'


@dataclass
class Case:
    """`calls`: name and arguments text of each."""

    family: str
    raw: str
    calls: list[tuple[str, str]] = field(default_factory=list)
    content: str = ""
    finish_reason: str = "stop"


CASES = {
    # Names that the request does not offer: marks make a call of it, a bare form does not.
    "hermes-unknown": Case("hermes", '<tool_call>{"name": "f", "arguments": {}}</tool_call>', [("f", "{}")]),
    "llama3-unknown": Case(
        "llama3_json", '{"name": "f", "parameters": {"a": 1}}', [], '{"name": "f", "parameters": {"a": 1}}',
    ),
    "llama3-unknown-tagged": Case("llama3_json", '<|python_tag|>{"name": "f", "parameters": {}}', [("f", "{}")]),
    "llama4-unknown": Case("llama4_pythonic", "[f(a=1)]", [], "[f(a=1)]"),
    "llama4-unknown-tagged": Case("llama4_pythonic", "<|python_start|>[f(a=1)]<|python_end|>", [("f", '{"a": 1}')]),
    "qwen3coder-unknown": Case("qwen3_coder", "<tool_call>\n<function=f>\n</function>\n</tool_call>", [("f", "{}")]),
    "qwen3coder-unknown-bare": Case("qwen3_coder", "Write <function=f>.", [], "Write <function=f>."),
    "kimi-unknown": Case(
        "kimi_k2", "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>", [("f", "{}")],
    ),
    "gptoss-unknown": Case("gpt_oss", "<|channel|>commentary to=functions.f <|message|>{}<|call|>", [("f", "{}")]),
    # Arguments that are missing, empty, null, a string, not an object.
    "hermes-no-arguments": Case("hermes", '<tool_call>{"name": "get_time"}</tool_call>', [("get_time", "{}")]),
    "hermes-null": Case(
        "hermes", '<tool_call>{"name": "get_time", "arguments": null}</tool_call>', [("get_time", "{}")],
    ),
    "hermes-string": Case(
        "hermes",
        '<tool_call>{"name": "get_weather", "arguments": "{\\"city\\": \\"Paris\\"}"}</tool_call>',
        [("get_weather", PARIS)],
    ),
    "hermes-empty-string": Case("hermes", '<tool_call>{"name": "f", "arguments": ""}</tool_call>', [("f", "{}")]),
    "hermes-list": Case("hermes", '<tool_call>{"name": "f", "arguments": [1, "]"]}</tool_call>', [("f", '[1, "]"]')]),
    "hermes-number": Case("hermes", '<tool_call>{"name": "f", "arguments": -1.5}</tool_call>', [("f", "-1.5")]),
    "llama3-no-parameters": Case("llama3_json", '{"name": "get_time"}', [], '{"name": "get_time"}'),
    "mistral-no-arguments": Case("mistral", "[TOOL_CALLS]get_time[ARGS]</s>", [("get_time", "{}")]),
    "mistral-no-args-mark": Case("mistral", f"[TOOL_CALLS]get_weather{PARIS}", [("get_weather", PARIS)]),
    "deepseek-no-arguments": Case(
        "deepseek_v31",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_time<｜tool▁sep｜><｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        [("get_time", "{}")],
    ),
    "kimi-no-arguments": Case(
        "kimi_k2", "<|tool_call_begin|>functions.get_time:0<|tool_call_argument_begin|><|tool_call_end|>",
        [("get_time", "{}")],
    ),
    "gptoss-no-arguments": Case(
        "gpt_oss", "<|channel|>commentary to=functions.get_time<|message|><|call|>", [("get_time", "{}")],
    ),
    # Members in another order, or more of them.
    "hermes-arguments-first": Case(
        "hermes", f'<tool_call>{{"arguments": {PARIS}, "name": "get_weather"}}</tool_call>', [("get_weather", PARIS)]
    ),
    "hermes-more-members": Case(
        "hermes",
        f'<tool_call>{{"id": 7, "x": [{{}}], "name": "get_weather", "arguments": {PARIS}, "y": "}}"}}</tool_call>',
        [("get_weather", PARIS)],
    ),
    "llama3-more-members": Case(
        "llama3_json", '{"name": "get_weather", "unit": "C", "parameters": {}}', [],
        '{"name": "get_weather", "unit": "C", "parameters": {}}',
    ),
    "mistral-id": Case(
        "mistral", f'[TOOL_CALLS] [{{"name": "get_weather", "arguments": {PARIS}, "id": "abcdefghi"}}]',
        [("get_weather", PARIS)],
    ),
    # JSON that is none: what was said of it is passed on.
    "hermes-brace-missing": Case(
        "hermes", f'<tool_call>\n{{"name": "get_weather", "arguments": {PARIS}\n</tool_call> Ok.',
        [("get_weather", PARIS)], " Ok.",
    ),
    "hermes-brace-too-many": Case(
        "hermes", f'<tool_call>{{"name": "get_weather", "arguments": {PARIS}}}}}\n</tool_call>',
        [("get_weather", PARIS)],
    ),
    "hermes-python": Case(
        "hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {'a': 1}}\n</tool_call>", [("f", "{'a': 1}}\n")]
    ),
    "hermes-unclosed": Case(
        "hermes", '<tool_call>{"name": "f", "arguments": {"a": [1, 2}}</tool_call>\nOk.', [("f", '{"a": [1, 2}}')],
        "\nOk.",
    ),
    "hermes-raw-newline": Case(
        "hermes", '<tool_call>{"name": "f", "arguments": {"a": "x\ny\\\nz\t"}}</tool_call>',
        [("f", '{"a": "x\\ny\\nz\\t"}')],
    ),
    "kimi-python": Case(
        "kimi_k2", "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{'a': 1}<|tool_call_end|>",
        [("f", "{'a': 1}")],
    ),
    "deepseek-python": Case(
        "deepseek_v3",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{'a': 1}\n```"
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        [("f", "{'a': 1}")],
    ),
    "gptoss-prose": Case(
        "gpt_oss", "<|channel|>commentary to=functions.f<|message|>city is Rome<|call|>", [("f", "city is Rome")],
    ),
    # What looks like a call and is none.
    "hermes-prose": Case(
        "hermes", "The tag <tool_call> opens it, </tool_call> closes it.", [],
        "The tag <tool_call> opens it, </tool_call> closes it.",
    ),
    "hermes-no-name": Case(
        "hermes", '<tool_call>{"arguments": {}}</tool_call>', [], '<tool_call>{"arguments": {}}</tool_call>',
    ),
    "hermes-number-name": Case(
        "hermes", '<tool_call>{"name": 1}</tool_call>', [], '<tool_call>{"name": 1}</tool_call>',
    ),
    "hermes-nested-tag": Case(
        "hermes", f'<tool_call> <tool_call>{{"name": "get_weather", "arguments": {PARIS}}}</tool_call>',
        [("get_weather", PARIS)],
        "<tool_call>",
    ),
    "glm-prose": Case("glm45", "<tool_call>not a name</tool_call>", [], "<tool_call>not a name</tool_call>"),
    "kimi-prose": Case(
        "kimi_k2", "It begins with <|tool_call_begin|>, then text.", [],
        "It begins with <|tool_call_begin|>, then text.",
    ),
    "kimi-section-prose": Case(
        "kimi_k2", "<|tool_calls_section_begin|> is a token.", [], "<|tool_calls_section_begin|> is a token.",
    ),
    "mistral-prose": Case("mistral", "[TOOL_CALLS] is a mark.", [], "[TOOL_CALLS] is a mark."),
    "llama3-inside-answer": Case(
        "llama3_json", '{"calls": [\n{"name": "get_weather", "parameters": {"city": "Paris"}}\n]}', [],
        '{"calls": [\n{"name": "get_weather", "parameters": {"city": "Paris"}}\n]}',
    ),
    "llama3-inside-line": Case(
        "llama3_json", 'Say {"name": "get_weather", "parameters": {}}.', [],
        'Say {"name": "get_weather", "parameters": {}}.',
    ),
    "llama3-python": Case("llama3_json", "<|python_tag|>print(1)", [], "<|python_tag|>print(1)"),
    "llama4-positional": Case("llama4_pythonic", '[get_weather("Paris")]', [], '[get_weather("Paris")]'),
    "llama4-inside-line": Case("llama4_pythonic", "Say [get_time()].", [], "Say [get_time()]."),
    # Half a surrogate pair, which no answer can hold.
    "hermes-surrogate-name": Case(
        "hermes", '<tool_call>{"name": "\\ud83d"}</tool_call>', [], '<tool_call>{"name": "\\ud83d"}</tool_call>'
    ),
    "hermes-surrogate-string": Case(
        "hermes", '<tool_call>{"name": "f", "arguments": "\\ud83d"}</tool_call>', [("f", '"\\ud83d"')]
    ),
    "llama4-surrogate": Case(
        "llama4_pythonic", "[get_weather(city='\\ud83d\\u00fc')]", [("get_weather", '{"city": "\\ud83d\\u00fc"}')]
    ),
    # Frames that are not complete.
    "hermes-close-missing": Case(
        "hermes", f'<tool_call>{{"name": "get_weather", "arguments": {PARIS}}}\n<tool_call>{{"name": "get_time"}}',
        [("get_weather", PARIS), ("get_time", "{}")],
    ),
    "hermes-two-in-one": Case(
        "hermes",
        f'<tool_call>\n{{"name": "get_weather", "arguments": {PARIS}}}\n{{"name": "get_time"}}\n</tool_call>',
        [("get_weather", PARIS), ("get_time", "{}")],
    ),
    "hermes-list-in-one": Case(
        "hermes", f'<tool_call>[{{"name": "get_weather", "arguments": {PARIS}}}, {{"name": "get_time"}}]</tool_call>',
        [("get_weather", PARIS), ("get_time", "{}")],
    ),
    "qwen3coder-open-missing": Case(
        "qwen3_coder",
        "Now:\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>",
        [("get_weather", PARIS)], "Now:",
    ),
    "qwen3coder-close-missing": Case(
        "qwen3_coder", "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\nDone.",
        [("get_weather", PARIS)], "\nDone.",
    ),
    "glm-close-missing": Case(
        "glm45", "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>",
        [("get_weather", PARIS)],
    ),
    "deepseek-section-missing": Case(
        "deepseek_v31", f"<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{PARIS}<｜tool▁call▁end｜>",
        [("get_weather", PARIS)],
    ),
    "llama3-several": Case(
        "llama3_json",
        'Both.\n{"name": "get_weather", "parameters": {"days": 1}}; {"name": "get_time", "parameters": {}}\nOk.',
        [("get_weather", '{"days": 1}'), ("get_time", "{}")], "Both.\n\nOk.",
    ),
    "gptoss-text-only": Case("gpt_oss", "Hello, {you}.", [], "Hello, {you}."),
    "gptoss-end-missing": Case(
        "gpt_oss", "<|channel|>commentary<|message|>Now.<|channel|>commentary to=functions.get_time<|message|>{}",
        [("get_time", "{}")], "Now.",
    ),
    "gptoss-recipient-first": Case(
        "gpt_oss", f" to=functions.get_weather<|channel|>commentary <|constrain|>json<|message|>{PARIS}<|call|>",
        [("get_weather", PARIS)],
    ),
    "gptoss-no-namespace": Case(
        "gpt_oss", "<|channel|>commentary to=get_time<|message|>{}<|call|>", [("get_time", "{}")],
    ),
    # Types.
    "qwen3coder-json-text": Case(
        "qwen3_coder", '<tool_call>\n<function=get_weather>\n<parameter=city>\n{"a": "b"}\n</parameter>\n'
        "<parameter=where>\n{'x': None}\n</parameter>\n<parameter=more>\n007\n</parameter>\n</function>\n</tool_call>",
        [("get_weather", '{"city": "{\\"a\\": \\"b\\"}", "where": {"x": null}, "more": "007"}')],
    ),
    "qwen3coder-empty": Case(
        "qwen3_coder",
        "<function=get_weather><parameter=city></parameter><parameter=days>\n\n</parameter></function>",
        [("get_weather", '{"city": "", "days": ""}')],
    ),
    "glm-spaces": Case(
        "glm45", "<tool_call>get_weather<arg_key> days </arg_key><arg_value> 3 </arg_value><arg_key>city</arg_key>"
        "<arg_value> Ulm\n</arg_value></tool_call>",
        [("get_weather", '{"days": 3, "city": " Ulm\\n"}')],
    ),
    "llama4-values": Case(
        "llama4_pythonic",
        "[get_weather(city='O\\'Hare \"x\" [', days=-3, where={'a': (1, 2.50), 'b': True}, x=Paris, y=1e400, z=0x10)]",
        [("get_weather", '{"city": "O\'Hare \\"x\\" [", "days": -3, "where": {"a": [1, 2.5], "b": true}, '
        '"x": "Paris", "y": 1e400, "z": 16}')],
    ),
    # Cut off.
    "hermes-cut-in-name": Case("hermes", 'One.\n<tool_call>\n{"name": "get_wea', [], "One.\n", "length"),
    "hermes-ended-in-name": Case("hermes", '<tool_call>\n{"name": "get_wea', [], '<tool_call>\n{"name": "get_wea'),
    "hermes-cut-in-mark": Case("hermes", "a <", [], "a <", "length"),
    "qwen3coder-cut-in-string": Case(
        "qwen3_coder", "<tool_call>\n<function=get_weather>\n<parameter=city>\nPar\n</para",
        [("get_weather", '{"city": "Par')],
        "", "length",
    ),
    "glm-cut-in-number": Case(
        "glm45",
        "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Ulm</arg_value><arg_key>days</arg_key><arg_value>1",
        [("get_weather", '{"city": "Ulm"')], "", "length",
    ),
    "llama4-cut-in-value": Case(
        "llama4_pythonic", "[get_weather(city='Ulm', days=1", [("get_weather", '{"city": "Ulm"')], "", "length",
    ),
    "gptoss-cut-in-head": Case("gpt_oss", "<|channel|>commentary to=functions.get", [], "", "length"),
    "mistral-cut": Case("mistral", '[TOOL_CALLS]get_weather[ARGS]{"city', [("get_weather", '{"city')], "", "length"),
    "string-arguments-cut": Case("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a', [("f", "")], "", "length"),
    # White space.
    "hermes-blank": Case("hermes", "  \n", [], "  \n"),
    "hermes-blank-beside": Case(
        "hermes", ' \n<tool_call>{"name": "get_time"}</tool_call> \n<|im_end|>\n', [("get_time", "{}")],
    ),
    "hermes-end-token-inside": Case(
        "hermes", "The token <|im_end|> ends it.<|im_end|>", [], "The token <|im_end|> ends it.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_a_client_gets(case: Case) -> None:
    def make() -> OutputParser:
        parser = OutputFormat(case.family, None).parser("", TOOLS)
        assert parser is not None
        return parser

    message = assert_same_for_all_cuts(make, case.raw, case.finish_reason)
    assert [(call.name, call.arguments) for call in message.calls] == case.calls
    assert message.content == case.content


def test_ids_of_a_model_are_kept_unless_it_repeats_them() -> None:
    call = "<|tool_call_begin|>{}<|tool_call_argument_begin|>{{}}<|tool_call_end|>"
    heads = ["functions.get_time:3", "functions.get_time:3", " get_time ", "functions.get_weather:3"]
    raw = "".join(call.format(head) for head in heads)

    def make() -> OutputParser:
        parser = OutputFormat("kimi_k2", None).parser("", TOOLS, earlier_calls=3)
        assert parser is not None
        return parser

    ids = [call.id for call in assert_same_for_all_cuts(make, raw).calls]
    assert ids == ["functions.get_time:3", "functions.get_time:4", "functions.get_time:5", "functions.get_weather:3"]


def test_an_id_of_mistral_is_kept_where_it_is_one() -> None:
    raw = "[TOOL_CALLS]get_time[CALL_ID]abc123XYZ[ARGS]{}[TOOL_CALLS]get_time[CALL_ID]abc[ARGS]{}"
    parser = OutputFormat("mistral", None).parser("", TOOLS)
    assert parser is not None
    first, second = (call.id for call in read(parser, [raw]).calls)
    assert first == "abc123XYZ"
    assert re.fullmatch("[A-Za-z0-9]{9}", second)
