"""Was any known field of an answered request dropped? Reads the field tables and compares with what arrived.

`dropped` knows what every field of a request with any valid value changes: in the engine's request, in the answer or
in the warning header. It is how tests judge requests that nobody wrote down.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.openai.fields import CHAT, COMPLETION, DETOKENIZE, TOKENIZE, Fate, Field, is_one_of
from gateway.openai.schema import Message

TABLES: Mapping[str, Mapping[str, Field]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": COMPLETION,
    "/tokenize": TOKENIZE,
    "/detokenize": DETOKENIZE,
}
_CONSTRAINTS = (
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
)
_HEADER_IS_FULL = 2000
"""Bytes; a header that is about as long as it may be has lost its last warnings."""


@dataclass(frozen=True)
class Exchange:
    """A request that was answered with 200. `arrived` are the engine's requests in the order of the choices;
    `answers` the answer, or the events of a stream."""

    path: str
    body: Mapping[str, Any]
    arrived: list[dict[str, Any]]
    answers: list[dict[str, Any]]
    warning: str
    streamed: bool

    @property
    def is_chat(self) -> bool:
        return self.path == "/v1/chat/completions"

    def given(self, name: str) -> Any:
        return self.body.get(name)

    @property
    def choices(self) -> list[dict[str, Any]]:
        return [choice for answer in self.answers for choice in answer["choices"]]

    def text(self, index: int) -> str:
        parts = []
        for choice in self.choices:
            if choice["index"] == index:
                said = choice.get("message") or choice.get("delta") or choice
                parts.append(said.get("content") or said.get("text") or "")
        return "".join(parts)

    def prompt(self, number: int) -> Any:
        inputs = self.arrived[number]["inputs"]
        return inputs.get("text_input", inputs.get("input_ids"))

    @property
    def prompts(self) -> list[Any]:
        prompt = self.given("prompt")
        return [prompt] if isinstance(prompt, str) or isinstance(prompt[0], int) else list(prompt)


def dropped(exchange: Exchange) -> list[str]:
    """The fields that were neither forwarded, nor done, nor named as ignored."""
    table = TABLES[exchange.path]
    found = []
    for name, value in exchange.body.items():
        if value is None:
            continue
        field = table.get(name)
        if field is not None and _has_no_effect(exchange, name, value):
            is_kept = f"{name} has no effect" in exchange.warning or len(exchange.warning) > _HEADER_IS_FULL
        elif field is None or field.fate is Fate.IGNORED:
            is_kept = _is_warned(exchange, name)
        elif field.fate is Fate.REFUSED:
            is_kept = is_one_of(value, field.harmless)
        elif field.key is not None or field.input is not None:
            is_kept = _has_arrived(exchange, field, value)
        else:
            is_kept = _DONE[name](exchange, value)
        if not is_kept:
            found.append(name)
    return found


def _has_no_effect(exchange: Exchange, name: str, value: Any) -> bool:
    """Whether a field of this value changes nothing beside the others, at the tests' model, which does not think."""
    if not exchange.is_chat and exchange.given("max_tokens") == 0 and name in _OF_CHOSEN_TOKENS:
        return True
    return name in _IDLE and _IDLE[name](exchange, value)


_OF_CHOSEN_TOKENS = {
    *_CONSTRAINTS,
    "constraints",
    *(f.name for f in COMPLETION.values() if f.key and f.name not in ("max_tokens", "logprobs", "prompt_logprobs")),
}


def _calls(exchange: Exchange) -> bool:
    return bool(exchange.given("tools")) and exchange.given("tool_choice") != "none"


_IDLE: dict[str, Callable[[Exchange, Any], bool]] = {
    "echo": lambda exchange, value: value and exchange.is_chat and not _last_answer(exchange),
    "include_reasoning": lambda exchange, value: not value,
    "tool_choice": lambda exchange, value: value == "auto" and not exchange.given("tools"),
    "parallel_tool_calls": lambda exchange, value: not value and not _calls(exchange),
    "skip_special_tokens": lambda exchange, value: value and _calls(exchange),
    "spaces_between_special_tokens": lambda exchange, value: not value
    and exchange.given("skip_special_tokens") is not False
    and not _calls(exchange),
    "return_tokens_as_token_ids": lambda exchange, value: value
    and (exchange.given("logprobs") is None or exchange.given("logprobs") is False),
    "stream_interval": lambda exchange, value: not exchange.streamed,
    "add_special_tokens": lambda exchange, value: value
    and exchange.path == "/v1/completions"
    and not isinstance(exchange.prompts[0], str),
}


def _last_answer(exchange: Exchange) -> str:
    last = exchange.given("messages")[-1]
    return "\n".join(part["text"] for part in _parts(last)) if last["role"] == "assistant" else ""


def _is_warned(exchange: Exchange, name: str) -> bool:
    """By its name, as a header can hold it: quoted, or in a place."""
    shown = {repr(name)[1:-1], name}
    printable = {
        "".join(c if 32 <= ord(c) < 127 else "?" for c in one.encode("ascii", "backslashreplace").decode())
        for one in shown
    }
    return any(one in exchange.warning for one in printable) or len(exchange.warning) > _HEADER_IS_FULL


