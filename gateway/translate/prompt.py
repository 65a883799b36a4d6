"""Messages → prompt text, through the model's chat template. Pure: no I/O.

The template runs in `transformers`' own sandbox and is compiled once. What a template cannot show is
refused or warned about, never dropped: content other than text, tools or thinking that the template does not
read, a name.
"""

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jinja2
import jinja2.meta
import jinja2.nodes
from pydantic import BaseModel
from transformers.utils.chat_template_utils import _compile_jinja_template, render_jinja_template

from gateway.openai.errors import bad_request, not_supported_yet
from gateway.openai.giving_way import empty
from gateway.openai.json_text import loads
from gateway.openai.pieces import PIECE
from gateway.openai.schema import ContentPart, Message, Tool, ToolCall
from gateway.translate.template_code import compiled
from gateway.translate.tojson import write_in_pieces

_log = logging.getLogger(__name__)

_LATER_PARTS = {"image_url", "input_audio", "file", "video_url", "audio_url", "image", "image_embeds"}
_LATER_MEMBERS = ("function_call", "audio", "refusal")
# What `render_jinja_template` and the template take as their own.
_RESERVED = {
    "add_generation_prompt",
    "chat_template",
    "continue_final_message",
    "conversations",
    "documents",
    "messages",
    "return_assistant_tokens_mask",
    "self",
    "tools",
}


class Prompt(NamedTuple):
    """A rendered prompt and what could not be shown in it."""

    text: str
    warnings: list[str]


