"""The quick rendering of messages that are texts: the same as the usual one's, time after time."""

import copy
import json
from typing import Any

import jinja2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.openai.errors import ApiError
from gateway.openai.schema import Message
from gateway.translate.prompt import ChatTemplate

Messages = list[dict[str, Any]]

PLAIN = (
    "{{ bos_token }}{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}</>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
# What it sets outlives neither a rendering nor, where the language says so, a block.
STATE = """{%- set count = 0 -%}
{%- set state = namespace(seen=0, last='', system=none) -%}
{%- macro framed(message, mark='|') -%}
    {%- set role = message.role | upper -%}
    {{ mark }}{{ role }}:{{ message['content'] | trim }}{{ mark }}{{ caller() if caller else '' }}
{%- endmacro -%}
{%- if messages[0].role == 'system' -%}
    {%- set state.system = messages[0].content -%}
    {%- set rest = messages[1:] -%}
{%- else -%}
    {%- set rest = messages -%}
{%- endif -%}
{%- for message in rest -%}
    {%- set count = count + 1 -%}
    {%- set state.seen = state.seen + 1 -%}
    {{- framed(message) -}}
    {%- call framed(message, mark='#') -%}{{ loop.index0 }}/{{ loop.length }}{%- endcall -%}
    {%- if loop.previtem is defined and loop.previtem.role == message.role -%}again{%- endif -%}
    {%- if not loop.last and loop.nextitem.content == '' -%}empty{%- endif -%}
    {{- loop.cycle('odd', 'even') }}{{ loop.changed(message.role) -}}
    {%- if loop.index > 2 -%}{%- continue -%}{%- endif -%}
    {%- set state.last = message.content -%}
    {%- if message.content == 'stop' -%}{%- break -%}{%- endif -%}
{%- else -%}
    nothing
{%- endfor -%}
{{- count }}{{ state.seen }}{{ state.last | tojson }}{{ state.system }}{{ unset is defined }}
{%- set unset = messages | length -%}
{%- set documents = [unset] -%}
{{- unset }}{{ documents -}}
"""
PARTS = (
    "{% for message in messages %}<{{ message.role }}>{% for part in message.content %}"
    "[{{ part.type }}:{{ part['text'] }}]{% endfor %}</>{% endfor %}{{ messages | tojson }}"
)
TEXT_OR_PARTS = (
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}[{{ part.text }}]{% endfor %}{% endif %}{% endfor %}"
)
RAISES = (
    "{% for message in messages %}{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{{ message.content }}</>{% endfor %}"
)
FAILS = "{% for message in messages %}{{ message.content + loop.index }}{% endfor %}"
MISSES = "{% for message in messages %}{{ message.content }}{{ message.name.first }}{% endfor %}"
READS_ALL = (
    "{{ bos_token }}{{ eos_token }}{% for message in messages %}{{ message | tojson }}{{ message.items() | list }}"
    "{% for name in message %}{{ name }}{% endfor %}{{ message.name is defined }}{% endfor %}"
    "{{ tools is none }}{{ tools is defined }}{{ add_generation_prompt }}"
    "{% if documents %}{% for document in documents %}{{ document.title }}={{ document | tojson }}{% endfor %}"
    "{% else %}{{ documents }}{% endif %}"
    "{{ reasoning_effort | default('no effort') }}{{ enable_thinking | default('no thinking') }}"
    "{{ nested.a if nested is defined else 'not nested' }}{{ nested | default({}) | tojson }}"
)
# What one rendering would leave for the next, if it could.
CHANGES = (
    "{% set _ = messages[0].update({'content': 'changed'}) %}{% set _ = nested.update({'a': 1}) %}"
    "{% set _ = documents.append(1) %}{{ messages }}"
)
GENERATION = (
    "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
    "{% else %}{{ m.content }}{% endif %}{% endfor %}"
)
TEMPLATES = {
    "plain": PLAIN,
    "state": STATE,
    "parts": PARTS,
    "text or parts": TEXT_OR_PARTS,
    "raises": RAISES,
    "fails": FAILS,
    "misses": MISSES,
    "reads all": READS_ALL,
    "changes": CHANGES,
    "generation": GENERATION,
    "nothing": "",
    "blocks": "{% block a %}{{ messages | length }}{% endblock %}{{ self.a() }}{% filter upper %}x{% endfilter %}",
}
COMPILED = {name: ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"}) for name, source in TEMPLATES.items()}

odd_texts = ["", " ", "stop", "<s>", "{{ 1 }}{% raw %}", "日本 🎉", '"\\\n\x00', " x\n"]
texts = st.sampled_from(odd_texts) | st.text(max_size=12)
conversations = st.lists(
    st.builds(
        lambda role, content: {"role": role, "content": content},
        st.sampled_from(["system", "user", "assistant"]),
        texts,
    ),
    min_size=1,
    max_size=4,
)
arguments: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "add_generation_prompt": st.sampled_from([None, True, False]),
        "documents": st.sampled_from([None, [], [{"title": "a", "text": "b"}, {"title": "ä"}]]),
        "reasoning_effort": st.sampled_from([None, "low"]),
        "chat_template_kwargs": st.sampled_from(
            [
                None,
                {},
                {"enable_thinking": False},
                {"enable_thinking": None, "reasoning_effort": "low", "nested": {"a": {"b": [1]}}},
                {"count": 7, "state": 1, "rest": [], "unset": "x", "message": None, "loop": 1},
            ]
        ),
    }
)


