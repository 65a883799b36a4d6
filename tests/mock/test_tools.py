"""Calls and thinking end to end: what a request says of them, what arrives at the engine, what the client gets."""

import json
import math
import re
from typing import Any

import httpx
import jsonschema_rs
import openai
import pytest

from bench.mock_engine.running import MockEngine
from bench.mock_engine.tokens import piece as piece_of
from gateway.openai.fields import CHAT
from tests.data.tools import FUNCTIONS
from tests.support.chat import SCHEMA, ask, complete, events
from tests.support.families import FAMILIES, written
from tests.support.tools import THOUGHTS, WHOLE, Reply, Talk, check_stream, tokens_of
from tests.support.waiting import wait_for

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "It.", "parameters": CITY}}
TIME = {"type": "function", "function": {"name": "get_time"}}
TOOLS = [WEATHER, TIME]
NAMED = {"type": "function", "function": {"name": "get_weather"}}
PARIS = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
NOW = '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'


def calls(reply: Reply) -> list[tuple[str, Any]]:
    return [(call.name, json.loads(call.arguments)) for call in reply.calls]


def constraint(request: dict[str, Any]) -> Any:
    return request["sampling_parameters"]["structured_outputs"]


# auto


def test_a_call_between_texts(talk: Talk) -> None:
    reply = talk.reply("hermes", f"Let me see. {PARIS} That was it.", tools=TOOLS)
    assert calls(reply) == [("get_weather", {"city": "Paris"})]
    assert (reply.content.split(), reply.finish_reason) == (["Let", "me", "see.", "That", "was", "it."], "tool_calls")


def test_a_call_alone_has_no_content(talk: Talk) -> None:
    answer = talk.client.chat.completions.create(**talk.body("hermes", tools=TOOLS, max_tokens=200))
    assert answer.choices[0].message.tool_calls is None
    assert answer.choices[0].message.content
    (reply,) = talk.whole("hermes", PARIS, tools=TOOLS)
    assert calls(reply) == [("get_weather", {"city": "Paris"})]
    with httpx.Client(base_url=talk.gateway.url, timeout=60) as client:
        message = ask(client, model="hermes", tools=TOOLS, max_tokens=200).json()["choices"][0]["message"]
    assert message["content"] is None
    assert message["refusal"] is None


def test_two_calls_have_ids_of_their_own(talk: Talk) -> None:
    reply = talk.reply("hermes", f"{PARIS}\n{NOW}", tools=TOOLS)
    assert calls(reply) == [("get_weather", {"city": "Paris"}), ("get_time", {})]
    assert all(re.fullmatch(r"call_[A-Za-z0-9]{24}", call.id) for call in reply.calls)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_writes_calls_that_are_found(family: str, talk: Talk) -> None:
    form = FAMILIES[family]
    text = written(form, "Let me see.", [("get_weather", {"city": "Köln 日本"}), ("get_time", {})])
    opening = "<|start|>assistant" if form.parser == "gpt_oss" else ""
    fields: dict[str, Any] = {"chat_template_kwargs": {"opening": opening}}
    (whole,) = talk.whole(form.parser, text, tools=TOOLS, **fields)
    (streamed,) = talk.streamed(form.parser, text, tools=TOOLS, **fields)
    for reply in (whole, streamed):
        assert calls(reply) == [("get_weather", {"city": "Köln 日本"}), ("get_time", {})]
        assert (reply.content.strip(), reply.finish_reason) == ("Let me see.", "tool_calls")
        assert all(re.fullmatch(form.id_pattern, call.id) for call in reply.calls)
    requests = talk.arrived()
    assert all(request["sampling_parameters"]["skip_special_tokens"] is False for request in requests)


def test_ids_go_on_where_the_history_has_calls(talk: Talk) -> None:
    """Kimi's ids are numbers that run through the conversation."""
    call = {"id": "functions.get_time:0", "type": "function", "function": {"name": "get_time", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "functions.get_time:0", "content": "12"},
    ]
    reply = talk.reply("kimi_k2", tools=[TIME], tool_choice="required", messages=messages, parallel_tool_calls=False)
    assert [call.id for call in reply.calls] == ["functions.get_time:1"]
    # What the model itself writes is given on.
    text = written(FAMILIES["kimi_k2"], "", [("get_time", {})])
    assert talk.reply("kimi_k2", text, tools=[TIME], messages=messages).calls[0].id == "functions.get_time:0"


def test_text_that_only_looks_like_a_call_is_content(talk: Talk) -> None:
    text = 'Write <tool_call> and {"name": "get_weather"} < tool_call>'
    reply = talk.reply("hermes", text, tools=TOOLS)
    assert (reply.content, reply.calls, reply.finish_reason) == (text, [], "stop")