class ChatTemplate:
    """One model's chat template.

    `source` is Jinja text; `special_tokens` maps `bos_token`, `eos_token`, … to their text, as the
    tokenizer's configuration names them. Raises `ValueError` with a sentence when the template does
    not compile.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self.source = source
        self._special_tokens = dict(special_tokens)
        try:
            environment = _compile_jinja_template(source).environment
            self._compiled = compiled(environment, source)
            tree = environment.parse(source)
        except jinja2.TemplateSyntaxError as error:
            raise ValueError(f"the chat template does not compile: line {error.lineno}: {error.message}") from None
        write_in_pieces(environment)
        self._takes_parts = _loops_over_content(tree)
        self._takes_text = not self._takes_parts or re.search(r"\bis\s+(not\s+)?string\b", source) is not None
        self._variables = jinja2.meta.find_undeclared_variables(tree)
        self._knows_developer = re.search(r"""['"]developer['"]""", source) is not None
        self.takes_tools = "tools" in self._variables
        self._takes_calls = "tool_calls" in source
        self._reads_name = re.search(r"""\[['"]name['"]\]|\.name\b""", source) is not None

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool | None = None,
        documents: list[dict[str, Any]] | None = None,
        tools: Sequence[Tool] = (),
        reasoning_effort: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> Prompt:
        """Render what a request asks for; what the template or the messages forbid is a 400."""
        warnings: list[str] = []
        rendered_messages = [self._message(m, f"messages[{i}]", warnings) for i, m in enumerate(messages)]
        if not self._knows_developer and any(message.role == "developer" for message in messages):
            rendered_messages = _with_one_system_message(rendered_messages)
        variables = self._variables_of(chat_template_kwargs or {})
        if reasoning_effort is not None:
            if variables.get("reasoning_effort", reasoning_effort) != reasoning_effort:
                raise bad_request(
                    "reasoning_effort and chat_template_kwargs.reasoning_effort differ; give one of them.",
                    "chat_template_kwargs.reasoning_effort",
                )
            variables["reasoning_effort"] = reasoning_effort
        warnings += self._unread(
            {f"chat_template_kwargs.{name}": name for name in chat_template_kwargs or {}}
            | ({} if documents is None else {"documents": "documents"})
            | ({} if add_generation_prompt is None else {"add_generation_prompt": "add_generation_prompt"})
            | ({} if reasoning_effort is None else {"reasoning_effort": "reasoning_effort"})
            | ({"tools": "tools"} if tools else {})
        )
        if continue_final_message and add_generation_prompt:
            raise bad_request(
                "continue_final_message and add_generation_prompt exclude each other; give one of them.",
                param="continue_final_message",
            )
        if add_generation_prompt is None:
            add_generation_prompt = not continue_final_message
        variables["documents"] = documents
        variables["tools"] = [_shown(tool) for tool in tools] or None
        variables["add_generation_prompt"] = add_generation_prompt
        try:
            text = self._rendered(rendered_messages, bool(continue_final_message), variables)
        except jinja2.TemplateError as error:
            # raise_exception of the template's author, such as "roles must alternate".
            raise bad_request(f"The model's chat template refused the messages: {error}", param="messages") from None
        except Exception as error:
            # A template is a program: with messages that its author did not think of it fails in any way.
            _log.info("a chat template failed: %r", error)
            raise bad_request("The model's chat template cannot show these messages.", param="messages") from None
        if len(text) > PIECE:
            # To free ten thousand messages at once takes as long as to render them.
            empty(rendered_messages)
        return Prompt(text, warnings)

    def of_texts(
        self,
        *,
        add_generation_prompt: bool | None,
        documents: list[dict[str, Any]] | None,
        reasoning_effort: str | None,
        chat_template_kwargs: Mapping[str, Any] | None,
    ) -> Callable[[list[dict[str, Any]]], str]:
        """What renders messages that are a role and a text each, of a request that `render` took with these arguments
        and other messages. It raises what the template does."""
        variables = self._variables_of(chat_template_kwargs or {})
        if reasoning_effort is not None:
            variables["reasoning_effort"] = reasoning_effort
        variables |= {"documents": documents, "tools": None}
        variables["add_generation_prompt"] = add_generation_prompt is not False
        template, takes_text = self._compiled, self._takes_text
        environment, name, blocks = template.environment, template.name, template.blocks
        # With what every template sees. `Template.render` puts it together for each rendering, which takes as long as
        # the rendering; and tells it apart from the rest, for templates that include others, which these cannot.
        seen = {**template.globals, **variables}
        context_of = environment.context_class

        def rendered(messages: list[dict[str, Any]]) -> str:
            if not takes_text:
                messages = [one | {"content": [{"type": "text", "text": one["content"]}]} for one in messages]
            context = context_of(environment, {**seen, "messages": messages}, name, blocks)
            # A known request is not so long that its text is to be joined in pieces.
            return "".join(template.root_render_func(context))

        return rendered

    def _rendered(self, messages: list[dict[str, Any]], continue_final: bool, variables: Mapping[str, Any]) -> str:
        if continue_final or any("reasoning" in message for message in messages):
            # Its annotation says str; it returns the rendered chats and the assistants' indices.
            rendered: Any = render_jinja_template(
                conversations=[messages],
                chat_template=self.source,
                continue_final_message=continue_final,
                **variables,
            )
            return str(rendered[0][0])
        # All that the former does for such messages, which hold nothing but JSON, is to copy them, which takes longer
        # than the rendering.
        text: str = self._compiled.render(messages=messages, **variables)
        return text

    def _variables_of(self, chat_template_kwargs: Mapping[str, Any]) -> dict[str, Any]:
        for name in chat_template_kwargs:
            if name in _RESERVED or name in self._special_tokens:
                raise bad_request(
                    f"chat_template_kwargs.{name} is set by the gateway; remove it.",
                    param=f"chat_template_kwargs.{name}",
                )
        return {**self._special_tokens, **chat_template_kwargs}

    def _unread(self, given: Mapping[str, str]) -> list[str]:
        """Warnings of what a request gives (its place → the variable) and the template does not read."""
        return [
            f"{place} is not read by the model's chat template"
            for place, variable in given.items()
            if variable not in self._variables
        ]

    def _message(self, message: Message, place: str, warnings: list[str]) -> dict[str, Any]:
        role = message.role
        if role == "function":
            raise bad_request(
                f"{place}.role must be 'tool' for the result of a call; 'function' is its older form.", f"{place}.role"
            )
        extras = message.model_extra or {}
        for name, value in extras.items():
            if value is None or value == []:
                continue
            if name in _LATER_MEMBERS:
                raise not_supported_yet(f"{place}.{name}")
            warnings.append(f"unknown field '{place}.{name}' was ignored")
        content = message.content
        if content is None:
            if not message.tool_calls:
                raise bad_request(
                    f"{place}.content is required.", f"{place}.content", "missing_required_parameter"
                )
            # As vLLM renders it: a message of calls alone has an empty text.
            content = ""
        rendered: dict[str, Any] = {"role": role, "content": self._content(content, f"{place}.content", warnings)}
        rendered |= self._assistants(message, place, warnings)
        if message.tool_call_id is not None:
            if role != "tool":
                raise bad_request(f"{place}.tool_call_id belongs to the role 'tool'.", f"{place}.tool_call_id")
            rendered["tool_call_id"] = message.tool_call_id
        elif role == "tool":
            raise bad_request(
                f"{place}.tool_call_id is required: it says which call this is the result of.",
                f"{place}.tool_call_id",
                "missing_required_parameter",
            )
        if message.name is not None:
            rendered["name"] = message.name
            if not self._reads_name:
                warnings.append(f"{place}.name is not read by the model's chat template")
        return rendered

    def _assistants(self, message: Message, place: str, warnings: list[str]) -> dict[str, Any]:
        """The members that only an earlier answer has: its calls and its thinking."""
        members: dict[str, Any] = {}
        if message.tool_calls:
            if message.role != "assistant":
                raise bad_request(f"{place}.tool_calls belongs to the role 'assistant'.", f"{place}.tool_calls")
            if not self._takes_calls:
                warnings.append(f"{place}.tool_calls is not read by the model's chat template")
            members["tool_calls"] = [
                _call(call, f"{place}.tool_calls[{index}]", warnings) for index, call in enumerate(message.tool_calls)
            ]
        reasoning = message.reasoning if message.reasoning is not None else message.reasoning_content
        if reasoning is not None:
            if message.reasoning_content not in (None, reasoning):
                raise bad_request(
                    f"{place}.reasoning and {place}.reasoning_content are two names of one text, and differ; give one "
                    "of them.",
                    f"{place}.reasoning_content",
                )
            if message.role != "assistant":
                raise bad_request(
                    f"{place}.reasoning_content belongs to the role 'assistant'.", f"{place}.reasoning_content"
                )
            # Templates know it by either name.
            members |= {"reasoning": reasoning, "reasoning_content": reasoning}
            if "reasoning" not in self.source:
                warnings.append(f"{place}.reasoning_content is not read by the model's chat template")
        return members

    def _content(self, content: str | list[ContentPart], place: str, warnings: list[str]) -> str | list[dict[str, str]]:
        if isinstance(content, str):
            return content if self._takes_text else [{"type": "text", "text": content}]
        texts = [_text_of(part, f"{place}[{i}]", warnings) for i, part in enumerate(content)]
        if not texts:
            raise bad_request(f"{place} must not be empty.", param=place)
        if self._takes_parts:
            return [{"type": "text", "text": text} for text in texts]
        return "\n".join(texts)


