"""`POST /v1/chat/completions`: messages in, the assistant's message out."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from gateway.api.generate import Check, Translation, json_outputs, stop_reason, token_bytes
from gateway.models import ServedModel
from gateway.openai import sse
from gateway.openai.errors import bad_request
from gateway.openai.fields import CHAT
from gateway.openai.schema import ChatRequest, Message, StreamOptions, parse_chat
from gateway.output.answer import Answer, usage_of
from gateway.output.events import CallArguments, CallStart, Content, Event, OutputParser, Reasoning
from gateway.output.first_call import FirstCall
from gateway.output.logprobs import ChatLogprobs, Position
from gateway.output.parsers import finish_reason
from gateway.output.reasoning import MARKS
from gateway.output.tools import FAMILIES
from gateway.translate.after_reasoning import after_reasoning
from gateway.translate.call_tag import call_tag
from gateway.translate.prompt import ChatTemplate
from gateway.translate.structured import Constraint
from gateway.translate.tool_choice import ToolUse, calls_constraint, tool_use
from gateway.triton.contract import Backend, Delta, ModelContract

_PLACES = {"prompt": "messages", "logprobs": "top_logprobs", "extra_args": "vllm_xargs"}


class Chat:
    """The dialect of chat completions."""

    table = CHAT
    id_prefix = "chatcmpl"

    def parse(self, body: bytes) -> ChatRequest:
        return parse_chat(body)

    def count_prompts(self, request: ChatRequest) -> int:
        return 1

    def translate(
        self, request: ChatRequest, model: ServedModel, contract: ModelContract, constraint: Constraint | None
    ) -> Translation:
        template = model.chat_template()
        use = tool_use(request.tools, request.tool_choice, request.parallel_tool_calls)
        if use.tools and not use.is_bound:
            _check_can_call(model, template)
        prompt = template.render(
            request.messages,
            add_generation_prompt=request.add_generation_prompt,
            continue_final_message=request.continue_final_message,
            documents=request.documents,
            tools=use.tools,
            reasoning_effort=request.reasoning_effort,
            chat_template_kwargs=request.chat_template_kwargs,
        )
        text = prompt.text
        # The stock backend has the tokenizer add its BOS to a prompt that already begins with one.
        if contract.backend is Backend.STOCK and model.added_bos and not request.add_special_tokens:
            text = text.removeprefix(model.added_bos)
        warnings = [*prompt.warnings]
        if use.is_bound:
            if constraint is not None:
                warnings.append(f"{constraint.place} was ignored: tool_choice binds the answer to be a call")
            constraint = calls_constraint(use, request.tools or ())
        elif use.tools and constraint is not None:
            warnings.append(f"tools cannot be called: {constraint.place} binds the answer")
        of_text = constraint
        if use.tools and constraint is None:
            constraint = _free_calls(use, model)
        translation = Translation(
            [text],
            bool(request.add_special_tokens),
            json_outputs(request, contract, logprobs=bool(request.logprobs)),
            lambda _: _PLACES,
            partial(_Writer, request, model, prompt.text, use),
            warnings,
            parser=partial(_parser, request, model, prompt.text, use),
            # The marks of calls and of thinking may be special tokens.
            sampling={"skip_special_tokens": False} if model.output.needs_special_tokens(bool(use.tools)) else {},
            constraint=constraint,
            is_optional=of_text is None,
            checks=partial(_checks, use, of_text) if model.output.reasoning_parser or use.tools else None,
        )
        # The tag of free calls allows any text ahead of a call, thinking too.
        if of_text is not None and model.output.reasoning_parser is not None:
            _bind_after_thinking(translation, model, contract, prompt.text)
        return translation


def _free_calls(use: ToolUse, model: ServedModel) -> Constraint | None:
    """What keeps calls valid that the model is free to make, where that is switched on and can be had."""
    family = FAMILIES.get(model.output.tool_parser or "")
    if not model.tool_structural_tag or family is None or family.frame is None:
        return None
    return call_tag(use, family.frame)


def _bind_after_thinking(translation: Translation, model: ServedModel, contract: ModelContract, prompt: str) -> None:
    """A constraint binds the answer and not the thinking before it."""
    is_over = model.output.reasoning_is_over(prompt)
    if "reasoning_ended" in contract.inputs:
        translation.inputs = {"reasoning_ended": is_over}
        # The client knows nothing of this input: what cannot be had is what binds the answer.
        assert translation.constraint is not None
        places = _PLACES | {"reasoning_ended": translation.constraint.place}
        translation.places = lambda _: places
    elif not is_over:
        translation.engine_form = partial(_one_grammar, model, prompt)


def _one_grammar(model: ServedModel, prompt: str, constraint: Constraint) -> Constraint:
    """For a backend that cannot be told when the thinking ends."""
    marks = MARKS.get(model.output.reasoning_parser or "")
    opened = model.output.begins_in_reasoning(prompt)
    added_tokens = None if model.tokenizer is None else model.tokenizer.added_tokens
    form = None if marks is None else after_reasoning(constraint, marks, opened, model.grammar_backend, added_tokens)
    if form is None:
        raise bad_request(
            f"{constraint.place}: a model that thinks first cannot be bound to this by Triton's stock vLLM backend; "
            "switch the thinking off in chat_template_kwargs, or install this project's vllm_backend.",
            constraint.place,
            "unsupported_parameter",
        )
    return form


def _checks(use: ToolUse, of_text: Constraint | None, answer: Answer) -> list[Check]:
    """Calls by the schema of their function, other text by what binds it: what was thought before either is bound by
    nothing."""
    if answer.parser is None:
        return [] if of_text is None else [Check(of_text, answer.text)]
    message, schemas = answer.message, use.schemas
    calls = [
        # A function that is not offered has no arguments that could be right.
        Check(Constraint("json", schemas.get(call.name, False), "tools"), call.arguments, not use.is_bound)
        for call in message.calls
    ]
    # Of an answer that is bound to be calls, they leave no other text.
    if of_text is None or (use.is_bound and calls and not message.content.strip()):
        return calls
    return [*calls, Check(of_text, message.content)]


def _check_can_call(model: ServedModel, template: ChatTemplate) -> None:
    """What the model writes as a call would be taken for text: the client would wait for a call that never comes."""
    if not template.takes_tools:
        raise bad_request(
            "The model's chat template shows no tools to the model; remove tools, or bind the answer with "
            "tool_choice required or one function.",
            "tools",
            "unsupported_parameter",
        )
    if model.output.tool_parser is None:
        raise bad_request(
            "The gateway does not know how this model writes calls (setting models[].tool_parser); remove tools, or "
            "bind the answer with tool_choice required or one function.",
            "tools",
            "unsupported_parameter",
        )


def _parser(request: ChatRequest, model: ServedModel, prompt: str, use: ToolUse) -> OutputParser | None:
    earlier = sum(len(message.tool_calls or ()) for message in request.messages)
    parser = model.output.parser(
        prompt, use.schemas, required=use.required, named=use.named, earlier_calls=earlier
    )
    return FirstCall(parser) if parser is not None and use.tools and use.single else parser


class _Writer:
    def __init__(
        self, request: ChatRequest, model: ServedModel, prompt: str, use: ToolUse, answer_id: str, created: int
    ) -> None:
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
        self._shows_reasoning = request.include_reasoning is not False
        self._is_named = use.named is not None
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

    def delta(self, answer: Answer, delta: Delta) -> bytes:
        counts = self._counts(answer)
        begin = b"" if answer.index in self._begun else self._begin(answer, counts)
        logprobs, members = None, sse.NONE
        if delta.outputs:
            logprobs = self._content(delta.outputs.get("logprobs") or ())
            if (token_ids := delta.outputs.get("token_ids")) is not None:
                members = {"token_ids": token_ids}
        if answer.parser is not None:
            return begin + self._parsed(answer, counts, logprobs or None, members)
        if not delta.text and not logprobs and not members.get("token_ids"):
            return begin
        return begin + self._events.content(answer.index, delta.text, counts, logprobs, members)

    def finish(self, answer: Answer, reason: str) -> bytes:
        counts = self._counts(answer)
        rest = self._parsed(answer, counts, None, sse.NONE) if answer.parser is not None else b""
        return rest + self._events.finish(answer.index, self._reason(answer, reason), counts, stop_reason(answer))

    def end(self, counts: Mapping[str, Any]) -> bytes:
        return self._events.end(counts)

    def whole(self, answers: Sequence[Answer], reasons: Sequence[str], counts: Mapping[str, int]) -> bytes:
        choices = [
            sse.chat_choice(
                answer.index,
                self._message(answer),
                self._reason(answer, reason),
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

    def _parsed(
        self,
        answer: Answer,
        counts: Mapping[str, Any] | None,
        logprobs: list[dict[str, Any]] | None,
        members: Mapping[str, Any],
    ) -> bytes:
        """The events of what the parser made of a response; its log probabilities and tokens go with the first."""
        out: list[bytes] = []
        for delta in self._deltas(answer.events):
            out.append(self._events.delta(answer.index, delta, counts, logprobs, members))
            logprobs, members = None, sse.NONE
        if logprobs or members.get("token_ids"):
            # The parser holds the text back.
            out.append(self._events.delta(answer.index, {}, counts, logprobs, members))
        return b"".join(out)

    def _deltas(self, events: Iterable[Event]) -> Iterator[dict[str, Any]]:
        for event in events:
            match event:
                case Content(text):
                    yield {"content": text}
                case Reasoning(text):
                    if self._shows_reasoning:
                        yield {"reasoning_content": text}
                case CallStart(index, call_id, name):
                    yield sse.call_start(index, call_id, name)
                case CallArguments(index, text):
                    yield sse.call_arguments(index, text)

    def _message(self, answer: Answer) -> dict[str, Any]:
        if answer.parser is None:
            return sse.chat_message(self._echo + answer.text)
        message = answer.message
        content = self._echo + message.content
        calls = [call._asdict() for call in message.calls]
        # A message that says nothing but calls or thinking has no content.
        silent = not content and (calls or message.reasoning)
        return sse.chat_message(
            None if silent else content, message.reasoning if self._shows_reasoning else "", calls
        )

    def _reason(self, answer: Answer, reason: str) -> str:
        return finish_reason(reason, len(answer.message.calls), self._is_named)

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