def _has_arrived(exchange: Exchange, field: Field, value: Any) -> bool:
    if field.input is not None:
        return all(request["inputs"].get(field.input) == value for request in exchange.arrived)
    assert field.key is not None
    choices = exchange.given("n") or 1
    for number, request in enumerate(exchange.arrived):
        parameters = request["sampling_parameters"]
        if field.name in ("logprobs", "top_logprobs") and exchange.given("logprob_token_ids") is not None:
            # The tokens that are named stand in the place of the best-ranked ones: none of these may be asked for.
            return not value or value is True
        if field.name == "top_logprobs" and not exchange.given("logprobs"):
            # Refused unless it asks for nothing.
            return bool(value == 0)
        expected = value
        if field.name == "seed":
            expected = value + number % choices
        elif field.name == "max_tokens":
            expected = value or 1
        elif field.name == "vllm_xargs" and exchange.given("constraints") is not None:
            expected = value | {"constraints": exchange.given("constraints")}
        elif field.name == "repetition_detection":
            expected = {key: one for key, one in value.items() if one is not None}
        if field.key not in parameters or not _is_same(parameters[field.key], expected):
            return False
    return True


def _is_same(arrived: Any, given: Any) -> bool:
    """A number that may have a fraction arrives as one of double precision."""
    if isinstance(arrived, float) and isinstance(given, int):
        return arrived == float(given)
    return bool(arrived == given)


Check = Callable[[Exchange, Any], bool]


def _model(exchange: Exchange, value: Any) -> bool:
    return all(answer.get("model", value) == value for answer in exchange.answers)


def _messages(exchange: Exchange, value: Any) -> bool:
    if exchange.path == "/tokenize":
        return bool(exchange.answers[0]["tokens"])
    parts = [part for message in value for part in _parts(message)]
    # The template leaves out the white space around a text that is to be continued.
    is_there = all(part["text"].strip() in exchange.prompt(0) for part in parts)
    known = Message.model_fields.keys() | {"type", "text"}
    extras = [name for one in (*value, *parts) for name in one if name not in known and one[name] not in (None, [])]
    return is_there and all(_is_warned(exchange, name) for name in extras)


