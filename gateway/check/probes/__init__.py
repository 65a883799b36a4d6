"""How each field is seen to work: for every one that is forwarded or done, a request with a telling value and what the
answer must show then.
"""

from collections.abc import Mapping
from typing import Any

from gateway.check.answers import Api
from gateway.check.probes import answer, prompt, sampling, tools
from gateway.check.probes.ask import Probe

UNSEEN: Mapping[str, Any] = {
    "vllm_xargs": {"k": [1, "v"]},
    "thinking_token_budget": 11,
    "watermarking": False,
    "priority": -3,
    "cache_salt": "a salt",
    "session_id": "a session",
}
"""Fields whose effect no single answer shows, each with a value that is no default."""

MAY_BE_REFUSED = frozenset(
    {
        "seed",  # By an engine on the CPU that prefills in chunks.
        "priority",  # By the engine's scheduling_policy.
        "thinking_token_budget",  # Without the engine's reasoning_config.
        *("vllm_xargs", "constraints"),  # By the engine's logits processors.
        "n",  # By the setting max_in_flight.
        # By the engine's max_logprobs.
        *("logprobs", "top_logprobs", "prompt_logprobs", "logprob_token_ids", "return_tokens_as_token_ids"),
        # By the engine's grammar backend.
        *answer.CONSTRAINTS,
        # By the model's chat template.
        *("messages", "add_generation_prompt", "continue_final_message", "chat_template_kwargs", "documents", "echo"),
        *("tools", "tool_choice", "parallel_tool_calls", "reasoning_effort"),
    }
)
"""Fields that a sound deployment may refuse."""

_BOTH: Mapping[str, Probe] = {
    "model": answer.model,
    "stream": answer.stream,
    "stream_options": answer.stream_options,
    "max_tokens": answer.limit("max_tokens"),
    **answer.CONSTRAINTS,
    "temperature": sampling.temperature,
    "top_p": sampling.narrowed(top_p=1e-6),
    "top_k": sampling.narrowed(top_k=1),
    "min_p": sampling.narrowed(min_p=1),
    "frequency_penalty": sampling.reweighted(frequency_penalty=2),
    "presence_penalty": sampling.reweighted(presence_penalty=2),
    "repetition_penalty": sampling.reweighted(repetition_penalty=100),
    "seed": sampling.seed,
    "stop": sampling.stop,
    "include_stop_str_in_output": sampling.include_stop_str_in_output,
    "stop_token_ids": sampling.stop_token_ids,
    "logit_bias": sampling.forced("logit_bias"),
    "allowed_token_ids": sampling.forced("allowed_token_ids"),
    "min_tokens": sampling.min_tokens,
    "ignore_eos": sampling.ignore_eos,
    "bad_words": sampling.bad_words,
    "skip_special_tokens": sampling.skip_special_tokens,
    "spaces_between_special_tokens": sampling.spaces_between_special_tokens,
    "repetition_detection": sampling.repetition_detection,
    "stream_interval": sampling.stream_interval,
    "constraints": sampling.constraints,
    **{name: sampling.unseen(**{name: value}) for name, value in UNSEEN.items()},
    "truncate_prompt_tokens": prompt.truncate_prompt_tokens,
    "truncation_side": prompt.truncation_side,
    "add_special_tokens": prompt.add_special_tokens,
    "n": answer.choices,
    "logprob_token_ids": answer.logprob_token_ids,
    "prompt_logprobs": answer.prompt_logprobs,
    "return_token_ids": answer.return_token_ids,
    "return_tokens_as_token_ids": answer.return_tokens_as_token_ids,
    "request_id": answer.request_id,
}

PROBES: Mapping[Api, Mapping[str, Probe]] = {
    "chat": {
        **_BOTH,
        "messages": prompt.messages,
        "max_completion_tokens": answer.limit("max_completion_tokens"),
        "logprobs": answer.logprobs_of_chat,
        "top_logprobs": answer.top_logprobs,
        "add_generation_prompt": prompt.rendered(add_generation_prompt=False),
        "continue_final_message": prompt.continue_final_message,
        "chat_template_kwargs": prompt.rendered(chat_template_kwargs={"enable_thinking": False}),
        "documents": prompt.rendered(documents=[{"title": "Tides", "text": "The tide rises."}]),
        "echo": prompt.echo_of_chat,
        "return_prompt_text": prompt.return_prompt_text,
        "tools": prompt.rendered(tools=tools.TOOLS),
        "tool_choice": tools.tool_choice,
        "parallel_tool_calls": tools.parallel_tool_calls,
        "reasoning_effort": prompt.rendered(reasoning_effort="low"),
        "include_reasoning": tools.include_reasoning,
    },
    "completions": {
        **_BOTH,
        "prompt": prompt.prompt,
        "logprobs": answer.logprobs_of_completion,
        "echo": prompt.echo_of_completion,
    },
}
"""By request type and field. A test holds them against the tables of fields."""