def test_without_tools_a_call_is_content(talk: Talk) -> None:
    reply = talk.reply("hermes", PARIS)
    assert (reply.content, reply.calls, reply.finish_reason) == (PARIS, [], "stop")


def test_a_call_that_is_cut_off_keeps_its_reason(talk: Talk) -> None:
    text = PARIS[: PARIS.index("ris")]
    reply = talk.reply("hermes", text, tools=TOOLS, max_tokens=tokens_of(text))
    assert (reply.calls[0].name, reply.finish_reason) == ("get_weather", "length")
    assert json.loads(reply.calls[0].arguments + '"}') == {"city": "Pa"}


def test_the_bytes_of_the_upstream_may_be_cut_anywhere(talk: Talk) -> None:
    text = f"Köln: {PARIS}\n{NOW}"
    (whole,) = talk.whole("hermes", text, tools=TOOLS)
    for seed in range(3):
        talk.engine.clear_faults()
        talk.engine.add_fault(text=text, split_writes=seed, merge=2)
        with httpx.Client(base_url=talk.gateway.url, timeout=60) as client:
            chunks = events(ask(client, model="hermes", tools=TOOLS, stream=True, max_tokens=None))
        check_stream(chunks)
        deltas = [call for chunk in chunks for call in chunk["choices"][0]["delta"].get("tool_calls", ())]
        for index, call in enumerate(whole.calls):
            assert call.arguments == "".join(d["function"]["arguments"] for d in deltas if d["index"] == index)


def test_parallel_calls_can_be_turned_off(talk: Talk) -> None:
    reply = talk.reply("hermes", f"{PARIS}\n{NOW}", tools=TOOLS, parallel_tool_calls=False)
    assert calls(reply) == [("get_weather", {"city": "Paris"})]
    assert reply.finish_reason == "tool_calls"


def test_strict_is_taken_and_shown_to_the_model(talk: Talk) -> None:
    strict = {"type": "function", "function": {**WEATHER["function"], "strict": True}}  # type: ignore[dict-item]
    assert calls(talk.reply("hermes", PARIS, tools=[strict])) == [("get_weather", {"city": "Paris"})]


# What reaches the model


def test_the_model_sees_the_tools(talk: Talk) -> None:
    talk.whole("hermes", "Hi", tools=TOOLS)
    (request,) = talk.arrived()
    assert f"<|tool|>{json.dumps(WEATHER)}<|tool|>{json.dumps(TIME)}<|user|>" in request["inputs"]["text_input"]
    assert "structured_outputs" not in request["sampling_parameters"]


def test_none_leaves_the_tools_out(talk: Talk) -> None:
    for choice, tools in (("none", TOOLS), ("auto", []), (None, None)):
        reply = talk.reply("hermes", PARIS, tools=tools, tool_choice=choice)
        assert (reply.content, reply.calls, reply.finish_reason) == (PARIS, [], "stop")
        # auto asks for calls of which there can be none.
        assert ("x-gateway-warning" in reply.headers) == (choice == "auto")
    for request in talk.arrived():
        assert "<|tool|>" not in request["inputs"]["text_input"]
        assert "structured_outputs" not in request["sampling_parameters"]


def test_the_history_has_calls_and_results(talk: Talk) -> None:
    def call(number: int, name: str, arguments: str) -> dict[str, Any]:
        return {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}

    messages = [
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [call(1, "get_weather", '{"city": "Köln"}'), call(2, "get_time", "")],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "sun"},
        {"role": "tool", "tool_call_id": "call_2", "content": [{"type": "text", "text": "12"}]},
        {"role": "assistant", "content": "And now?", "tool_calls": [call(3, "get_time", "{}")]},
        {"role": "tool", "tool_call_id": "call_3", "content": "13"},
    ]
    assert talk.reply("hermes", "Hello.", messages=messages, tools=TOOLS).content == "Hello."
    prompt = talk.arrived()[0]["inputs"]["text_input"]
    assert prompt.partition("<|user|>")[2] == (
        'Hi<|assistant|><|call|>call_1 get_weather {"city": "Köln"}<|call|>call_2 get_time {}'
        "<|tool|>sun<|of|>call_1<|tool|>12<|of|>call_2"
        "<|assistant|>And now?<|call|>call_3 get_time {}<|tool|>13<|of|>call_3<|assistant|>"
    )


@pytest.mark.parametrize("arguments", ["{", "[]", "null", '{"a": Paris}'])
def test_a_history_that_is_no_call_is_refused_by_place(arguments: str, talk: Talk) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    with pytest.raises(openai.BadRequestError) as refused:
        talk.whole("hermes", messages=[{"role": "assistant", "tool_calls": [call]}])
    assert refused.value.param == "messages[0].tool_calls[0].function.arguments"
    assert talk.arrived() == []


# Bound answers