def _shown(tool: Tool) -> dict[str, Any]:
    """What templates see of a tool: all that the client said."""
    function = {name: one for name, one in tool.function if one is not None}
    return {name: one for name, one in tool if one is not None} | {"function": function}


def _with_one_system_message(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """`developer` is OpenAI's successor of `system`; templates that predate it know only the latter, and many that
    it stands once and first. So all of both become one, as vLLM's server does it."""
    instructions = [m["content"] for m in messages if m["role"] in ("system", "developer")]
    texts = [c if isinstance(c, str) else "\n".join(part["text"] for part in c) for c in instructions]
    text = "\n\n".join(text for text in texts if text)
    merged = text if isinstance(instructions[0], str) else [{"type": "text", "text": text}]
    others = [message for message in messages if message["role"] not in ("system", "developer")]
    one: dict[str, Any] = {"role": "system", "content": merged}
    return [one, *others]


def _call(call: ToolCall, place: str, warnings: list[str]) -> dict[str, Any]:
    """A call as templates take it: its arguments are an object, not its text (transformers' chat templates)."""
    warnings += _unknown(call, place) + _unknown(call.function, f"{place}.function")
    place = f"{place}.function.arguments"
    text = call.function.arguments
    try:
        # Some clients write nothing for a tool without parameters.
        arguments = loads(text) if text.strip() else {}
    except ValueError as error:
        raise bad_request(f"{place} is not valid JSON: {error}.", place, "invalid_value") from None
    if not isinstance(arguments, dict):
        raise bad_request(f"{place} must be the JSON text of an object.", place, "invalid_value")
    function = {"name": call.function.name, "arguments": arguments}
    return {"type": "function", "function": function} | ({} if call.id is None else {"id": call.id})


def _text_of(part: ContentPart, place: str, warnings: list[str]) -> str:
    if part.type in _LATER_PARTS:
        raise not_supported_yet(f"{place}.type {part.type!r}", param=f"{place}.type")
    if part.type != "text":
        raise bad_request(f"{place}.type must be 'text'.", param=f"{place}.type")
    if part.text is None:
        raise bad_request(f"{place}.text is required.", f"{place}.text", "missing_required_parameter")
    warnings += _unknown(part, place)
    return part.text


def _unknown(given: BaseModel, place: str) -> list[str]:
    extras = given.model_extra or {}
    return [f"unknown field '{place}.{name}' was ignored" for name in extras if extras[name] is not None]


def _loops_over_content(tree: jinja2.nodes.Template) -> bool:
    """Whether the template takes a message's content as a list of parts: it loops over `….content`."""
    return any(_is_content(loop.iter) for loop in tree.find_all(jinja2.nodes.For))


def _is_content(node: jinja2.nodes.Node) -> bool:
    while isinstance(node, jinja2.nodes.Filter) and node.node is not None:
        node = node.node
    if isinstance(node, jinja2.nodes.Getattr):
        return node.attr == "content"
    if isinstance(node, jinja2.nodes.Getitem):
        return isinstance(node.arg, jinja2.nodes.Const) and node.arg.value == "content"
    return isinstance(node, jinja2.nodes.Name) and node.name == "content"
