"""Chat templates: roles, text parts, what they forbid, what they cannot show."""

import json
import re
from collections.abc import Callable
from typing import Any

import jinja2
import pytest
from transformers.utils import chat_template_utils

from gateway.openai.errors import ApiError
from gateway.openai.schema import Tool, parse_chat
from gateway.translate.prompt import ChatTemplate, Prompt

PLAIN = (
    "{{ bos_token }}{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}</>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
PARTS = (
    "{% for message in messages %}<{{ message.role }}>"
    "{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content %}[{{ part.text }}]{% endfor %}{% endif %}</>{% endfor %}"
)
ONLY_PARTS = "{% for m in messages %}{% for part in m['content'] | list %}[{{ part['text'] }}]{% endfor %}{% endfor %}"


def render(source: str, *messages: dict[str, Any], **changes: Any) -> Prompt:
    body = {"model": "m", "messages": list(messages) or [{"role": "user", "content": "hi"}]}
    request = parse_chat(json.dumps(body).encode())
    return ChatTemplate(source, {"bos_token": "<s>"}).render(request.messages, **changes)


def test_roles_in_order_and_the_generation_prompt() -> None:
    conversation = [{"role": r, "content": r[0]} for r in ("system", "user", "assistant", "user")]
    assert render(PLAIN, *conversation).text == "<s><system>s</><user>u</><assistant>a</><user>u</><assistant>"


def test_developer_is_the_system_role_where_the_template_does_not_know_it() -> None:
    message = {"role": "developer", "content": "d"}
    assert render(PLAIN, message).text == "<s><system>d</><assistant>"
    assert render("{# 'developer' #}" + PLAIN, message).text == "<s><developer>d</><assistant>"


def test_instructions_become_one_system_message_where_the_template_does_not_know_developer() -> None:
    """As vLLM's server renders them: many templates want one system message, and want it first."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u"},
        {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "developer", "content": ""},
    ]
    assert render(PLAIN, *messages).text == "<s><system>s\n\na\nb</><user>u</><assistant>"
    only_system = [messages[1], messages[0]]
    assert render(PLAIN, *only_system).text == "<s><user>u</><system>s</><assistant>"


def test_text_parts_become_what_the_template_takes() -> None:
    message = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    assert render(PLAIN, message).text == "<s><user>a\nb</><assistant>"
    assert render(PARTS, message).text == "<user>[a][b]</>"
    assert render(PARTS, {"role": "user", "content": "a"}).text == "<user>a</>"
    assert render(ONLY_PARTS, message).text == "[a][b]"
    assert render(ONLY_PARTS, {"role": "user", "content": "ab"}).text == "[ab]"


def call(name: str, arguments: str) -> dict[str, Any]:
    return {"id": f"id-{name}", "type": "function", "function": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "function", "content": "x"}, "messages[0].role"),
        ({"role": "assistant", "tool_calls": [{}]}, "messages[0].tool_calls[0].function"),
        ({"role": "user", "content": "x", "tool_calls": [call("f", "{}")]}, "messages[0].tool_calls"),
        ({"role": "user", "content": "x", "tool_call_id": "1"}, "messages[0].tool_call_id"),
        ({"role": "user", "content": "x", "reasoning": "r"}, "messages[0].reasoning_content"),
        ({"role": "assistant", "tool_calls": [call("f", "{")]}, "messages[0].tool_calls[0].function.arguments"),
        ({"role": "assistant", "tool_calls": [call("f", "[1]")]}, "messages[0].tool_calls[0].function.arguments"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": []}, "messages[0].content"),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
            "messages[0].content[0].type",
        ),
        ({"role": "user", "content": [{"type": "input_audio"}]}, "messages[0].content[0].type"),
        ({"role": "user", "content": [{"type": "txt", "text": "x"}]}, "messages[0].content[0].type"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
    ],
)
def test_what_cannot_be_shown_is_refused_by_place(message: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        render(PLAIN, message)
    assert (caught.value.status, caught.value.param) == (400, param)


TOOLS = (
    "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}({{ c.function.arguments | tojson }}){% endfor %}"
    "{{ m.tool_call_id or '' }}{{ m.reasoning_content or '' }}{% endfor %}{{ reasoning_effort or '' }}"
)


def test_calls_and_their_results_are_shown_as_templates_take_them() -> None:
    """The arguments as an object; nothing written for them is no argument."""
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": None, "tool_calls": [call("f", '{"a": [1, "x"]}'), call("g", "")]},
        {"role": "tool", "content": "r", "tool_call_id": "id-f"},
        {"role": "assistant", "content": "done", "reasoning": "thought"},
    ]
    shown = render(TOOLS, *messages)
    assert shown.text == '<user>q<assistant>f({"a": [1, "x"]})g({})<tool>rid-f<assistant>donethought'
    assert shown.warnings == []


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "function", "function": {"name": "f"}},
        {"function": {"strict": True, "parameters": {"b": {"a": None}, "c": [None]}, "name": "f"}, "type": "function"},
        {"type": "function", "x": [None], "y": None, "function": {"name": "f", "z": {"a": None}, "y": None}},
        {"type": "function", "function": {"name": "f", "description": None, "parameters": {}, "strict": False}},
    ],
)
def test_a_template_sees_all_of_a_tool_that_is_not_null(tool: dict[str, Any]) -> None:
    given = Tool.model_validate(tool)
    assert render("{{ tools | tojson }}", tools=[given]).text == json.dumps([given.model_dump(exclude_none=True)])


def test_tools_and_effort_are_given_to_the_template() -> None:
    tool = Tool.model_validate({"type": "function", "function": {"name": "f", "description": "d"}})
    message = {"role": "user", "content": "q"}
    shown = render(TOOLS, message, tools=[tool], reasoning_effort="low")
    assert shown.text == '{"type": "function", "function": {"name": "f", "description": "d"}}<user>qlow'
    unread = render(PLAIN, message, tools=[tool], reasoning_effort="low").warnings
    assert [name for name in ("tools", "reasoning_effort") if any(name in warning for warning in unread)] == [
        "tools",
        "reasoning_effort",
    ]
    assert len(unread) == 2


def test_empty_members_of_a_replayed_answer_are_no_request() -> None:
    message: dict[str, Any] = {"role": "assistant", "content": "a", "tool_calls": [], "refusal": None, "audio": None}
    assert render(PLAIN, message) == Prompt("<s><assistant>a</><assistant>", [])


def test_what_a_message_holds_beyond_the_template_is_warned_about() -> None:
    prompt = render(PLAIN, {"role": "user", "content": "a", "name": "bob", "extra": 1})
    assert len(prompt.warnings) == 2
    assert "messages[0].extra" in prompt.warnings[0]
    assert "messages[0].name" in prompt.warnings[1]
    part = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}
    (warning,) = render(PLAIN, {"role": "user", "content": [part]}).warnings
    assert "messages[0].content[0].cache_control" in warning
    assert render("{{ messages[0].name }}", {"role": "user", "content": "a", "name": "bob"}) == Prompt("bob", [])


def test_the_templates_own_refusal_is_the_clients_error() -> None:
    with pytest.raises(ApiError, match="must alternate") as caught:
        render("{{ raise_exception('roles must alternate') }}")
    assert (caught.value.status, caught.value.param) == (400, "messages")


@pytest.mark.parametrize(
    "source", ["{{ messages[9].x.y }}", "{{ ().__class__.__mro__[1].__subclasses__() }}", "{{ 1 // 0 }}"]
)
def test_a_template_that_fails_or_escapes_is_an_error_and_no_crash(source: str) -> None:
    with pytest.raises(ApiError):
        render(source)


def test_a_template_that_does_not_compile_is_a_sentence() -> None:
    with pytest.raises(ValueError, match="does not compile: line 1"):
        ChatTemplate("{% if %}", {})


def test_continue_final_message() -> None:
    conversation = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "The capital"}]
    assert render(PLAIN, *conversation, continue_final_message=True).text == "<s><user>q</><assistant>The capital"
    with pytest.raises(ApiError, match="exclude each other"):
        render(PLAIN, *conversation, continue_final_message=True, add_generation_prompt=True)


def test_add_generation_prompt_and_kwargs_reach_the_template() -> None:
    assert render(PLAIN, add_generation_prompt=False).text == "<s><user>hi</>"
    assert (
        render("{{ mood }}{{ documents[0].text }}", chat_template_kwargs={"mood": "m"}, documents=[{"text": "d"}]).text
        == "md"
    )


def test_variables_that_the_template_does_not_read_are_warned_about() -> None:
    prompt = render(
        "{{ mood }}", chat_template_kwargs={"mood": 1, "thinking": 2}, documents=[{}], add_generation_prompt=True
    )
    assert [warning.partition(" ")[0] for warning in prompt.warnings] == [
        "chat_template_kwargs.thinking",
        "documents",
        "add_generation_prompt",
    ]
    assert render(PLAIN, add_generation_prompt=True).warnings == []


@pytest.mark.parametrize(
    "name", ["messages", "tools", "add_generation_prompt", "bos_token", "chat_template", "conversations", "self"]
)
def test_kwargs_cannot_replace_what_the_gateway_sets(name: str) -> None:
    with pytest.raises(ApiError) as caught:
        render(PLAIN, chat_template_kwargs={name: "x"})
    assert caught.value.param == f"chat_template_kwargs.{name}"


_LOOKED_UP = {
    "members": "{{ m.role }}{{ m['content'] }}{{ m.nothing }}{{ m.nothing is defined }}{{ m.get('role') }}",
    "methods": "{{ m.items() | list }}{{ m.keys() | list }}{{ m | items | list }}{{ m.__class__ }}",
    "inside": "{{ m.__class__.__mro__ }}",
    "changing": "{{ m.update({}) }}",
    "members that are named as methods": "{% for c in m.tool_calls %}{{ c.function.arguments.items }}{% endfor %}",
    "members of members": "{% for c in m.tool_calls %}{{ c.function.arguments.city }}{{ c.function.name }}{% endfor %}",
    "loops": "{{ loop.first }}{{ loop.last }}{{ loop.index }}{{ loop.index0 }}{{ loop.length }}{{ loop.revindex }}"
    "{{ loop.previtem.role }}{{ loop.nextitem is defined }}{{ loop.depth }}{{ loop.nothing }}",
    "methods of loops": "{{ loop.cycle('a', 'b') }}{{ loop.changed(m.role) }}",
    "inside of loops": "{{ loop._iterable }}",
    "namespaces": "{% set ns = namespace(n=1) %}{% set ns.n = ns.n + 1 %}{{ ns.n }}{{ ns.__dict__ }}",
    "texts": "{{ m.content.strip() }}{{ m.content.upper }}{{ m.content | length }}{{ m.content[0] }}",
    "numbers": "{{ (1).real }}{{ (1).__class__ }}",
}


@pytest.mark.parametrize("source", _LOOKED_UP.values(), ids=_LOOKED_UP.keys())
def test_what_a_template_looks_up_is_what_it_finds_in_the_sandbox(source: str) -> None:
    function = {"name": "f", "arguments": '{"items": 1, "city": "x", "get": 2}'}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "hi "},
        {"role": "assistant", "content": "c", "tool_calls": [{"id": "1", "type": "function", "function": function}]},
    ]
    source = "{% for m in messages %}" + source + "{% endfor %}"
    assert _outcome(lambda: render(source, *messages).text) == _outcome(lambda: _by_transformers(source, messages))


def _by_transformers(source: str, messages: list[dict[str, Any]]) -> str:
    messages = json.loads(json.dumps(messages))
    for message in messages:
        for call in message.get("tool_calls", ()):
            # As transformers' templates take them.
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
            call.update({"id": call.pop("id")})
    template = chat_template_utils._cached_compile_jinja_template(source)
    text: str = template.render(messages=messages, tools=None, documents=None, add_generation_prompt=True)
    return text


def _outcome(rendering: Callable[[], str]) -> str:
    try:
        return re.sub(r"0x[0-9a-f]+", "0x", rendering())
    except (ApiError, jinja2.TemplateError):
        return "refused"