def test_required_is_any_of_the_tools(talk: Talk) -> None:
    for seed in range(3):
        reply = talk.reply("hermes", tools=TOOLS, tool_choice="required", seed=seed, max_tokens=400)
        assert reply.finish_reason == "tool_calls"
        assert reply.calls
        assert reply.content == ""
        for name, arguments in calls(reply):
            assert arguments.keys() == ({"city"} if name == "get_weather" else set())
    bound = [constraint(request) for request in talk.arrived()]
    assert all(one == bound[0] for one in bound)
    assert bound[0]["json"]["minItems"] == 1
    assert [call["properties"]["name"] for call in bound[0]["json"]["items"]["anyOf"]] == [
        {"const": "get_weather"},
        {"const": "get_time"},
    ]


def test_several_required_calls(talk: Talk) -> None:
    text = '[{"name": "get_weather", "parameters": {"city": "Köln"}}, {"name": "get_time", "parameters": {}}]'
    reply = talk.reply("hermes", text, tools=TOOLS, tool_choice="required")
    assert calls(reply) == [("get_weather", {"city": "Köln"}), ("get_time", {})]
    (single,) = talk.whole("hermes", text, tools=TOOLS, tool_choice="required", parallel_tool_calls=False)
    assert calls(single) == [("get_weather", {"city": "Köln"})]
    assert constraint(talk.arrived()[-1])["json"]["maxItems"] == 1


def test_named_is_that_tools_schema(talk: Talk) -> None:
    reply = talk.reply("hermes", tools=TOOLS, tool_choice=NAMED, max_tokens=200)
    ((name, arguments),) = calls(reply)
    assert (name, arguments.keys(), reply.content, reply.finish_reason) == ("get_weather", {"city"}, "", "stop")
    for request in talk.arrived():
        assert constraint(request) == {"json": CITY}
        assert "<|tool|>" in request["inputs"]["text_input"]


@pytest.mark.parametrize(("mode", "reason"), [("auto", "tool_calls"), ("required", "tool_calls")])
def test_allowed_tools_are_those_that_the_model_sees(mode: str, reason: str, talk: Talk) -> None:
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [NAMED]}}
    text = PARIS if mode == "auto" else '[{"name": "get_weather", "parameters": {"city": "Paris"}}]'
    reply = talk.reply("hermes", text, tools=TOOLS, tool_choice=choice)
    assert (calls(reply), reply.finish_reason) == ([("get_weather", {"city": "Paris"})], reason)
    for request in talk.arrived():
        assert "get_weather" in request["inputs"]["text_input"]
        assert "get_time" not in request["inputs"]["text_input"]


@pytest.mark.parametrize("choice", ["required", NAMED])
def test_a_bound_answer_that_is_cut_off(choice: Any, talk: Talk) -> None:
    text = '{"city": "Pa' if choice is NAMED else '[{"name": "get_weather", "parameters": {"city": "Pa'
    reply = talk.reply("hermes", text, tools=TOOLS, tool_choice=choice, max_tokens=tokens_of(text))
    assert (reply.calls[0].name, reply.calls[0].arguments) == ("get_weather", '{"city": "Pa')
    assert reply.finish_reason == "length"


@pytest.mark.parametrize("choice", ["required", NAMED])
@pytest.mark.parametrize("model", ["unknown", "toolless", "mistral"])
def test_an_answer_is_bound_whatever_the_family(model: str, choice: Any, talk: Talk) -> None:
    reply = talk.reply(model, tools=TOOLS, tool_choice=choice, max_tokens=400, seed=1)
    assert reply.calls
    assert reply.finish_reason == ("stop" if choice is NAMED else "tool_calls")
    assert ("tools" in reply.headers.get("x-gateway-warning", "")) == (model == "toolless")


@pytest.mark.parametrize(
    "beside",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
        {"response_format": {"type": "json_object"}},
    ],
)
@pytest.mark.parametrize("choice", ["required", NAMED])
def test_a_tool_constraint_wins_over_another_one(choice: Any, beside: dict[str, Any], talk: Talk) -> None:
    reply = talk.reply("hermes", tools=TOOLS, tool_choice=choice, max_tokens=400, **beside)
    assert reply.calls
    assert "response_format" in reply.headers["x-gateway-warning"]
    for request in talk.arrived():
        assert constraint(request)["json"] == CITY if choice is NAMED else constraint(request)["json"]["minItems"] == 1


def test_beside_a_response_format_free_calls_are_said_to_be_impossible(talk: Talk) -> None:
    reply = talk.reply("hermes", tools=TOOLS, max_tokens=400, response_format={"type": "json_object"})
    assert isinstance(json.loads(reply.content), dict)
    assert reply.calls == []
    assert "tools" in reply.headers["x-gateway-warning"]
    assert all(constraint(request) == {"json_object": True} for request in talk.arrived())