def usual(template: ChatTemplate, messages: Messages, given: dict[str, Any]) -> str | None:
    """None where the template refuses or fails."""
    try:
        return template.render([Message(**message) for message in messages], **given).text
    except ApiError:
        return None


@pytest.mark.parametrize("name", TEMPLATES)
@given(st.lists(conversations, min_size=1, max_size=3), arguments)
@settings(max_examples=40)
def test_as_the_usual_rendering_time_after_time(name: str, several: list[Messages], given: dict[str, Any]) -> None:
    template = COMPILED[name]
    unchanged = copy.deepcopy((several, given))
    right = [usual(template, messages, given) for messages in several]
    rendered = template.of_texts(**given)
    for _ in range(2):
        for messages, text in zip(several, right, strict=True):
            if text is None:
                with pytest.raises((jinja2.TemplateError, TypeError)):
                    rendered(messages)
            else:
                assert rendered(messages) == text
    # Nor does one that is made later see anything of the earlier one's.
    assert [usual(template, messages, given) for messages in several] == right
    assert (several, given) == unchanged


@pytest.mark.parametrize("name", TEMPLATES)
def test_each_template_does_something_of_its_own(name: str) -> None:
    """That the comparison is one of texts, but for those that refuse all messages."""
    conversation = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    given: dict[str, Any] = {"documents": [], "chat_template_kwargs": {"nested": {}}}
    assert (usual(COMPILED[name], conversation, given) is None) == (name in ("fails", "misses", "changes"))


def of_texts(source: str, **given: Any) -> Any:
    none = {"add_generation_prompt": None, "documents": None, "reasoning_effort": None, "chat_template_kwargs": None}
    return ChatTemplate(source, {"bos_token": "<s>"}).of_texts(**none | given)


USER = [{"role": "user", "content": "a"}]


def test_what_is_rendered() -> None:
    assert of_texts(PLAIN)(USER) == "<s><user>a</><assistant>"
    assert of_texts(PLAIN, add_generation_prompt=False)(USER) == "<s><user>a</>"
    assert of_texts(TEXT_OR_PARTS)(USER) == "a"
    only_parts = "{% for m in messages %}{% for part in m.content %}[{{ part.text }}]{% endfor %}{% endfor %}"
    assert of_texts(only_parts)(USER) == "[a]"
    assert of_texts("{{ tools }}{{ documents }}{{ effort }}")(USER) == "NoneNone"
    assert of_texts("{{ effort }}", chat_template_kwargs={"effort": 1})(USER) == "1"


def test_what_the_template_raises_is_raised_each_time() -> None:
    rendered = of_texts(RAISES)
    wrong = [{"role": "assistant", "content": "a"}]
    for _ in range(2):
        with pytest.raises(jinja2.TemplateError, match="roles must alternate"):
            rendered(wrong)
        assert rendered(USER) == "a</>"


def test_renderings_of_one_template_do_not_know_of_each_other() -> None:
    template = ChatTemplate(READS_ALL, {})
    none: dict[str, Any] = {"add_generation_prompt": None, "documents": None, "reasoning_effort": None}
    one = template.of_texts(**none, chat_template_kwargs={"enable_thinking": "yes"})
    other = template.of_texts(**none | {"documents": [{"title": "t"}]}, chat_template_kwargs=None)
    first, second = one(USER), other(USER)
    assert "yes" in first
    assert "yes" not in second
    assert "t=" + json.dumps({"title": "t"}) in second
    assert (one(USER), other(USER)) == (first, second)


def test_what_the_gateway_sets_is_not_the_clients() -> None:
    with pytest.raises(ApiError, match="set by the gateway"):
        of_texts(PLAIN, chat_template_kwargs={"bos_token": "x"})