def _parts(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    content = message.get("content")
    return [{"text": content}] if isinstance(content, str) else list(content or ())


def _stream(exchange: Exchange, value: Any) -> bool:
    return exchange.streamed is value


def _stream_options(exchange: Exchange, value: Any) -> bool:
    *chunks, last = exchange.answers
    continuous = bool(value.get("continuous_usage_stats"))
    if not value.get("include_usage") and not continuous:
        return all("usage" not in answer for answer in exchange.answers)
    return bool(last.get("usage")) and all(bool(chunk.get("usage")) is continuous for chunk in chunks)


def _constraint(exchange: Exchange, value: Any) -> bool:
    if isinstance(value, dict) and value.get("type") == "text":
        return True
    return all("structured_outputs" in request["sampling_parameters"] for request in exchange.arrived)


def _constraints(exchange: Exchange, value: Any) -> bool:
    arrived = [request["sampling_parameters"].get("extra_args", {}) for request in exchange.arrived]
    return all(arguments.get("constraints") == value for arguments in arrived)


def _n(exchange: Exchange, value: Any) -> bool:
    prompts = 1 if exchange.is_chat else len(exchange.prompts)
    return {choice["index"] for choice in exchange.choices} == set(range(value * prompts)) and len(
        exchange.arrived
    ) == value * prompts


def _limit(exchange: Exchange, value: Any) -> bool:
    return all(request["sampling_parameters"]["max_tokens"] == value for request in exchange.arrived)


def _return_token_ids(exchange: Exchange, value: Any) -> bool:
    shown = any(choice.get("token_ids") is not None for choice in exchange.choices)
    return shown is value


def _logprobs(exchange: Exchange, value: Any) -> bool:
    return any(choice["logprobs"] is not None for choice in exchange.choices) is value


def _as_token_ids(exchange: Exchange, value: Any) -> bool:
    tokens = []
    for choice in exchange.choices:
        logprobs = choice["logprobs"] or {}
        tokens += [entry["token"] for entry in logprobs.get("content") or ()]
        tokens += logprobs.get("tokens", [])
    # Without log probabilities there is nothing to be named.
    return all(token.startswith("token_id:") is value for token in tokens)


def _add_generation_prompt(exchange: Exchange, value: Any) -> bool:
    if not exchange.arrived:
        return True
    return bool(exchange.prompt(0).endswith("<|assistant|>") is value) or _ends_after_template(exchange)


def _ends_after_template(exchange: Exchange) -> bool:
    """The tests' template writes these after the generation prompt."""
    return any(exchange.given(name) for name in ("documents", "chat_template_kwargs", "tools", "reasoning_effort"))


def _continue_final_message(exchange: Exchange, value: Any) -> bool:
    if not value or not exchange.arrived:
        return True
    return bool(exchange.prompt(0).rstrip().endswith(_parts(exchange.given("messages")[-1])[-1]["text"].strip()))


def _add_special_tokens(exchange: Exchange, value: Any) -> bool:
    # Token ids are taken as they are.
    return all(
        request["inputs"].get("add_special_tokens") is value or "input_ids" in request["inputs"]
        for request in exchange.arrived
    )


def _chat_template_kwargs(exchange: Exchange, value: Any) -> bool:
    return all(
        _is_warned(exchange, name) or (name in _VARIABLES and _is_shown(exchange, one)) for name, one in value.items()
    )


_VARIABLES = ("mood", "reasoning_effort")
"""Of the tests' template."""


def _is_shown(exchange: Exchange, value: Any) -> bool:
    """A variable that is false writes nothing."""
    return not value or _is_cut(exchange) or str(value) in exchange.prompt(0)


def _is_cut(exchange: Exchange) -> bool:
    """Of what the tests' template writes after the messages nothing is left where the last one is continued; of
    `/tokenize` no engine hears."""
    return not exchange.arrived or bool(exchange.given("continue_final_message"))


def _reasoning_effort(exchange: Exchange, value: Any) -> bool:
    return _is_shown(exchange, value)


def _tools(exchange: Exchange, value: Any) -> bool:
    """Shown to the model, or chosen among by what binds it; `tool_choice` may leave some or all of them out."""
    if exchange.given("tool_choice") not in (None, "auto", "required") or _is_cut(exchange):
        return True
    return all(tool["function"]["name"] in exchange.prompt(0) for tool in value)


def _tool_choice(exchange: Exchange, value: Any) -> bool:
    bound = value == "required" or (isinstance(value, dict) and value["type"] == "function")
    return not bound or "structured_outputs" in exchange.arrived[0]["sampling_parameters"]


def _parallel_tool_calls(exchange: Exchange, value: Any) -> bool:
    if value or exchange.given("tool_choice") != "required":
        return True
    return bool(exchange.arrived[0]["sampling_parameters"]["structured_outputs"]["json"].get("maxItems") == 1)


def _documents(exchange: Exchange, value: Any) -> bool:
    return all(_is_shown(exchange, one.get("title")) for one in value)


def _chat_echo(exchange: Exchange, value: Any) -> bool:
    return not value or exchange.text(0).startswith(_last_answer(exchange))


def _completion_echo(exchange: Exchange, value: Any) -> bool:
    choices = exchange.given("n") or 1
    if not value:
        return True
    return all(
        exchange.text(number * choices).startswith(prompt)
        for number, prompt in enumerate(exchange.prompts)
        if isinstance(prompt, str)
    )


def _echo(exchange: Exchange, value: Any) -> bool:
    return _chat_echo(exchange, value) if exchange.is_chat else _completion_echo(exchange, value)


def _return_prompt_text(exchange: Exchange, value: Any) -> bool:
    return (exchange.answers[0].get("prompt_text") == exchange.prompt(0)) is value


def _request_id(exchange: Exchange, value: Any) -> bool:
    return all(answer["id"].endswith(f"-{value}") for answer in exchange.answers)


def _prompt(exchange: Exchange, value: Any) -> bool:
    if exchange.path == "/tokenize":
        return True
    choices = exchange.given("n") or 1
    return [exchange.prompt(number) for number in range(len(exchange.arrived))] == [
        prompt for prompt in exchange.prompts for _ in range(choices)
    ]


def _token_strs(exchange: Exchange, value: Any) -> bool:
    (answer,) = exchange.answers
    return (answer["token_strs"] is not None) is value


def _tokens(exchange: Exchange, value: Any) -> bool:
    (answer,) = exchange.answers
    return isinstance(answer["prompt"], str) and bool(answer["prompt"]) is bool(value)


_DONE: dict[str, Check] = {
    **dict.fromkeys(_CONSTRAINTS, _constraint),
    "constraints": _constraints,
    "model": _model,
    "messages": _messages,
    "stream": _stream,
    "stream_options": _stream_options,
    "n": _n,
    "max_tokens": _limit,
    "max_completion_tokens": _limit,
    "return_token_ids": _return_token_ids,
    "logprobs": _logprobs,
    "return_tokens_as_token_ids": _as_token_ids,
    "add_generation_prompt": _add_generation_prompt,
    "continue_final_message": _continue_final_message,
    "add_special_tokens": _add_special_tokens,
    "chat_template_kwargs": _chat_template_kwargs,
    "documents": _documents,
    "reasoning_effort": _reasoning_effort,
    "tools": _tools,
    "tool_choice": _tool_choice,
    "parallel_tool_calls": _parallel_tool_calls,
    # False has no effect on a model that does not think.
    "include_reasoning": lambda exchange, value: True,
    "echo": _echo,
    "return_prompt_text": _return_prompt_text,
    "request_id": _request_id,
    "prompt": _prompt,
    "return_token_strs": _token_strs,
    "tokens": _tokens,
}