@pytest.mark.parametrize(
    ("model", "fields", "param", "says"),
    [
        ("unknown", {"tools": TOOLS}, "tools", "tool_parser"),
        ("toolless", {"tools": TOOLS}, "tools", "template"),
        ("hermes", {"tool_choice": "required"}, "tool_choice", "tools"),
        ("hermes", {"tools": TOOLS, "tool_choice": "sometimes"}, "tool_choice", "required"),
        (
            "hermes",
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "f"}}},
            "tool_choice.function.name",
            "'f'",
        ),
        ("hermes", {"tools": [WEATHER, WEATHER]}, "tools[1].function.name", "twice"),
        ("hermes", {"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type", "function"),
        ("hermes", {"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name", "letters"),
    ],
)
def test_what_cannot_be_done_is_refused_by_place(
    model: str, fields: dict[str, Any], param: str, says: str, talk: Talk
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        talk.whole(model, **fields)
    assert refused.value.param == param
    assert says in refused.value.message
    assert talk.arrived() == []


@pytest.mark.parametrize("choice", ["required", NAMED])
def test_a_schema_that_cannot_bind_is_refused_by_place(choice: Any, talk: Talk) -> None:
    parameters = {"type": "object", "properties": {"a": {"not": {"type": "string"}}}}
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": parameters}}
    with pytest.raises(openai.BadRequestError) as refused:
        talk.whole("hermes", tools=[TIME, tool], tool_choice=choice)
    assert refused.value.param == "tools[1].function.parameters.properties.a.not"
    assert talk.arrived() == []
    # Where nothing is bound by it, it is the model's business.
    assert talk.reply("hermes", "Hi", tools=[tool]).content == "Hi"


# Violations


def violations(talk: Talk) -> float:
    return talk.gateway.metric("gateway_tool_call_violations_total", model="hermes")


@pytest.mark.parametrize("arguments", ['{"city": 5}', '{"town": "Paris"}', '{"city": "Paris", "x": 1}'])
def test_arguments_that_violate_the_schema_are_counted(arguments: str, talk: Talk) -> None:
    text = f'{PARIS}\n<tool_call>\n{{"name": "get_weather", "arguments": {arguments}}}\n</tool_call>'
    before = violations(talk)
    (whole,) = talk.whole("hermes", text, tools=TOOLS)
    assert whole.headers["x-gateway-structured-output"] == "violation"
    assert whole.calls[1].arguments == arguments
    assert violations(talk) == before + 1
    (streamed,) = talk.streamed("hermes", text, tools=TOOLS)
    assert streamed.said() == whole.said()
    wait_for(lambda: violations(talk) == before + 2)
    assert any("a call by model hermes violates" in line["message"] for line in talk.gateway.logs)


def test_a_call_of_a_function_that_is_not_offered_is_a_violation(talk: Talk) -> None:
    before = violations(talk)
    (reply,) = talk.whole("hermes", PARIS, tools=[TIME])
    assert reply.headers["x-gateway-structured-output"] == "violation"
    assert calls(reply) == [("get_weather", {"city": "Paris"})]
    assert violations(talk) == before + 1


def test_calls_that_obey_are_not_counted(talk: Talk) -> None:
    before = violations(talk)
    reply = talk.reply("hermes", f"{PARIS}\n{NOW}", tools=TOOLS)
    assert reply.headers.get("x-gateway-structured-output") != "violation"
    cut = PARIS[: PARIS.index("ris")]
    talk.reply("hermes", cut, tools=TOOLS, max_tokens=tokens_of(cut))
    assert violations(talk) == before


def test_a_bound_call_that_violates_is_the_engines_fault(talk: Talk) -> None:
    name = "gateway_structured_output_violations_total"
    before, of_calls = talk.gateway.metric(name, model="hermes"), violations(talk)
    (reply,) = talk.whole("hermes", '{"city": 5}', tools=TOOLS, tool_choice=NAMED)
    assert reply.headers["x-gateway-structured-output"] == "violation"
    assert talk.gateway.metric(name, model="hermes") == before + 1
    assert violations(talk) == of_calls


@pytest.mark.parametrize("choice", ["required", NAMED])
@pytest.mark.parametrize(
    "text", ["I would rather not.", "{}", "[]", '"Paris"', '[{"name": "get_weather", "parameters": {"city": "x"}}] So.']
)
def test_a_bound_answer_that_is_no_call_is_a_violation(text: str, choice: Any, talk: Talk) -> None:
    (reply,) = talk.whole("hermes", text, tools=TOOLS, tool_choice=choice)
    assert reply.headers["x-gateway-structured-output"] == "violation"
    assert talk.streamed("hermes", text, tools=TOOLS, tool_choice=choice)[0].said() == reply.said()


# Thinking


def thought(model: str, text: str | None, opening: str, talk: Talk, **fields: Any) -> Reply:
    return talk.reply(model, text, chat_template_kwargs={"opening": opening}, **fields)


@pytest.mark.parametrize(
    ("model", "opening", "text"),
    [
        ("qwen3", "", "<think>\nHm.\n</think>\n\nYes."),
        ("qwen3", "<think>\n", "Hm.\n</think>\n\nYes."),
        ("qwen3", "<think>\n", "<think>Hm.</think>Yes."),
        ("magistral", "", "[THINK]Hm.[/THINK]Yes."),
        ("gpt_oss", "<|start|>assistant", "<|channel|>analysis<|message|>Hm.<|end|>"
         "<|start|>assistant<|channel|>final<|message|>Yes."),
    ],
)  # fmt: skip
def test_thinking_is_told_apart_from_the_answer(model: str, opening: str, text: str, talk: Talk) -> None:
    reply = thought(model, text, opening, talk)
    assert (reply.reasoning, reply.content, reply.finish_reason) == ("Hm.", "Yes.", "stop")
    hidden = thought(model, text, opening, talk, include_reasoning=False)
    assert (hidden.reasoning, hidden.content) == ("", "Yes.")
    # What is not shown is paid for all the same.
    assert hidden.usage == reply.usage
    assert 0 < reply.usage["completion_tokens_details"]["reasoning_tokens"] < reply.usage["completion_tokens"]


def test_reasoning_tokens_are_counted(talk: Talk) -> None:
    text = "<think>one two six</think>four"
    (reply,) = talk.streamed("qwen3", text)
    used = reply.usage
    assert used["completion_tokens"] == tokens_of(text) + 1
    # The marks' own tokens are thinking; the answer's are not, nor is the end.
    assert used["completion_tokens_details"]["reasoning_tokens"] == tokens_of("<think>one two six</think>")
    for merge in (2, 7, WHOLE, [1, 5, 2]):
        assert talk.streamed("qwen3", text, merge)[0].usage == used
    assert talk.whole("qwen3", text)[0].usage == used
    # A token that the gateway does not know: 3 of 10 characters are thinking.
    unknown = talk.reply("qwen3", "<think>abc</think>defghij").usage
    shared = math.ceil(unknown["completion_tokens"] * 0.3)
    assert unknown["completion_tokens_details"]["reasoning_tokens"] == shared
    assert thought("qwen3", "Yes.", "<think></think>", talk).usage["completion_tokens_details"] == {
        "reasoning_tokens": 0
    }


def test_a_model_that_does_not_think_has_no_details(talk: Talk) -> None:
    assert "completion_tokens_details" not in talk.reply("hermes", "<think>Hm.</think>Yes.").usage


def test_thinking_that_is_cut_off(talk: Talk) -> None:
    text = "Hm. What if"
    reply = thought("qwen3", text, "<think>\n", talk, max_tokens=tokens_of(text))
    assert (reply.reasoning, reply.content, reply.finish_reason) == (text, "", "length")
    used = reply.usage
    assert used["completion_tokens_details"]["reasoning_tokens"] == used["completion_tokens"] == tokens_of(text)


def test_thinking_and_calls(talk: Talk) -> None:
    rehearsed = f"I could write {NOW}, but no."
    reply = talk.reply("qwen3", f"<think>\n{rehearsed}\n</think>\n\nSee: {PARIS}", tools=TOOLS)
    assert (reply.reasoning, reply.content) == (rehearsed, "See:")
    assert (calls(reply), reply.finish_reason) == ([("get_weather", {"city": "Paris"})], "tool_calls")


def test_earlier_thinking_goes_back_to_the_model(talk: Talk) -> None:
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."},
        {"role": "user", "content": "And?"},
    ]
    reply = talk.reply("qwen3", "So.", messages=messages)
    assert "x-gateway-warning" not in reply.headers
    assert "Yes.<|thought|>Hm.<|user|>And?" in talk.arrived()[0]["inputs"]["text_input"]


