"""What becomes of every request field: the one table that validation, documentation and tests read.

A field is *forwarded* to the engine, *done* by the gateway, *refused* with 400, or *ignored* with a
warning header; ignoring is allowed only where the field cannot change the answer. Nothing is accepted
and dropped. Fields that are forwarded or done are typed in `gateway.openai.schema`; all others arrive
there as extra members and are judged here (`judge_extras`). Pure: no I/O.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from gateway.openai.errors import ApiError, bad_request, not_supported_yet


class Fate(StrEnum):
    FORWARDED = "forwarded"
    DONE = "done by the gateway"
    REFUSED = "refused"
    IGNORED = "ignored with a warning"


class Origin(StrEnum):
    OPENAI = "OpenAI"
    VLLM = "vLLM"
    LEGACY = "vLLM before 0.12"
    PROJECT = "this project"


@dataclass(frozen=True, slots=True)
class Field:
    """One row.

    A forwarded field becomes the sampling parameter `key`, or the backend's input `input`. `stock` is False
    where NVIDIA's stock backend cannot take it, `needs` names an input that the backend must declare for it.
    `harmless` are values that ask for nothing and are accepted wherever the field itself cannot be; `only` are
    the values that may be ignored (None: any). `idle` says where a value that asks for something has no
    effect; a warning then says so (`has_no_effect`).
    """

    name: str
    fate: Fate
    origin: Origin
    note: str
    key: str | None = None
    input: str | None = None
    needs: str | None = None
    stock: bool = True
    harmless: tuple[Any, ...] = ()
    only: tuple[Any, ...] | None = None
    later: bool = False
    idle: str = ""


def _forwarded(
    name: str, origin: Origin, note: str, *, key: str | None = None, stock: bool = True, idle: str = ""
) -> Field:
    return Field(name, Fate.FORWARDED, origin, note, key=key or name, stock=stock, idle=idle)


def _input(name: str, origin: Origin, note: str, *harmless: Any) -> Field:
    """Forwarded as an input of its own: what vLLM takes beside the sampling parameters."""
    return Field(name, Fate.FORWARDED, origin, note, input=name, needs=name, stock=False, harmless=harmless)


def _done(
    name: str, origin: Origin, note: str, *harmless: Any, needs: str | None = None, idle: str = ""
) -> Field:
    return Field(name, Fate.DONE, origin, note, needs=needs, stock=needs is None, harmless=harmless, idle=idle)


def _later(name: str, origin: Origin, note: str, *harmless: Any) -> Field:
    return Field(name, Fate.REFUSED, origin, note, harmless=harmless, later=True)


def _refused(name: str, origin: Origin, note: str, *harmless: Any) -> Field:
    return Field(name, Fate.REFUSED, origin, note, harmless=harmless)


def _ignored(name: str, note: str, only: tuple[Any, ...] | None = None) -> Field:
    return Field(name, Fate.IGNORED, Origin.OPENAI, note, only=only)


# Of members that are neither forwarded nor done; the tables themselves have fewer.
_MAX_EXTRAS = 200

# Of one that a warning or an error repeats.
_LONGEST_NAME = 500

_O, _V, _L = Origin.OPENAI, Origin.VLLM, Origin.LEGACY

_SKIPS = "Leave special tokens out of the text; true unless set."

# What all requests for an answer share: what is asked and how it comes back, and all the rest.
_ASKED = (
    _done("model", _O, "Chooses the model; the answer repeats it as it was asked."),
    _done("stream", _O, "Server-sent events, ended by [DONE]."),
    _done("stream_options", _O, "include_usage and continuous_usage_stats; include_obfuscation may be false."),
)
_GENERATE = (
    # The one constraint on the answer, whatever its name.
    _done("response_format", _O, "Becomes vLLM's structured_outputs, after a check that it will be enforced."),
    _done("structured_outputs", _V, "Exactly one constraint, checked like response_format."),
    _done("guided_json", _L, "Translated to structured_outputs.json."),
    _done("guided_regex", _L, "Translated to structured_outputs.regex."),
    _done("guided_choice", _L, "Translated to structured_outputs.choice."),
    _done("guided_grammar", _L, "Translated to structured_outputs.grammar."),
    Field(
        "constraints",
        Fate.DONE,
        Origin.PROJECT,
        "Sent as a member of extra_args to the engine's logits_processors, which it needs: catalog or no_repeat_ngram "
        "([constraints](constraints.md)). Not beside a structured output or a tool_choice that binds the answer.",
        stock=False,
    ),
    # Sampling.
    _forwarded("temperature", _O, "0 to 2; 0 is greedy."),
    _forwarded("top_p", _O, "Above 0, at most 1."),
    _forwarded("frequency_penalty", _O, "-2 to 2."),
    _forwarded("presence_penalty", _O, "-2 to 2."),
    _forwarded("seed", _O, "A signed 64-bit integer; the choice number i gets seed + i."),
    _forwarded("stop", _O, "A string or a list of strings, none of them empty."),
    _forwarded("logit_bias", _O, "Token ids to a bias of -100 to 100.", stock=False),
    _forwarded("top_k", _V, "0 or -1: off."),
    _forwarded("min_p", _V, "0 to 1."),
    _forwarded("repetition_penalty", _V, "Above 0; 1 is off."),
    _forwarded("min_tokens", _V, "At most max_tokens."),
    _forwarded("stop_token_ids", _V, "Token ids that end the answer."),
    _forwarded("include_stop_str_in_output", _V, "Keep the stop string at the end of the answer."),
    _forwarded("ignore_eos", _V, "Go on after the end token."),
    _forwarded("bad_words", _V, "Words that must not appear."),
    _forwarded("allowed_token_ids", _V, "The only tokens that may appear."),
    _forwarded(
        "spaces_between_special_tokens",
        _V,
        "True unless set.",
        idle="special tokens are left out of the text (skip_special_tokens)",
    ),
    _forwarded("vllm_xargs", _V, "Arguments of custom logits processors.", key="extra_args"),
    _forwarded(
        "stream_interval", _V, "Tokens per chunk of a stream.", stock=False, idle="the answer is not streamed"
    ),
    _forwarded(
        "thinking_token_budget",
        _V,
        "At most so many tokens of thinking; needs model.json's reasoning_config.",
        stock=False,
    ),
    _forwarded(
        "repetition_detection", _V, 'Ends an answer that repeats itself, with finish_reason "repetition".', stock=False
    ),
    _forwarded("watermarking", _V, "false: without the watermark that the engine is set up with.", stock=False),
    # Scheduling and caching.
    _input("priority", _V, "Lower is earlier; needs an engine whose scheduling_policy is priority.", 0),
    _input("cache_salt", _V, "Keeps a prompt's prefix-cache blocks apart from those with another salt."),
    _input("session_id", _V, "A stable name of the conversation, for the engine's KV-cache events."),
    # The prompt.
    _input("truncate_prompt_tokens", _V, "Keep so many tokens of the prompt; -1: as many as the context takes."),
    _input("truncation_side", _V, "left or right: which end truncate_prompt_tokens cuts off."),
    # What comes back beside the text.
    _done("n", _O, "So many choices, each a request of its own to the same engine; at most 128."),
    _forwarded(
        "logprob_token_ids",
        _V,
        "Log probabilities of just these tokens, in place of the best-ranked ones, for which none may be asked beside "
        "it; needs logprobs, and not vLLM's V1 runner, which all CPUs have.",
        stock=False,
    ),
    Field(
        "prompt_logprobs",
        Fate.FORWARDED,
        _V,
        "Log probabilities of the prompt's tokens, so many best-ranked ones each; not in a stream.",
        key="prompt_logprobs",
        needs="return_prompt_logprobs",
        stock=False,
    ),
    _done("return_token_ids", _V, "Token ids beside the text.", False, needs="return_token_ids"),
    _done(
        "return_tokens_as_token_ids",
        _V,
        "Log probabilities name a token as token_id:N.",
        idle="no log probabilities are asked for",
    ),
    _done("request_id", _V, "Makes up the answer's id, which the engine's log repeats."),
    # Cannot change the answer.
    _ignored("user", "Names the end user."),
    # Not what this server does.
    _refused("use_beam_search", _V, "The engine's V1 has no beam search in one request.", False),
    _refused("length_penalty", _V, "It belongs to beam search.", 1.0, 1),
    _refused("best_of", _V, "vLLM has removed it; ask for n choices and choose among them.", 1),
    _refused("mm_payload", _V, "It belongs to rendering alone.", "tensors"),
    _refused("return_mm_kwargs", _V, "It belongs to rendering alone."),
    _refused("return_token_offsets", _V, "It belongs to rendering alone.", False),
    _refused("routed_experts_prompt_start", _V, "It is for training, not for serving.", 0),
    _refused("kv_transfer_params", _V, "Disaggregated serving is set up between engines, not by clients."),
    _refused("ec_transfer_params", _V, "Disaggregated serving is set up between engines, not by clients."),
    _refused("logits_processors", _V, "Code from a client is not run; see vllm_xargs."),
    _refused("guided_decoding_backend", _L, "The engine has one backend, chosen in its configuration."),
    _refused("guided_whitespace_pattern", _L, "No engine backend reads it per request."),
)

_CHAT = (
    # What is asked, and how the answer comes back.
    _done("messages", _O, "Rendered with the model's chat template: system, developer, user, assistant, tool; text."),
    _done("max_completion_tokens", _O, "Sent as max_tokens; absent: the rest of the context."),
    _done("max_tokens", _O, "The older name of max_completion_tokens."),
    _done("logprobs", _O, "Log probabilities of the sampled tokens, with the bytes of each."),
    _forwarded("top_logprobs", _O, "So many best-ranked alternatives; -1: all. Needs logprobs: true.", key="logprobs"),
    # The prompt.
    _done("add_generation_prompt", _V, "Given to the chat template; true unless set."),
    _done("continue_final_message", _V, "The last message is continued instead of answered."),
    _done("add_special_tokens", _V, "Add the tokenizer's special tokens to what the template wrote; false unless set."),
    _done("chat_template_kwargs", _V, "Variables for the chat template."),
    _done("documents", _V, "Given to the chat template."),
    _done(
        "echo",
        _V,
        "The answer begins with the last message.",
        idle="the last message is not the assistant's, or has no text",
    ),
    _forwarded(
        "skip_special_tokens",
        _V,
        _SKIPS,
        idle="calls or thinking are read from the answer, since their marks may be special tokens",
    ),
    _done("return_prompt_text", _V, "The rendered prompt in the answer."),
    # Cannot change the answer.
    _ignored("metadata", "Labels of a stored answer; nothing is stored."),
    _ignored("store", "Nothing is stored.", only=(False,)),
    _ignored("safety_identifier", "Names the end user."),
    _ignored("prompt_cache_key", "A hint for a cache; vLLM's prefix cache needs none."),
    _ignored("service_tier", "There is one tier.", only=("auto", "default")),
    # Tools and thinking.
    _done("tools", _O, "Functions that the model may call, shown to it by its chat template.", []),
    _done(
        "tool_choice",
        _O,
        "none, auto, required, one function, or allowed_tools; auto unless set.",
        idle="there are no tools",
    ),
    _done("parallel_tool_calls", _O, "false: at most one call.", idle="there is no tool that may be called"),
    _done("reasoning_effort", _O, "Given to the chat template."),
    _done(
        "include_reasoning",
        _V,
        "false: the thinking is left out of the answer, with its log probabilities and token ids.",
        idle="the gateway knows no thinking of the model (its reasoning_parser)",
    ),
    # Not what this server does.
    _refused("functions", _O, "It is the older form of tools.", []),
    _refused("function_call", _O, "It is the older form of tool_choice.", "none"),
    _refused("audio", _O, "Answers are text."),
    _refused("modalities", _O, "Answers are text.", ["text"]),
    _refused("prediction", _O, "The engine takes no predicted outputs."),
    _refused("verbosity", _O, "No open model reads it; say it in the prompt.", "medium"),
    _refused("web_search_options", _O, "There is no web search."),
    _refused("moderation", _O, "There is no moderation."),
    _refused("prompt_cache_options", _O, "vLLM's prefix cache has no per-request options."),
    _refused("prompt_cache_retention", _O, "vLLM's prefix cache has no retention times.", "in_memory"),
    _refused("chat_template", _V, "A template is code of the operator's; set it in the gateway's settings."),
    _refused("media_io_kwargs", _V, "Messages are text."),
    _refused("mm_processor_kwargs", _V, "Messages are text."),
)

_COMPLETION = (
    # What is asked, and how the answer comes back.
    _done("prompt", _O, "A text, a list of texts, token ids, or a list of lists of them; each prompt has n choices."),
    _forwarded("max_tokens", _O, "16 unless set; 0 only with echo."),
    _forwarded("logprobs", _O, "Log probabilities of the sampled token and of so many best-ranked ones; -1: all."),
    _done("echo", _O, "The answer begins with the prompt; with logprobs the prompt's tokens have theirs too."),
    _forwarded("skip_special_tokens", _V, _SKIPS),
    # The prompt.
    _done(
        "add_special_tokens",
        _V,
        "Add the tokenizer's special tokens, such as BOS, to a text; true unless set.",
        idle="the prompt is token ids, which are taken as they are",
    ),
    # Not what this server does.
    _refused("suffix", _O, "Write the prompt in the model's own fill-in-the-middle format.", ""),
    _refused("prompt_embeds", _V, "A prompt is text or token ids."),
)

_TOKENIZE = (
    _done("model", _V, "Chooses the model, by whose tokenizer."),
    _done("prompt", _V, "A text."),
    _done("messages", _V, "In place of prompt: rendered with the model's chat template, as for a chat completion."),
    _done(
        "add_special_tokens",
        _V,
        "Add the tokenizer's special tokens, such as BOS; unless set, true for a prompt and false for messages.",
    ),
    _done("return_token_strs", _V, "The vocabulary's spelling of each token in the answer, too."),
    _done("add_generation_prompt", _V, "Given to the chat template; true unless set."),
    _done("continue_final_message", _V, "The last message is continued instead of answered."),
    _done("chat_template_kwargs", _V, "Variables for the chat template."),
    _later("tools", _V, "Tools that the model may call.", []),
    _refused("chat_template", _V, "A template is code of the operator's; set it in the gateway's settings."),
    _refused("media_io_kwargs", _V, "Messages are text."),
    _refused("mm_processor_kwargs", _V, "Messages are text."),
)

_DETOKENIZE = (
    _done("model", _V, "Chooses the model, by whose tokenizer."),
    _done("tokens", _V, "Token ids; special tokens are written out."),
)


def _table(*rows: Field) -> Mapping[str, Field]:
    table = {field.name: field for field in rows}
    assert len(table) == len(rows), "a field has two rows"
    return table


CHAT: Mapping[str, Field] = _table(*_ASKED, *_CHAT, *_GENERATE)
COMPLETION: Mapping[str, Field] = _table(*_ASKED, *_COMPLETION, *_GENERATE)
TOKENIZE: Mapping[str, Field] = _table(*_TOKENIZE)
DETOKENIZE: Mapping[str, Field] = _table(*_DETOKENIZE)


def judge_extras(extras: Mapping[str, Any], table: Mapping[str, Field], *, strict: bool) -> list[str]:
    """Judge the members of a request that its type does not name.

    Returns the warnings for the `x-gateway-warning` header; raises a 400 for a field that is refused
    and, with `strict`, for one that no API knows. `null` is the same as absent.
    """
    refuse_many(extras)
    warnings: list[str] = []
    for name, value in extras.items():
        if value is None:
            continue
        field = table.get(name)
        if len(name) > _LONGEST_NAME:
            name = f"{name[:_LONGEST_NAME]}…"
        if field is None:
            if strict:
                raise bad_request(f"Unknown field {name!r}; remove it.", param=name, code="unknown_parameter")
            warnings.append(f"unknown field {name!r} was ignored")
        elif field.fate is Fate.IGNORED:
            if field.only is not None and not is_one_of(value, field.only):
                allowed = " or ".join(repr(v).lower() if isinstance(v, bool) else repr(v) for v in field.only)
                raise bad_request(f"{name} can only be {allowed} here. {field.note}", param=name)
            warnings.append(f"{name} was ignored")
        elif not is_one_of(value, field.harmless):
            raise _refusal(field)
    return warnings


def refuse_many(extras: Mapping[str, Any]) -> None:
    """Raises a 400 for more than anybody needs."""
    if len(extras) > _MAX_EXTRAS:
        raise bad_request(f"The body has {len(extras)} fields that this API does not know; remove them.")


def has_no_effect(field: Field) -> str:
    """The warning where what the row's `idle` says is so."""
    return f"{field.name} has no effect where {field.idle}"


def is_one_of(value: Any, allowed: tuple[Any, ...]) -> bool:
    """Whether a JSON value is one of these."""
    # `False == 0` and `1 == True` in Python, but not in JSON.
    return any(type(value) is type(v) and value == v for v in allowed)


def _refusal(field: Field) -> ApiError:
    if field.later:
        return not_supported_yet(field.name)
    return bad_request(
        f"{field.name} is not supported. {field.note} Remove it.", param=field.name, code="unsupported_parameter"
    )
