"""Calls in an answer's text: one module for each family of models, all behind `gateway.output.events.OutputParser`.

A parser is made for one choice, from the functions that the request offers and a maker of ids:

    parser = FAMILIES["hermes"].parser({"get_weather": {"type": "object", ...}}, make_call_id)
    parser.feed("One moment.\\n<tool_ca")   # [Content("One moment.")]
    parser.feed('ll>{"name": "get_weather", "arguments": {"ci')
    #   [CallStart(0, "call_…", "get_weather"), CallArguments(0, '{"ci')]
    parser.feed('ty": "Paris"}}</tool_call>')  # [CallArguments(0, 'ty": "Paris"}')]
    parser.finish("stop")                       # []

What all of them hold to:
- the same events, added up, for every cut of the text; linear in the text; at most `MAX_HELD` bytes held back;
- a call begins once, with index, id and name; then come its arguments only, as the model wrote them;
- text that turns out not to be a call is content, as it stands; so is text around calls;
- marks of a family's own make a call whatever its function's name; where nothing but the form tells (`llama3_json`,
  `llama4_pythonic`), the request must offer the function;
- arguments that are no JSON are passed on: it is the client that called for them.

`gateway.output.parsers` puts reasoning and tools together.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from gateway.output.events import MakeId, Tools
from gateway.output.tools import deepseek, gpt_oss, hermes
from gateway.output.tools.base import ToolParser
from gateway.output.tools.frame import CallFrame
from gateway.output.tools.glm45 import Glm45Parser
from gateway.output.tools.ids import make_call_id, make_kimi_id, make_mistral_id
from gateway.output.tools.kimi_k2 import KimiK2Parser
from gateway.output.tools.llama3_json import Llama3JsonParser
from gateway.output.tools.llama4_pythonic import Llama4PythonicParser
from gateway.output.tools.mistral import MistralParser
from gateway.output.tools.qwen3_coder import Qwen3CoderParser


@dataclass(frozen=True, slots=True)
class Family:
    """`recognised_by`: groups of texts; the chat template of such a model holds all texts of one of them. `frame`: how
    a call is written, where marks of its own begin it, its arguments are plain JSON and one form is certain: only then
    a structural tag can keep calls valid."""

    parser: Callable[[Tools, MakeId], ToolParser]
    make_id: MakeId
    recognised_by: tuple[tuple[str, ...], ...]
    frame: CallFrame | None = None


FAMILIES: Final[Mapping[str, Family]] = {
    "gpt_oss": Family(gpt_oss.GptOssParser, make_call_id, (("<|channel|>", "<|message|>"),), gpt_oss.FRAME),
    "kimi_k2": Family(KimiK2Parser, make_kimi_id, (("<|tool_calls_section_begin|>",),)),
    "deepseek_v3": Family(
        deepseek.DeepSeekParser, make_call_id, (("<｜tool▁calls▁begin｜>", "```json"),), deepseek.V3_FRAME
    ),
    "deepseek_v31": Family(deepseek.DeepSeekParser, make_call_id, (("<｜tool▁calls▁begin｜>",),), deepseek.V31_FRAME),
    "glm45": Family(Glm45Parser, make_call_id, (("<tool_call>", "<arg_key>"),)),
    "qwen3_coder": Family(Qwen3CoderParser, make_call_id, (("<tool_call>", "<function=", "<parameter="),)),
    "mistral": Family(MistralParser, make_mistral_id, (("[TOOL_CALLS]",),)),
    "llama4_pythonic": Family(Llama4PythonicParser, make_call_id, (("[func_name1(",),)),
    "hermes": Family(hermes.HermesParser, make_call_id, (("<tool_call>", '"name'),), hermes.FRAME),
    "llama3_json": Family(
        Llama3JsonParser, make_call_id, (("<|python_tag|>",), ('{"name": function name, "parameters":',))
    ),
}
"""Name of the tool parser → family; recognised in this order, the more special ones first."""