def test_the_template_hears_how_much_to_think(talk: Talk) -> None:
    talk.whole("qwen3", "Hi", reasoning_effort="high", chat_template_kwargs={"opening": "<think>\n\n</think>"})
    (request,) = talk.arrived()
    assert request["inputs"]["text_input"].endswith("<|assistant|><|effort|>high<think>\n\n</think>")


def test_a_model_without_a_template_that_reads_it_says_so(talk: Talk) -> None:
    (reply,) = talk.whole("toolless", "Hi", reasoning_effort="high")
    assert "reasoning_effort" in reply.headers["x-gateway-warning"]


@pytest.mark.parametrize("choice", ["required", NAMED])
def test_a_bound_call_behind_the_thinking(choice: Any, thinker: Talk) -> None:
    """The thinking is bound by nothing, the call by its schema."""
    fields = {"tools": [WEATHER], "tool_choice": choice, "max_tokens": 400}
    reply = thought("qwen3", None, "<think>\n", thinker, **fields)
    assert reply.reasoning
    assert reply.content == ""
    assert all((name, list(arguments)) == ("get_weather", ["city"]) for name, arguments in calls(reply))
    assert reply.calls
    assert reply.usage["completion_tokens_details"]["reasoning_tokens"] > 0
    assert all(request["inputs"]["reasoning_ended"] is False for request in thinker.arrived())
    call = '{"city": "x"}' if choice is NAMED else '[{"name": "get_weather", "parameters": {"city": "x"}}]'
    # Nobody but the model opens it: the engine might wait for ever for its end, so both are one grammar.
    begun = thought("qwen3", f"<think>Hm.</think>\n{call}", "", thinker, **fields)
    assert (begun.reasoning, calls(begun)) == ("Hm.", [("get_weather", {"city": "x"})])
    for request in thinker.arrived():
        assert request["inputs"]["reasoning_ended"] is True
        assert "think>" in constraint(request)["grammar"]
    over = thought("qwen3", None, "<think>\n\n</think>\n\n", thinker, **fields)
    assert (over.reasoning, calls(over)[0][0]) == ("", "get_weather")
    assert all(request["inputs"]["reasoning_ended"] is True for request in thinker.arrived())


