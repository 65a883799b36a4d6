"""`POST /v1/chat/completions`: messages in, the assistant's message out."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from gateway.api.generate import Translation, json_outputs, stop_reason, token_bytes
from gateway.models import ServedModel
from gateway.openai import sse
from gateway.openai.errors import ApiError
from gateway.openai.fields import CHAT
from gateway.openai.schema import ChatRequest, Message, StreamOptions, parse_chat
from gateway.output.answer import Answer, usage_of
from gateway.output.logprobs import ChatLogprobs, Position
from gateway.triton.contract import Backend, ModelContract

_PLACES = {"prompt": "messages", "logprobs": "top_logprobs", "extra_args": "vllm_xargs"}


class Chat:
    """The dialect of chat completions."""

    table = CHAT
    id_prefix = "chatcmpl"

    def parse(self, body: bytes) -> ChatRequest:
        return parse_chat(body)

    def count_prompts(self, request: ChatRequest) -> int:
        return 1

    def translate(self, request: ChatRequest, model: ServedModel, contract: ModelContract) -> Translation:
        if model.template is None:
            raise ApiError(400, model.no_chat, param="model", code="model_without_chat_template")
        prompt = model.template.render(
            request.messages,
            add_generation_prompt=request.add_generation_prompt,
            continue_final_message=request.continue_final_message,
            documents=request.documents,
            chat_template_kwargs=request.chat_template_kwargs,
        )
        text = prompt.text
        # The stock backend has the tokenizer add its BOS to a prompt that already begins with one.
        if contract.backend is Backend.STOCK and model.added_bos and not request.add_special_tokens:
            text = text.removeprefix(model.added_bos)
        return Translation(
            [text],
            bool(request.add_special_tokens),
            json_outputs(request, contract, logprobs=bool(request.logprobs)),
            lambda _: _PLACES,
            partial(_Writer, request, model, prompt.text),
            prompt.warnings,
        )


class _Writer:
    def __init__(self, request: ChatRequest, model: ServedModel, prompt: str, answer_id: str, created: int) -> None:
        options = request.stream_options or StreamOptions()
        self._identity = answer_id, created, request.model
        self._events = sse.ChatStream(
            *self._identity,
            usage_last=bool(options.include_usage),
            usage_always=bool(options.continuous_usage_stats),
        )
        self._begun: set[int] = set()
        self._echo = _last_answer(request.messages) if request.echo else ""
        self._prompt = {"prompt_text": prompt} if request.return_prompt_text else {}
        self._logprobs = (
            ChatLogprobs(
                token_bytes(model),
                request.top_logprobs or 0,
                every=request.logprob_token_ids is not None,
                as_token_ids=bool(request.return_tokens_as_token_ids),
            )
            if request.logprobs
            else None
        )

    def delta(self, answer: Answer, text: str, outputs: Mapping[str, Any]) -> bytes:
        counts = self._counts(answer)
        begin = b"" if answer.index in self._begun else self._begin(answer, counts)
        if not outputs:
            return begin + self._events.content(answer.index, text, counts) if text else begin
        logprobs = self._content(outputs.get("logprobs") or ())
        token_ids = outputs.get("token_ids")
        if not text and not logprobs and not token_ids:
            return begin
        members = {"token_ids": token_ids} if token_ids is not None else {}
        return begin + self._events.content(answer.index, text, counts, logprobs, members)

    def finish(self, answer: Answer, reason: str) -> bytes:
        return self._events.finish(answer.index, reason, self._counts(answer), stop_reason(answer))

    def end(self, counts: Mapping[str, int]) -> bytes:
        return self._events.end(counts)

    def whole(self, answers: Sequence[Answer], reasons: Sequence[str], counts: Mapping[str, int]) -> bytes:
        choices = [
            sse.chat_choice(
                answer.index,
                self._echo + answer.text,
                reason,
                self._content(answer.logprobs),
                stop_reason(answer) | ({"token_ids": answer.token_ids} if answer.prompt_token_ids is not None else {}),
            )
            for answer, reason in zip(answers, reasons, strict=True)
        ]
        prompt = self._of_prompt(answers[0])
        if answers[0].prompt_logprobs is not None:
            prompt["prompt_logprobs"] = answers[0].prompt_logprobs
        return sse.whole("chat.completion", *self._identity, choices, counts, prompt)

    def _begin(self, answer: Answer, counts: Mapping[str, int] | None) -> bytes:
        self._begun.add(answer.index)
        # What is said of the prompt is said once.
        begin = self._events.role(answer.index, counts, self._of_prompt(answer) if answer.index == 0 else {})
        return begin + self._events.content(answer.index, self._echo, counts) if self._echo else begin

    def _content(self, positions: Sequence[Position]) -> list[dict[str, Any]] | None:
        return None if self._logprobs is None else self._logprobs.content(positions)

    def _of_prompt(self, answer: Answer) -> dict[str, Any]:
        if answer.prompt_token_ids is None:
            return dict(self._prompt)
        return {"prompt_token_ids": answer.prompt_token_ids, **self._prompt}

    def _counts(self, answer: Answer) -> dict[str, int] | None:
        if not self._events.usage_always:
            return None
        return usage_of(answer.prompt_tokens, answer.completion_tokens)


def _last_answer(messages: Sequence[Message]) -> str:
    """The text of the last message if it is the assistant's: what `echo` repeats."""
    last = messages[-1]
    if last.role != "assistant" or last.content is None:
        return ""
    return last.content if isinstance(last.content, str) else "\n".join(part.text or "" for part in last.content)
