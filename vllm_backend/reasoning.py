"""The engine's reasoning parser, which tells it where a constraint begins: is there one, does it fit the model, can it
tell at all.

A part of `engine.py`, and like it written for vLLM's release."""

from typing import Any

from vllm.config import VllmConfig
from vllm.reasoning import ReasoningParser, ReasoningParserManager
from vllm.tokenizers import TokenizerLike, cached_tokenizer_from_config

from vllm_backend.contract import StartError

_PLACE = "model.json: structured_outputs_config.reasoning_parser"

THINKING: dict[str, Any] = {
    "chat_template_kwargs": {"thinking": True, "enable_thinking": True, "reasoning_effort": "high"}
}
"""A parser's arguments for a request whose reasoning has not ended. Some parsers go by the chat template's arguments,
and take the first token for the end where those do not turn the thinking on."""


def finds_end(config: VllmConfig) -> bool:
    """Whether the engine has a reasoning parser that can tell where an answer's reasoning ends.

    The engine makes its parser with the first request that has a constraint, and dies if it cannot: such a parser is a
    StartError.
    """
    structured = config.structured_outputs_config
    name = structured.reasoning_parser
    if not name or config.model_config.skip_tokenizer_init:
        return False
    if structured.reasoning_parser_plugin:
        ReasoningParserManager.import_reasoning_parser(structured.reasoning_parser_plugin)
    names = ReasoningParserManager.list_registered()
    if name not in names:
        raise StartError(f"{_PLACE} must be one of {', '.join(names)}, not {name}.")
    tokenizer = cached_tokenizer_from_config(config.model_config)
    try:
        parser = ReasoningParserManager.get_reasoning_parser(name)(tokenizer, **THINKING)
    except Exception as error:
        raise StartError(f"{_PLACE}: {name} does not fit the model: {error}") from error
    return waits_for_end(parser, tokenizer)


def waits_for_end(parser: ReasoningParser, tokenizer: TokenizerLike) -> bool:
    """Whether the reasoning goes on with any token behind its opening mark. To `openai_gptoss` each one ends it."""
    opening = parser.reasoning_start_str
    ids = tokenizer.encode(opening, add_special_tokens=False) if opening else []
    return not parser.is_reasoning_end_streaming([*ids, 0], [0])