FORMAT: dict[str, Any] = {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": CITY}}}


def test_in_gpt_oss_the_final_channel_is_bound(talk: Talk) -> None:
    """vLLM's reasoning parser for it knows no end of the thinking, so thinking and answer are one grammar."""
    text = (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final <|constrain|>json<|message|>"
        '{"city": "x"}'
    )
    reply = thought("gpt_oss", text, "<|start|>assistant", talk, **FORMAT)
    assert (reply.reasoning, reply.content) == ("Hm.", '{"city": "x"}')
    assert reply.headers.get("x-gateway-structured-output") != "violation"
    named = {"tools": [WEATHER], "tool_choice": NAMED}
    called = thought("gpt_oss", text, "<|start|>assistant", talk, **named)
    assert (called.reasoning, calls(called)) == ("Hm.", [("get_weather", {"city": "x"})])
    for request in talk.arrived():
        assert request["inputs"]["reasoning_ended"] is True
        assert "final" in constraint(request)["grammar"]
    # A prompt that goes on with the final message leaves the constraint as it is.
    goes_on = thought("gpt_oss", '{"city": "x"}', "<|start|>assistant<|channel|>final<|message|>", talk, **FORMAT)
    assert goes_on.content == '{"city": "x"}'
    assert all(constraint(request) == {"json": CITY} for request in talk.arrived())


@pytest.mark.parametrize(
    ("model", "opening", "fields", "param"),
    [
        ("qwen3", "", {"guided_grammar": "start: /a/"}, "guided_grammar"),
        ("gpt_oss", "<|start|>assistant", {"guided_grammar": "start: /a/"}, "guided_grammar"),
        ("gpt_oss", "<|start|>assistant<|channel|>analysis<|message|>", FORMAT, "response_format.json_schema.schema"),
    ],
)
def test_what_cannot_be_one_grammar_with_the_thinking_is_refused(
    model: str, opening: str, fields: dict[str, Any], param: str, talk: Talk
) -> None:
    extra = {name: value for name, value in fields.items() if name == "guided_grammar"}
    own = {name: value for name, value in fields.items() if name not in extra}
    with pytest.raises(openai.BadRequestError) as refused:
        talk.whole(model, extra_body=extra | {"chat_template_kwargs": {"opening": opening}}, **own)
    assert (refused.value.param, refused.value.code) == (param, "unsupported_parameter")
    assert "switch the thinking off" in refused.value.message
    assert talk.arrived() == []


def test_without_thinking_a_constraint_holds_from_the_first_token(thinker: Talk) -> None:
    """The engine has a reasoning parser and would wait for an end that never comes, unless it is told."""
    with httpx.Client(base_url=thinker.gateway.url, timeout=60) as client:
        thinker.engine.clear_faults()
        text = complete(client, model="qwen3", max_tokens=200, **FORMAT).json()["choices"][0]["text"]
    assert json.loads(text).keys() == {"city"}
    (request,) = thinker.arrived()
    assert request["inputs"]["reasoning_ended"] is True


def test_a_model_that_is_not_known_to_think_is_bound_from_the_first_token(talk: Talk) -> None:
    talk.whole("hermes", **FORMAT)
    talk.whole("hermes", tools=[WEATHER], tool_choice=NAMED)
    talk.whole("hermes", "Hi")
    told = [request["inputs"].get("reasoning_ended") for request in talk.arrived()]
    assert told == [True, True, None]


# Together with other fields


def test_each_choice_has_calls_of_its_own(talk: Talk) -> None:
    texts = [f"One. {PARIS}", "Two.", f"{NOW}{NOW}"]

    def script(**fault: Any) -> None:
        talk.engine.clear_faults()
        for number, text in enumerate(texts):
            talk.engine.add_fault(request_id=f"-{number}", text=text, **fault)

    script()
    whole = talk.client.chat.completions.create(**talk.body("hermes", tools=TOOLS, n=3))
    for merge in (1, WHOLE):
        script(merge=merge)
        chunks = list(talk.client.chat.completions.create(**talk.body("hermes", tools=TOOLS, n=3, stream=True)))
        check_stream([chunk.to_dict() for chunk in chunks])
        reasons = {c.index: c.finish_reason for chunk in chunks for c in chunk.choices if c.finish_reason}
        assert reasons == {0: "tool_calls", 1: "stop", 2: "tool_calls"}
    assert [choice.finish_reason for choice in whole.choices] == ["tool_calls", "stop", "tool_calls"]
    assert [len(choice.message.tool_calls or ()) for choice in whole.choices] == [1, 0, 2]
    assert [choice.message.content for choice in whole.choices] == ["One.", "Two.", None]
    ids = [call.id for choice in whole.choices for call in choice.message.tool_calls or ()]
    assert len(set(ids)) == 3


@pytest.mark.parametrize("text", [f"See. {PARIS}", f"<think>Hm.</think>{PARIS}", "<think>Hm.</think>", PARIS[:20]])
def test_no_log_probability_is_lost_where_text_is_held_back(text: str, talk: Talk) -> None:
    reply = talk.reply("qwen3", text, tools=TOOLS, logprobs=True)
    # The last one is the end's.
    assert "".join(reply.logprobs[:-1]) == text
    assert len(reply.logprobs) == tokens_of(text) + 1


THOUGHT = [(model, opening, text) for (model, opening), texts in THOUGHTS.items() for text in texts]


@pytest.mark.parametrize(("model", "opening", "text"), THOUGHT)
def test_a_thinking_that_is_hidden_is_hidden_in_all_its_tokens(
    model: str, opening: str, text: str, talk: Talk
) -> None:
    """The same for every cut: which tokens are left, by their text and their id, and how many were thinking."""
    fields = {"chat_template_kwargs": {"opening": opening}, "logprobs": True}
    shown = talk.reply(model, text, **fields)
    hidden = talk.reply(model, text, include_reasoning=False, **fields)
    thought = shown.usage["completion_tokens_details"]["reasoning_tokens"]
    assert hidden.usage == shown.usage
    assert hidden.content == shown.content
    assert len(hidden.logprobs) == len(shown.logprobs) - thought
    if opening == "<think>\n" or not opening:
        # At the beginning.
        assert hidden.logprobs == shown.logprobs[thought:]
    ids = token_ids(talk, model, text, include_reasoning=False, **fields)
    assert len(ids) == len(hidden.logprobs)
    left = b"".join(map(piece_of, ids)).decode()
    assert all(part in left for part in hidden.content.split("\n"))
    assert not any(word in left for word in shown.reasoning.split() if word not in hidden.content)


def token_ids(talk: Talk, model: str, text: str, **fields: Any) -> list[int]:
    """Of the answer, whole and in every cut."""
    found: list[list[int]] = []
    with httpx.Client(base_url=talk.gateway.url, timeout=60) as client:
        for merge in (None, 1, 2, 3, WHOLE):
            talk.engine.clear_faults()
            talk.engine.add_fault(text=text, merge=merge)
            body = {"model": model, "return_token_ids": True, "max_tokens": None, "stream": merge is not None}
            answer = ask(client, **fields, **body)
            choices = [c for e in events(answer) for c in e["choices"]] if merge else answer.json()["choices"]
            found.append([i for choice in choices for i in choice.get("token_ids", ())])
    assert all(ids == found[0] for ids in found)
    return found[0]


def test_token_ids_are_not_lost_either(talk: Talk) -> None:
    with httpx.Client(base_url=talk.gateway.url, timeout=60) as client:

        def fields(**more: Any) -> dict[str, Any]:
            talk.engine.clear_faults()
            talk.engine.add_fault(text=PARIS)
            return {"model": "hermes", "tools": TOOLS, "return_token_ids": True, "max_tokens": None} | more

        whole = ask(client, **fields()).json()["choices"][0]["token_ids"]
        chunks = events(ask(client, **fields(stream=True)))
    assert len(whole) == tokens_of(PARIS) + 1
    assert [i for chunk in chunks for i in chunk["choices"][0].get("token_ids", ())] == whole


def test_a_stop_string_inside_a_call(talk: Talk) -> None:
    reply = talk.reply("hermes", PARIS, tools=TOOLS, stop=["ris"])
    assert (reply.calls[0].name, reply.calls[0].arguments) == ("get_weather", '{"city": "Pa')
    # The client itself ended it there: no violation.
    assert reply.finish_reason == "tool_calls"
    assert reply.headers.get("x-gateway-structured-output") != "violation"
    before = talk.reply("hermes", f"Hm. {PARIS}", tools=TOOLS, stop=["get_wea"])
    assert before.calls == []
    assert before.finish_reason == "stop"


@pytest.mark.parametrize("tokens", [3, 14, 20])
def test_an_engine_that_breaks_in_the_middle_of_a_call(tokens: int, talk: Talk) -> None:
    fault = {"text": f"{PARIS}\n{NOW}", "error_after": {"tokens": tokens, "error": "INTERNAL: the engine broke."}}
    talk.engine.add_fault(**fault)
    with pytest.raises(openai.InternalServerError):
        talk.client.chat.completions.create(**talk.body("hermes", tools=TOOLS))
    stream = talk.client.chat.completions.create(**talk.body("hermes", tools=TOOLS, stream=True))
    chunks = []
    with pytest.raises(openai.APIError, match="engine"):
        chunks.extend(stream)
    assert all(choice.finish_reason is None for chunk in chunks for choice in chunk.choices)
    talk.engine.clear_faults()
    assert calls(talk.reply("hermes", PARIS, tools=TOOLS)) == [("get_weather", {"city": "Paris"})]


def test_echo_stands_before_what_is_parsed(talk: Talk) -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Let me "}]
    extra = {"echo": True, "continue_final_message": True}
    (whole,) = talk.whole("hermes", f"see. {PARIS}", tools=TOOLS, messages=messages, extra_body=extra)
    (streamed,) = talk.streamed("hermes", f"see. {PARIS}", tools=TOOLS, messages=messages, extra_body=extra)
    assert (whole.content, calls(whole)) == ("Let me see.", [("get_weather", {"city": "Paris"})])
    assert streamed.said() == whole.said()


# Functions as real APIs have them


def obeys(name: str, arguments: Any) -> bool:
    parameters = FUNCTIONS[name].parameters or {"maxProperties": 0}
    return jsonschema_rs.validator_for(parameters, validate_formats=True).is_valid(arguments)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_real_function_is_called_by_its_schema(name: str, talk: Talk) -> None:
    tools = [FUNCTIONS[name].tool(name), {"type": "function", "function": {"name": "another"}}]
    named = {"type": "function", "function": {"name": name}}
    (reply,) = talk.whole("hermes", tools=tools, tool_choice=named, seed=1)
    assert talk.streamed("hermes", tools=tools, tool_choice=named, seed=1)[0].said() == reply.said()
    ((called, arguments),) = calls(reply)
    assert called == name
    assert obeys(name, arguments)
    only = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named]}}
    (required,) = talk.streamed("hermes", tools=tools, tool_choice=only, seed=2)
    assert required.calls
    assert all(called == name and obeys(name, arguments) for called, arguments in calls(required))
    assert reply.headers.get("x-gateway-structured-output") != "violation"


def test_one_of_thirty_is_called(talk: Talk) -> None:
    tools = [function.tool(name) for name, function in FUNCTIONS.items()]
    assert len(tools) == 30
    seen: set[str] = set()
    for seed in range(8):
        (reply,) = talk.streamed("hermes", tools=tools, tool_choice="required", seed=seed, max_tokens=2000)
        assert reply.finish_reason == "tool_calls"
        assert all(obeys(name, arguments) for name, arguments in calls(reply))
        seen |= {name for name, _ in calls(reply)}
    assert len(seen) > 1


# Which parser


def test_the_template_tells_the_family(client: httpx.Client, engine: MockEngine) -> None:
    engine.add_fault(text=PARIS)
    choice = ask(client, tools=TOOLS, max_tokens=None).json()["choices"][0]
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "get_weather"


def test_the_stock_backend_calls_too(stock_client: httpx.Client, stock: MockEngine) -> None:
    assert all(CHAT[name].stock for name in ("tools", "tool_choice", "skip_special_tokens") if CHAT[name].key)
    stock.add_fault(text=PARIS)
    whole = ask(stock_client, tools=TOOLS, max_tokens=200).json()["choices"][0]
    chunks = events(ask(stock_client, tools=TOOLS, max_tokens=200, stream=True))
    check_stream(chunks)
    (call,) = whole["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"city": "Paris"}
    stock.clear_faults()
    bound = ask(stock_client, tools=TOOLS, tool_choice=NAMED, max_tokens=200).json()["choices"][0]
    assert json.loads(bound["message"]["tool_calls"][0]["function"]["arguments"]).keys() == {"city"}
